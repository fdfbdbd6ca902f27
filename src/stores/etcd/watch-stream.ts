/**
 * All subscriptions of a store object over one watch stream. After an interruption each goes on at the revision where it stopped, at
 * another server if need be, so that no event is missed.
 *
 * @module
 */
import type { Cancel, World } from '../../util/world.js'
import type { DuplexCall } from './connection.js'
import type { EtcdClient } from './client.js'
import {
  decodeWatch,
  encodeWatchCancel,
  encodeWatchCreate,
  type KeyRange,
  type WatchEvent,
  type WatchMessage,
} from './messages.js'

/** Pause after the stream broke, doubled up to LONGEST_PAUSE_MS. Shorter would hot-loop while no server answers. */
const FIRST_PAUSE_MS = 20
const LONGEST_PAUSE_MS = 1_000
/** After so much silence a server is asked for a sign of life while somebody waits for events: a frozen one sends none. */
const PROBE_MS = 1_000
/** The same if nobody waits: a process that only holds locks would be woken each second for nothing, and its heartbeats find out too. */
const IDLE_PROBE_MS = 3_000

export interface WatchTarget extends KeyRange {
  /** The first revision of interest. Absent: from now on. */
  from?: number | undefined
  deletesOnly?: boolean | undefined
  withPrevious?: boolean | undefined
  /** Nobody waits for its events. */
  isIdle?: boolean | undefined
  onEvent: (event: WatchEvent) => void
  /** Events may have been missed, because etcd has compacted them away. */
  onGap: () => void
  /**
   * With it the watch begins now instead of at `from`, and this is called if something was written to the cluster in between. etcd
   * looks only ten times a second after watches that begin in the past: on a busy cluster each wake-up would be 50 ms late.
   */
  onMissed?: (() => void) | undefined
}

class Subscription {
  readonly target: WatchTarget
  id: number
  next: number
  created = false
  /** It was asked for once: from then on it goes on where it stopped. */
  begun = false
  readonly ready: Promise<boolean>
  settle!: (live: boolean) => void

  constructor(target: WatchTarget, id: number) {
    this.target = target
    this.id = id
    this.next = target.from ?? 0
    this.ready = new Promise((resolve) => {
      this.settle = resolve
    })
  }
}

/** One subscription of the stream. */
export interface StreamWatch {
  ready: Promise<boolean>
  live: () => boolean
  close: () => void
}

export class WatchStream {
  readonly #client: EtcdClient
  readonly #world: World
  readonly #subscriptions = new Map<number, Subscription>()
  #call: DuplexCall | undefined
  #opening = false
  #lastId = 0
  #pauseMs = FIRST_PAUSE_MS
  #retry: Cancel | undefined
  #probe: Cancel | undefined
  #probeAt = 0
  #closed = false
  #whenOpen: ((open: boolean) => void)[] = []

  constructor(client: EtcdClient, world: World) {
    this.#client = client
    this.#world = world
  }

  /** Whether the attempt to open it that is under way, or begins now, works. */
  whenOpen(): Promise<boolean> | true {
    if (this.#call) return true
    if (this.#closed) return Promise.resolve(false)
    this.start()
    return new Promise((resolve) => this.#whenOpen.push(resolve))
  }

  #settleOpen(open: boolean): void {
    const waiting = this.#whenOpen
    this.#whenOpen = []
    for (const resolve of waiting) resolve(open)
  }

  /** Whether the stream is open: events arrive, or will, without a gap. */
  get isOpen(): boolean {
    return this.#call !== undefined
  }

  open(target: WatchTarget): StreamWatch {
    const subscription = new Subscription(target, ++this.#lastId)
    if (this.#closed) subscription.settle(false)
    else this.#subscriptions.set(subscription.id, subscription)
    if (this.#call) this.#create(subscription)
    else this.start()
    if (this.#probe && !target.isIdle && this.#probeAt - this.#world.now() > PROBE_MS) this.#probeIn(PROBE_MS)
    return {
      ready: subscription.ready,
      live: () => subscription.created && this.isOpen,
      close: () => {
        subscription.settle(false)
        if (!this.#subscriptions.delete(subscription.id)) return
        this.#call?.send(encodeWatchCancel(subscription.id))
      },
    }
  }

  /** Opens the stream before there is anything to watch. */
  start(): void {
    if (this.#call || this.#opening || this.#retry || this.#closed) return
    this.#opening = true
    let over = false
    let answered = false
    const closed = (): void => {
      if (over) return
      over = true
      this.#opening = false
      this.#broken(answered)
    }
    const message = (bytes: Buffer): void => {
      if (over) return
      answered = true
      this.#received(bytes)
    }
    this.#client.openWatch(message, closed).then((call) => {
      this.#opening = false
      if (over) return
      if (this.#closed) return call.close()
      this.#call = call
      this.#settleOpen(true)
      for (const subscription of this.#subscriptions.values()) this.#create(subscription)
      this.#probeIn(PROBE_MS)
    }, closed)
  }

  #create(subscription: Subscription): void {
    const { target, id, next, begun } = subscription
    const { key, end, deletesOnly, withPrevious } = target
    const startRevision = begun || !target.onMissed ? next : 0
    subscription.begun = true
    this.#call?.send(encodeWatchCreate({ key, end, watchId: id, startRevision, deletesOnly, withPrevious }))
    // From a known revision on nothing is missed, whenever the server begins.
    if (startRevision > 0) this.#became(subscription)
  }

  /** The server watches from this revision on, unless it was told where to begin: what came before is on its way then. */
  #began(subscription: Subscription, from: number): void {
    const { next, target, created } = subscription
    if (created) return from < next ? this.#beginEarlier(subscription, from) : undefined
    subscription.next = Math.max(next, from)
    this.#became(subscription)
    if (next > 0 && from > next) target.onMissed?.()
  }

  /**
   * The server has not reached the revision where the subscription goes on: it is behind the others, or the cluster lost its data and
   * counts anew, and would send nothing until it has counted as far. Under another id, because the answer to the cancellation carries
   * the old one.
   */
  #beginEarlier(subscription: Subscription, from: number): void {
    this.#call?.send(encodeWatchCancel(subscription.id))
    this.#subscriptions.delete(subscription.id)
    subscription.id = ++this.#lastId
    this.#subscriptions.set(subscription.id, subscription)
    subscription.next = from
    this.#create(subscription)
    subscription.target.onGap()
  }

  #became(subscription: Subscription): void {
    subscription.created = true
    subscription.settle(true)
  }

  #received(bytes: Buffer): void {
    let message: WatchMessage
    try {
      message = decodeWatch(bytes)
    } catch {
      // Thrown from here, it would end the process. What follows could not be trusted either: it goes on elsewhere.
      return this.#reconnect()
    }
    const subscription = this.#subscriptions.get(message.watchId)
    if (!subscription) {
      // From 3.5 on a watch is refused under the id -1: which one it was is not told, so all begin anew.
      if (message.created && message.canceled) this.#refused(message.cancelReason)
      return
    }
    if (message.canceled) return this.#canceled(subscription, message.compactRevision, message.cancelReason)
    this.#pauseMs = FIRST_PAUSE_MS
    if (message.created) this.#began(subscription, message.header.revision + 1)
    for (const event of message.events) {
      if (event.kv.modRevision < subscription.next) continue
      if (!this.#subscriptions.has(subscription.id)) return
      subscription.target.onEvent(event)
    }
    const last = message.events.at(-1)
    if (last) subscription.next = Math.max(subscription.next, last.kv.modRevision + 1)
  }

  #canceled(subscription: Subscription, compactRevision: number, reason: string): void {
    if (compactRevision > 0) {
      subscription.next = compactRevision
      this.#create(subscription)
      subscription.target.onGap()
      return
    }
    this.#refused(reason)
  }

  /** A token that expired, or a server that lost its leader: all begin anew. */
  #refused(reason: string): void {
    this.#client.refusedWatch(reason)
    this.#reconnect()
  }

  #reconnect(): void {
    const call = this.#call
    if (!call) return
    this.#call = undefined
    call.close()
    this.#broken(false)
  }

  #broken(answered: boolean): void {
    this.#call = undefined
    this.#settleOpen(false)
    this.#probe?.()
    this.#probe = undefined
    for (const subscription of this.#subscriptions.values()) subscription.created = false
    if (this.#closed) return
    this.#pauseMs = answered ? FIRST_PAUSE_MS : Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS)
    this.#retry = this.#world.after(this.#pauseMs, () => {
      this.#retry = undefined
      this.start()
    })
  }

  #probeIn(ms: number): void {
    this.#probe?.()
    this.#probeAt = this.#world.now() + ms
    this.#probe = this.#world.after(ms, () => this.#probeIfSilent())
  }

  #probeIfSilent(): void {
    this.#probe = undefined
    const call = this.#call
    if (!call) return
    const limitMs = this.#isWaitedFor() ? PROBE_MS : IDLE_PROBE_MS
    const silentMs = call.silentMs?.() ?? 0
    if (silentMs >= limitMs && this.#subscriptions.size > 0) call.probe?.()
    this.#probeIn(silentMs < limitMs ? limitMs - silentMs : limitMs)
  }

  #isWaitedFor(): boolean {
    for (const { target } of this.#subscriptions.values()) if (!target.isIdle) return true
    return false
  }

  close(): void {
    this.#closed = true
    this.#retry?.()
    this.#probe?.()
    this.#call?.close()
    this.#call = undefined
    this.#settleOpen(false)
    for (const subscription of this.#subscriptions.values()) subscription.settle(false)
    this.#subscriptions.clear()
  }
}
