/**
 * Sending scripts: only when they leave at once, by their hash, and with their text where a server does not know them.
 *
 * @module
 */
import { StoreUnavailableError } from '../../errors.js'
import { formatDuration } from '../../kit/duration.js'
import type { Adapter, Reply } from '../../clients/redis/adapter.js'
import { isNoScript, runScript, type Script } from '../../clients/redis/script.js'
import { unavailable } from './trouble.js'

/** After a failure, how often to look whether the server is back: at first, and at most. */
const PROBE_MS = 50
const LONGEST_PROBE_MS = 1_000
/**
 * How long a call waits for a client that has reported an error since it was last connected: long enough for one more
 * attempt, short enough that a caller hears why within its `wait`.
 */
const REFUSED_MS = 250
/** A failure this long after the last recovery is a new one. */
const CALM_MS = 5_000

export interface TransportOptions {
  timeoutMs: number
  /** A script that does no more than answer. */
  probe: Script
  /** The server answers again after a failure: nobody knows what it still knows. */
  onRecovered: () => void
}

export class Transport {
  readonly #adapter: Adapter
  readonly #timeoutMs: number
  readonly #options: TransportOptions
  #probing: NodeJS.Timeout | undefined
  #pauseMs = PROBE_MS
  #recoveredAt = Number.NEGATIVE_INFINITY
  #closed = false

  constructor(adapter: Adapter, options: TransportOptions) {
    this.#adapter = adapter
    this.#timeoutMs = options.timeoutMs
    this.#options = options
    adapter.onShock(() => this.#probeSoon())
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#probing)
  }

  /** Rejects with what is wrong, as a `StoreUnavailableError`. */
  run(script: Script, keys: string[], args: string[]): Promise<Reply> {
    return this.ask(script, keys, args, (reply) => reply)
  }

  /** `run`, and what is made of the reply: one promise, since every further one shows in the price of a lock. */
  ask<T>(script: Script, keys: string[], args: string[], read: (reply: Reply) => T | Promise<T>): Promise<T> {
    const adapter = this.#adapter
    if (!adapter.ready()) return this.whenReady().then(() => this.ask(script, keys, args, read))
    return runScript(adapter, script, keys, args, { reply: read, failure: this.#fail })
  }

  readonly #fail = (error: unknown): never => {
    // Not every client tells when it is connected again, and a server may come back as another than it was.
    if (!(error instanceof Error) || !/^(NOPERM|NOAUTH|OOM|WRONGTYPE|ERR)\b/.test(error.message)) this.#probeSoon()
    throw unavailable(error)
  }

  /** Soon, unless it had just recovered: a server that answers and refuses (a replica) would be asked without end. */
  #probeSoon(): void {
    const calm = performance.now() - this.#recoveredAt > CALM_MS
    this.#pauseMs = calm ? PROBE_MS : Math.min(this.#pauseMs * 2, LONGEST_PROBE_MS)
    this.#probeIn(this.#pauseMs)
  }

  #probeIn(ms: number): void {
    if (this.#probing || this.#closed) return
    const again = (): void => {
      this.#probing = undefined
      this.#probeIn(Math.min(ms * 2, LONGEST_PROBE_MS))
    }
    this.#probing = setTimeout(() => {
      const { probe, onRecovered } = this.#options
      if (this.#adapter.closed()) return
      if (!this.#adapter.ready()) return again()
      const recovered = (): void => {
        this.#probing = undefined
        this.#recoveredAt = performance.now()
        if (!this.#closed) onRecovered()
      }
      this.#adapter
        .evalsha(probe.sha, [], [])
        .then(recovered, (error: unknown) => (isNoScript(error) ? recovered() : again()))
    }, ms)
    this.#probing.unref()
  }

  /**
   * A client that is not connected would put the question into a queue, and carry it out minutes later, when whoever asked
   * has long gone. So it is not given to the client before that is ready, and not at all if that takes too long.
   */
  whenReady(): Promise<void> {
    const adapter = this.#adapter
    if (adapter.ready()) return Promise.resolve()
    adapter.wake()
    return new Promise((resolve, reject) => {
      const settle = (error?: Error): void => {
        clearTimeout(timer)
        stop()
        if (error) reject(error)
        else resolve()
      }
      const giveUp = (waitedMs: number): void => {
        const reason = unavailable(adapter.trouble()).message
        const waited = `not connected within ${formatDuration(waitedMs)}`
        settle(new StoreUnavailableError(`${reason}; ${waited}`, { cause: adapter.trouble() }))
      }
      const limit = (ms: number): void => {
        clearTimeout(timer)
        timer = setTimeout(giveUp, ms, ms)
        timer.unref()
      }
      const look = (): void => {
        if (adapter.ready()) settle()
        else if (adapter.closed()) settle(unavailable(adapter.trouble()))
        else if (adapter.lastError !== undefined && !refused) {
          refused = true
          limit(Math.min(REFUSED_MS, this.#timeoutMs))
        }
      }
      let refused = false
      let timer: NodeJS.Timeout | undefined
      limit(this.#timeoutMs)
      const stop = adapter.onTurn(look)
      look()
    })
  }
}
