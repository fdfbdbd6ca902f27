import { randomBytes } from 'node:crypto'
import { realWorld } from '../../util/world.js'
import type { LeaseId, StoreEvent, Watch } from '../../store.js'
import type { PostgresDriver, NotificationListener } from '../../clients/postgres/driver.js'
import { RESERVED_TOKENS } from './codec.js'

/**
 * Bounds how long the first probe of a connection may take from the server's answer to its arrival, in milliseconds. Longer, and
 * waiters poll instead of relying on events.
 */
const PROBE_MS = 1_000

/**
 * Longest silence on the listening connection while a key is watched, in milliseconds, before a probe is sent: a connection that
 * broke is noticed within that time. The pauses of the stores differ by a fifth, so that one of them probes for all.
 */
const PROBE_EVERY_MS = 10_000

/** Pause in milliseconds before the name of the channel is asked for again. Shorter hot-loops while the server is down. */
const RETRY_MS = 1_000

/** A token further ahead of the clock than this was forged: microseconds of a day. */
const MAX_AHEAD_MICROS = 86_400_000_000n

type KeyListener = (event: StoreEvent) => void

/** What the wake-ups need of the store. */
export interface WakeupHost {
  /** The name of the channel of this subscriber, which the server derives from its secret. */
  channelOf(subscriber: string): Promise<string>
  /** Sends `probe <n>` to the channel of this subscriber; without one, to the channel of all stores. */
  probe(subscriber: string | undefined, n: number): Promise<unknown>
  /** Called when events arrive again: some may have been missed meanwhile. */
  onBack(): void
}

/**
 * Passes notifications on to watchers. The store relies on them only once a probe of its own has arrived: behind PgBouncer in
 * transaction mode LISTEN succeeds and then nothing ever arrives, and a broken network looks the same.
 */
export class PostgresWakeups {
  readonly #driver: PostgresDriver
  /** The channel on which changes are announced to all stores. */
  readonly #common: string
  readonly #timeoutMs: number
  readonly #host: WakeupHost
  readonly #probeEveryMs: number
  /** Written into the leases and queue entries of this store. Grants and revocations are sent to the channel derived from it, and to no other. */
  readonly subscriber: string = randomBytes(12).toString('hex')
  readonly #listeners = new Map<string, Set<KeyListener>>()
  readonly #revokedListeners = new Set<(lease: LeaseId) => void>()

  /** Set while a connection listens, or is about to: another object each time. */
  #round: object | undefined
  #closed = false
  #listening: NotificationListener | undefined
  /** Settles when the connections of before have ended. */
  #rested: Promise<unknown> = Promise.resolve()
  #live = false
  #wasLive = false
  /** A probe has arrived on the connection as it is now. */
  #probeArrived = false
  #probe = 0
  /** When the last notification arrived, from any store. */
  #arrivedAt = 0
  #cancel: (() => void) | undefined
  /** Watches that await the first verdict on whether events arrive. Undefined once there is one. */
  #undecided: ((live: boolean) => void)[] | undefined = []

  /** `probeEveryMs`: another than the default only in tests. */
  constructor(
    driver: PostgresDriver,
    common: string,
    timeoutMs: number,
    host: WakeupHost,
    probeEveryMs: number = PROBE_EVERY_MS,
  ) {
    this.#driver = driver
    this.#common = common
    this.#timeoutMs = timeoutMs
    this.#host = host
    this.#probeEveryMs = probeEveryMs
  }

  watch(key: string, listener: KeyListener): Watch {
    let listeners = this.#listeners.get(key)
    if (!listeners) this.#listeners.set(key, (listeners = new Set()))
    listeners.add(listener)
    return this.#begin(() => {
      listeners.delete(listener)
      if (listeners.size === 0 && this.#listeners.get(key) === listeners) this.#listeners.delete(key)
    })
  }

  watchRevoked(listener: (lease: LeaseId) => void): Watch {
    // A new function each time: the same listener may watch twice.
    const passOn = (lease: LeaseId): void => listener(lease)
    this.#revokedListeners.add(passOn)
    return this.#begin(() => void this.#revokedListeners.delete(passOn))
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#end()
    await this.#rested
  }

  /** Ends the listening connection, until the next watch. */
  rest(): void {
    if (!this.#round || this.#isWatched()) return
    this.#end()
    this.#wasLive = false
    this.#undecided = []
  }

  #end(): void {
    this.#verdict(false)
    this.#cancel?.()
    // The answer to a probe that is under way says nothing of the next connection.
    this.#probe++
    this.#round = undefined
    const listening = this.#listening
    this.#listening = undefined
    if (listening) this.#rested = Promise.all([this.#rested, listening.close()])
  }

  #begin(close: () => void): Watch {
    if (!this.#round && !this.#closed) {
      const round = {}
      this.#round = round
      // A server that is away must not keep the first watch waiting for longer than a request would.
      realWorld.after(this.#timeoutMs, () => {
        if (this.#round === round) this.#settle()
      })
      void this.#start(round)
    }
    const undecided = this.#undecided
    const ready = undecided ? new Promise<boolean>((resolve) => undecided.push(resolve)) : this.#live
    return { ready, live: () => this.#live, close }
  }

  async #start(round: object): Promise<void> {
    const own = await this.#host.channelOf(this.subscriber).catch(() => undefined)
    if (this.#round !== round) return
    if (own === undefined) {
      this.#cancel = realWorld.after(RETRY_MS, () => void this.#start(round))
      return
    }
    this.#listening = this.#driver.listen(
      [this.#common, own],
      {
        onNotification: (payload, channel) => this.#onNotification(payload, channel === own),
        onListening: () => {
          // A second call means that the connection was lost: postgres.js does not report it by itself.
          if (this.#live) this.#verdict(false)
          this.#probeArrived = false
          this.#sendProbe()
        },
        onConnectionLost: () => this.#verdict(false),
      },
      this.#timeoutMs,
    )
  }

  /**
   * Sends a probe over another connection to the server, which sends it back over the listening one. The first goes to the channel of
   * this store. Later ones go to that of all stores, each of which is thereby spared its own: a probe wakes every connection
   * that listens, and hundreds of stores that probe by themselves keep half a core busy with it.
   */
  #sendProbe(): void {
    this.#cancel?.()
    const probe = ++this.#probe
    const sentAt = realWorld.now()
    const again = this.#probeArrived
    const retry = (): void => {
      this.#verdict(false)
      this.#cancel = realWorld.after(RETRY_MS, () => (this.#isWatched() ? this.#sendProbe() : this.#probeLater()))
    }
    const silent = (): void => {
      if (again && this.#arrivedAt >= sentAt) return this.#probeLater()
      this.#verdict(false)
      this.#listening?.reportSilence(this.#probeArrived)
      this.#probeLater()
    }
    const within = (ms: number, otherwise: () => void): void => {
      // Another probe, or an arrival, has replaced the timer of this one.
      if (this.#closed || this.#probe !== probe) return
      this.#cancel?.()
      this.#cancel = realWorld.after(ms, otherwise)
    }
    // A server that is slow to take the probe has not shown that the listening connection is silent.
    this.#cancel = realWorld.after(this.#timeoutMs, retry)
    this.#host.probe(again ? undefined : this.subscriber, probe).then(
      () => within(again ? this.#timeoutMs : PROBE_MS, silent),
      () => within(RETRY_MS, retry),
    )
  }

  #probeLater(): void {
    this.#cancel?.()
    const pauseMs = this.#probeEveryMs * (0.8 + 0.2 * realWorld.random())
    const wait = (ms: number): void => {
      this.#cancel = realWorld.after(ms, () => {
        const silentMs = realWorld.now() - this.#arrivedAt
        // Not live: only a probe shows that notifications arrive again.
        if (this.#live && silentMs < pauseMs) wait(pauseMs - silentMs)
        else if (this.#isWatched()) this.#sendProbe()
        else this.#probeLater()
      })
    }
    wait(pauseMs)
  }

  #isWatched(): boolean {
    return this.#listeners.size + this.#revokedListeners.size > 0
  }

  #onNotification(payload: string, own: boolean): void {
    this.#arrivedAt = realWorld.now()
    if (payload.startsWith('probe ')) {
      // A late probe counts too: notifications do arrive. One to all stores proves nothing before one of our own has arrived.
      this.#probeArrived ||= own
      if (this.#probeArrived) {
        this.#probe++
        this.#verdict(true)
        this.#probeLater()
      }
      return
    }
    const message = parse(payload)
    // Any role may NOTIFY on the common channel, so grants and revocations there are forged.
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
    if (back) this.#host.onBack()
  }

  #settle(): void {
    const undecided = this.#undecided
    this.#undecided = undefined
    for (const resolve of undecided ?? []) resolve(this.#live)
  }
}

type NotifyMessage =
  | { type: 'granted' | 'changed'; key: string; event: StoreEvent }
  | { type: 'revoked'; lease: LeaseId }
  | undefined

/** Undefined for a payload that leasehold did not send. */
function parse(payload: string): NotifyMessage {
  try {
    const [type, key, owner, digits, ttlMs] = JSON.parse(payload) as [string, string, string, string, number]
    if (type === 'changed') return { type, key, event: { type } }
    const token = BigInt(digits)
    if (type === 'revoked') return { type, lease: { key, owner, token } }
    if (type !== 'granted' || token > BigInt(realWorld.date()) * 1_000n + MAX_AHEAD_MICROS) return undefined
    return { type, key, event: { type, owner, token, ttlMs, tokens: RESERVED_TOKENS } }
  } catch {
    return undefined
  }
}
