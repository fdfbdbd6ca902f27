/**
 * The way to one node: which client speaks to it, and a limit on what waits for it.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'
import { formatDuration } from '../../util/duration.js'
import type { World } from '../../util/world.js'
import type { Adapter } from '../../clients/redis/adapter.js'
import { ioredisAdapter, isIoRedis } from '../../clients/redis/ioredis.js'
import { isNodeRedis, nodeRedisAdapter } from '../../clients/redis/node-redis.js'
import { runScript, type Script } from '../../clients/redis/script.js'
import { NodeError, NotSent } from './errors.js'
import type { NodeCallback } from './node.js'

/** An ioredis `Redis` (5 or 6) or a node-redis client (5 or 6), each of one server. */
export type RedlockClient =
  | { status: string; evalsha(...args: never[]): unknown; on(...args: never[]): unknown }
  | { isOpen: boolean; sendCommand(...args: never[]): unknown; on(...args: never[]): unknown }

/** The client of one server. */
export interface NodeConnection {
  /** For messages: `10.0.0.3:6379`. */
  readonly name: string
  readonly adapter: Adapter
}

export function connectionOf(client: unknown, position: number): NodeConnection {
  const adapter = adapterOf(client)
  if (adapter) return { name: nameOf(client as object, position), adapter }
  throw new InvalidOptionError(`clients[${position}]`, client, 'an ioredis Redis or a node-redis client of one server')
}

/** Clients of a Cluster or of Sentinel are refused: their servers are not independent, or not the same ones after a failover. */
function adapterOf(client: unknown): Adapter | undefined {
  if (typeof client !== 'object' || client === null) return undefined
  const { isCluster } = client as { isCluster?: unknown }
  if (isCluster === true || 'nodeClient' in client || 'getMasterNode' in client) return undefined
  if (isIoRedis(client)) return ioredisAdapter(client)
  return isNodeRedis(client) ? nodeRedisAdapter(client) : undefined
}

function nameOf(client: object, position: number): string {
  const { options } = client as { options?: { socket?: object } }
  const { host, port, path } = (options?.socket ?? options ?? {}) as Record<string, unknown>
  if (path) return String(path)
  return host || port ? `${host ?? 'localhost'}:${port ?? 6379}` : `node ${position + 1}`
}

/** MAX_OUTSTANDING: calls that may wait for a node that does not answer. More would only take memory. */
const MAX_OUTSTANDING = 1_000
/** MAX_ANSWERED: answered calls at the head of the list before it is copied. Copying more often costs time, less often memory. */
const MAX_ANSWERED = 1_000

/** SAME_SILENCE_MS: for how long calls to a silent node get the same error, which says since when it is silent. */
const SAME_SILENCE_MS = 50

/** One call without an answer yet, in the order in which they were sent. */
interface SentCall {
  sentAt: number
  suspectAt: number | undefined
  over: boolean
}

/**
 * Runs scripts on one node. Gives a client nothing that it could not send at once: a queue would execute it minutes later,
 * when the caller has given up. Sends nothing more to a node that leaves calls unanswered, until it answers.
 */
export class ScriptRunner {
  readonly name: string
  readonly #adapter: Adapter
  readonly #world: World
  readonly #timeoutMs: number
  #calls: SentCall[] = []
  #first = 0
  #outstanding = 0
  #silent: { error: NotSent; at: number } | undefined

  constructor({ name, adapter }: NodeConnection, world: World, timeoutMs: number) {
    this.name = name
    this.#adapter = adapter
    this.#world = world
    this.#timeoutMs = timeoutMs
  }

  /** `cleanup`: worth sending also to a node that is silent now, to be executed when it answers again. */
  run(script: Script, keys: string[], args: string[], cleanup: boolean, done: NodeCallback<unknown>): void {
    const now = this.#world.now()
    if (!this.#adapter.ready()) return this.#whenReady(() => this.run(script, keys, args, cleanup, done), done)
    if ((this.#isSilent(now) && !cleanup) || this.#outstanding >= MAX_OUTSTANDING) {
      return done(this.#silence(now))
    }
    const call: SentCall = { sentAt: now, suspectAt: undefined, over: false }
    this.#calls.push(call)
    this.#outstanding++
    const settle = (answer: unknown): void => {
      call.over = true
      this.#outstanding--
      done(answer)
    }
    const fail = (error: unknown): void => {
      const reason = error instanceof Error ? error.message || error.name : String(error)
      settle(new NodeError(this.name, `failed: ${reason}`, { cause: error }))
    }
    void runScript(this.#adapter, script, this.#withPrefix(keys), args, { reply: settle, failure: fail })
  }

  /**
   * Whether the oldest call without an answer is old. Its answer may have arrived while this process was busy: a node is
   * silent only if it is found so twice, with time to read in between.
   */
  #isSilent(now: number): boolean {
    const calls = this.#calls
    while (this.#first < calls.length && (calls[this.#first] as SentCall).over) this.#first++
    const oldest = calls[this.#first]
    if (!oldest || this.#first > MAX_ANSWERED) {
      this.#calls = calls.slice(this.#first)
      this.#first = 0
    }
    if (!oldest || now - oldest.sentAt < this.#timeoutMs) return false
    oldest.suspectAt ??= now
    return now - oldest.suspectAt > this.#timeoutMs / 4
  }

  /** The same error for many calls: its stack alone takes as long as a call to a node that answers. */
  #silence(now: number): NotSent {
    const known = this.#silent
    if (known && now - known.at < SAME_SILENCE_MS) return known.error
    const silentMs = Math.round(now - (this.#calls[this.#first]?.sentAt ?? now))
    const error = new NotSent(this.name, `has not answered for ${formatDuration(silentMs)}`)
    this.#silent = { error, at: now }
    return error
  }

  /** The adapter takes full key names, with what the client puts before every key of its own commands. */
  #withPrefix(keys: string[]): string[] {
    const { keyPrefix } = this.#adapter
    return keyPrefix === '' ? keys : keys.map((key) => keyPrefix + key)
  }

  /** A client that connects for the first time gets the time limit of a node for it. One that failed to connect is down. */
  #whenReady(then: () => void, done: NodeCallback<unknown>): void {
    const adapter = this.#adapter
    adapter.wake()
    let over = false
    const settle = (finish: () => void): void => {
      if (over) return
      over = true
      cancel()
      stop()
      finish()
    }
    const check = (): void => {
      if (adapter.ready()) return settle(then)
      const reason = adapter.closed() ? adapter.whyNotReady() : adapter.lastError
      if (reason !== undefined) settle(() => done(this.#down(reason)))
    }
    const cancel = this.#world.after(this.#timeoutMs, () =>
      settle(() => done(this.#down(`not connected within ${formatDuration(this.#timeoutMs)}`))),
    )
    const stop = adapter.onStateChange(check)
    check()
  }

  #down(cause: unknown): NotSent {
    const reason = cause instanceof Error ? cause.message || (cause as NodeJS.ErrnoException).code : cause
    return new NotSent(this.name, `is down: ${reason ?? 'no connection'}`, { cause })
  }
}
