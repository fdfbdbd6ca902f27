import { randomBytes } from 'node:crypto'
import { realWorld } from '../../kit/world.js'
import type { Lease, StoreEvent, Watch } from '../../store.js'
import type { Database, Listening } from './database.js'

/** An answer to our own hello that takes longer than this: do not count on events for now. */
const HELLO_MS = 1_000

/** While somebody listens, make sure every now and then that something can be heard. */
const HELLO_EVERY_MS = 10_000

/** Pause before the name of our channel is asked for again. Shorter hot-loops while the server is down. */
const RETRY_MS = 1_000

/** A token so far ahead of the clock was not granted by anybody: microseconds of a day. */
const MOST_AHEAD = 86_400_000_000n

type Listener = (event: StoreEvent) => void

/** What the wake-ups need of the store. */
export interface WakeupCalls {
  /** The name of the channel of this subscriber, which only the server can tell. */
  channelOf(subscriber: string): Promise<string>
  /** Sends `hello <n>` to that channel. */
  hello(subscriber: string, n: number): Promise<unknown>
  /** Events may have been missed meanwhile. */
  onBack(): void
}

/**
 * Passes on what LISTEN brings. Events count only once a hello of our own came through: behind PgBouncer in transaction
 * mode LISTEN succeeds and then nothing is ever heard, and a broken network looks the same.
 */
export class Wakeups {
  readonly #database: Database
  /** Where everybody hears of announced changes. */
  readonly #common: string
  readonly #timeoutMs: number
  readonly #calls: WakeupCalls
  /** What the leases and queue entries of this store carry. Grants and revocations are sent to the channel made of it, to nobody else. */
  readonly subscriber: string = randomBytes(12).toString('hex')
  readonly #listeners = new Map<string, Set<Listener>>()
  readonly #revokedListeners = new Set<(lease: Lease) => void>()

  #started = false
  #closed = false
  #listening: Listening | undefined
  #live = false
  #wasLive = false
  /** On this connection. */
  #heardBefore = false
  #hello = 0
  #cancel: (() => void) | undefined
  /** Those who wait for the first verdict on whether events arrive. Undefined once there is one. */
  #undecided: ((live: boolean) => void)[] | undefined = []

  constructor(database: Database, common: string, timeoutMs: number, calls: WakeupCalls) {
    this.#database = database
    this.#common = common
    this.#timeoutMs = timeoutMs
    this.#calls = calls
  }

  watch(key: string, listener: Listener): Watch {
    let listeners = this.#listeners.get(key)
    if (!listeners) this.#listeners.set(key, (listeners = new Set()))
    listeners.add(listener)
    return this.#begin(() => {
      listeners.delete(listener)
      if (listeners.size === 0 && this.#listeners.get(key) === listeners) this.#listeners.delete(key)
    })
  }

  watchRevoked(listener: (lease: Lease) => void): Watch {
    // A function of its own: the same listener may watch twice.
    const told = (lease: Lease): void => listener(lease)
    this.#revokedListeners.add(told)
    return this.#begin(() => void this.#revokedListeners.delete(told))
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#verdict(false)
    this.#cancel?.()
    await this.#listening?.close()
  }

  #begin(close: () => void): Watch {
    if (!this.#started) {
      this.#started = true
      // A server that is away must not keep the first one waiting for longer than a request would.
      realWorld.after(this.#timeoutMs, () => this.#settle())
      void this.#start()
    }
    const undecided = this.#undecided
    const ready = undecided ? new Promise<boolean>((resolve) => undecided.push(resolve)) : this.#live
    return { ready, live: () => this.#live, close }
  }

  async #start(): Promise<void> {
    const own = await this.#calls.channelOf(this.subscriber).catch(() => undefined)
    if (this.#closed) return
    if (own === undefined) {
      this.#cancel = realWorld.after(RETRY_MS, () => void this.#start())
      return
    }
    this.#listening = this.#database.listen(
      [this.#common, own],
      {
        heard: (payload, channel) => this.#heard(payload, channel === own),
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

  /** Says something to ourselves, the long way round: over another connection to the server, and back by the one that listens. */
  #greet(): void {
    this.#cancel?.()
    const hello = ++this.#hello
    this.#cancel = realWorld.after(this.#heardBefore ? this.#timeoutMs : HELLO_MS, () => {
      this.#verdict(false)
      this.#listening?.suspect(this.#heardBefore)
      this.#greetLater()
    })
    this.#calls.hello(this.subscriber, hello).catch(() => {})
  }

  #greetLater(): void {
    this.#cancel?.()
    this.#cancel = realWorld.after(HELLO_EVERY_MS, () => {
      if (this.#listeners.size + this.#revokedListeners.size > 0) this.#greet()
      else this.#greetLater()
    })
  }

  #heard(payload: string, own: boolean): void {
    if (own && payload.startsWith('hello ')) {
      // Also a late one: something can be heard after all.
      this.#heardBefore = true
      this.#verdict(true)
      if (payload === `hello ${this.#hello}`) this.#greetLater()
      return
    }
    const message = parse(payload)
    // Anybody may NOTIFY on the common channel.
    if (!message || (!own && message.type !== 'changed')) return
    if (message.type === 'revoked') {
      for (const listener of [...this.#revokedListeners]) listener(message.lease)
    } else for (const listener of [...(this.#listeners.get(message.key) ?? [])]) listener(message.event)
  }

  #verdict(live: boolean): void {
    const back = live && !this.#live && this.#wasLive
    this.#live = live
    this.#wasLive ||= live
    this.#settle()
    if (back) this.#calls.onBack()
  }

  #settle(): void {
    const undecided = this.#undecided
    this.#undecided = undefined
    for (const resolve of undecided ?? []) resolve(this.#live)
  }
}

type Message =
  | { type: 'granted' | 'changed'; key: string; event: StoreEvent }
  | { type: 'revoked'; lease: Lease }
  | undefined

/** A message that makes no sense is not for us. */
function parse(payload: string): Message {
  try {
    const [type, key, owner, digits, ttlMs] = JSON.parse(payload) as [string, string, string, string, number]
    if (type === 'changed') return { type, key, event: { type } }
    const token = BigInt(digits)
    if (type === 'revoked') return { type, lease: { key, owner, token } }
    if (type !== 'granted' || token > BigInt(realWorld.date()) * 1_000n + MOST_AHEAD) return undefined
    return { type, key, event: { type, owner, token, ttlMs } }
  } catch {
    return undefined
  }
}
