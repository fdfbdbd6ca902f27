import { randomBytes } from 'node:crypto'
import { realWorld } from '../../kit/world.js'
import type { StoreEvent, Watch } from '../../store.js'
import type { Database, Listening } from './database.js'

/** An answer to our own hello that takes longer than this: do not count on events for now. */
const HELLO_MS = 1_000

/** While somebody listens, make sure every now and then that something can be heard. */
const HELLO_EVERY_MS = 10_000

type Listener = (event: StoreEvent) => void

/**
 * What LISTEN brings, given to those who watch. Events count only once a hello of our own came through: behind PgBouncer
 * in transaction mode LISTEN succeeds and then nothing is ever heard, and a broken network looks the same.
 */
export class Bell {
  readonly #database: Database
  readonly #channel: string
  /** The channel that is ours alone: what we are handed, and greetings, reach nobody else. */
  readonly ear: string
  readonly #timeoutMs: number
  readonly #onBack: () => void
  readonly #listeners = new Map<string, Set<Listener>>()

  #listening: Listening | undefined
  #live = false
  #wasLive = false
  /** On this connection. */
  #heardBefore = false
  #hello = 0
  #cancelHello: (() => void) | undefined
  /** Those who wait for the first verdict on whether events arrive. Undefined once there is one. */
  #undecided: ((live: boolean) => void)[] | undefined = []

  /** `onBack`: events may have been missed meanwhile. */
  constructor(database: Database, channel: string, timeoutMs: number, onBack: () => void) {
    this.#database = database
    this.#channel = channel
    this.ear = `${channel}_${randomBytes(8).toString('hex')}`
    this.#timeoutMs = timeoutMs
    this.#onBack = onBack
  }

  watch(key: string, listener: Listener): Watch {
    let listeners = this.#listeners.get(key)
    if (!listeners) this.#listeners.set(key, (listeners = new Set()))
    listeners.add(listener)
    this.#start()
    const close = (): void => {
      listeners.delete(listener)
      if (listeners.size === 0 && this.#listeners.get(key) === listeners) this.#listeners.delete(key)
    }
    const undecided = this.#undecided
    const ready = undecided ? new Promise<boolean>((resolve) => undecided.push(resolve)) : this.#live
    return { ready, live: () => this.#live, close }
  }

  async close(): Promise<void> {
    this.#verdict(false)
    this.#cancelHello?.()
    await this.#listening?.close()
  }

  #start(): void {
    if (this.#listening) return
    // A server that is away must not keep the first one waiting for longer than a question would.
    realWorld.after(this.#timeoutMs, () => this.#settle())
    this.#listening = this.#database.listen(
      [this.#channel, this.ear],
      {
        heard: (payload) => this.#heard(payload),
        up: () => {
          // Again: it was away, and not every library says so when it goes.
          if (this.#live) this.#verdict(false)
          this.#heardBefore = false
          this.#greet()
        },
        down: () => this.#verdict(false),
      },
      this.#timeoutMs,
    )
  }

  /** Says something to ourselves, the long way round: over the pool to the server, and back by the connection that listens. */
  #greet(): void {
    this.#cancelHello?.()
    const hello = ++this.#hello
    this.#cancelHello = realWorld.after(this.#heardBefore ? this.#timeoutMs : HELLO_MS, () => {
      this.#verdict(false)
      this.#listening?.suspect(this.#heardBefore)
      this.#greetLater()
    })
    const question = `SELECT pg_notify('${this.ear}', 'hello ${hello}')::text`
    this.#database.run(question, this.#timeoutMs).catch(() => {})
  }

  #greetLater(): void {
    this.#cancelHello?.()
    this.#cancelHello = realWorld.after(HELLO_EVERY_MS, () => {
      if (this.#listeners.size > 0) this.#greet()
      else this.#greetLater()
    })
  }

  #heard(payload: string): void {
    if (payload.startsWith('hello ')) {
      // Also a late one: something can be heard after all.
      this.#heardBefore = true
      this.#verdict(true)
      if (payload === `hello ${this.#hello}`) this.#greetLater()
      return
    }
    const { key, event } = parse(payload)
    if (event) for (const listener of [...(this.#listeners.get(key) ?? [])]) listener(event)
  }

  #verdict(live: boolean): void {
    const back = live && !this.#live && this.#wasLive
    this.#live = live
    this.#wasLive ||= live
    this.#settle()
    if (back) this.#onBack()
  }

  #settle(): void {
    const undecided = this.#undecided
    this.#undecided = undefined
    for (const resolve of undecided ?? []) resolve(this.#live)
  }
}

/** Anybody may NOTIFY on any channel: what makes no sense is not for us. */
function parse(payload: string): { key: string; event?: StoreEvent } {
  try {
    const [key, type, owner, token, ttlMs] = JSON.parse(payload) as [string, string, string, string, number]
    if (type === 'granted') return { key, event: { type, owner, token: BigInt(token), ttlMs } }
    if (type === 'revoked') return { key, event: { type, owner } }
    return type === 'changed' ? { key, event: { type } } : { key }
  } catch {
    return { key: '' }
  }
}
