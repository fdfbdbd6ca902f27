/**
 * What happens to keys, as the nodes announce it: releases, and revocations. Every node announces on its own; what a majority
 * announces has happened.
 *
 * @module
 */
import type { World } from '../../util/world.js'
import type { LeaseId, StoreEvent, Watch } from '../../store.js'
import { type Cluster, count } from './cluster.js'
import { REVOKED, wakeupChannel } from './keys.js'
import type { NodeChannel, NodeChannels } from './node-channels.js'

/**
 * MINORITY_MS: how long the other nodes have to announce the same. After that, a release that only a minority announced wakes
 * the waiters anyway, and a revocation that only a minority announced makes the holder ask.
 */
const MINORITY_MS = 10
/** REMEMBERED_MS: how long an announcement is remembered, so that the same one of a slow node is not delivered again. */
const REMEMBERED_MS = 2_000
/** SPREAD: processes that wait for one key ask this far apart on average, as a multiple of the time that an acquisition takes. */
const SPREAD = 1
/** MAX_SPREAD_MS: the longest pause before a woken waiter asks, however many others wait. */
const MAX_SPREAD_MS = 250
/** AT_ONCE_MS: shorter pauses are skipped. A timer takes a millisecond at least, so two short ones end in the order they began. */
const AT_ONCE_MS = 0.5

/** One event, as far as nodes have announced it. */
interface Announcement {
  /** Which nodes, as a bit mask. */
  nodes: number
  delivered: boolean
  /** The lease that ended was taken with `announce`: watchers of its value want to know. */
  announced: boolean
}

const newAnnouncement = (): Announcement => ({ nodes: 0, delivered: false, announced: false })

/** One key, and all watches of it in this process. */
interface WatchedKey {
  readonly channel: NodeChannel
  readonly listeners: Set<(event: StoreEvent) => void>
  readonly announcements: Map<string, Announcement>
  /** Cancels the pauses of those that were woken and have not asked yet. */
  readonly pauses: Set<() => void>
  /** How often it became free and went to another process since this one had it. */
  passedOver: number
}

export class RedlockWakeups {
  readonly #channels: NodeChannels
  readonly #world: World
  readonly #majority: number
  readonly #usualMs: () => number
  readonly #keys = new Map<string, WatchedKey>()

  /** `usualMs`: how long an acquisition takes. */
  constructor(channels: NodeChannels, { majority, world }: Cluster, usualMs: () => number) {
    this.#channels = channels
    this.#world = world
    this.#majority = majority
    this.#usualMs = usualMs
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    const watched = this.#keys.get(key) ?? this.#open(key)
    // A function of its own: one listener given twice is called twice.
    const own = (event: StoreEvent): void => listener(event)
    watched.listeners.add(own)
    return {
      ready: watched.channel.ready(),
      live: () => watched.listeners.has(own) && watched.channel.live(),
      close: () => {
        if (!watched.listeners.delete(own) || watched.listeners.size > 0) return
        if (this.#keys.get(key) === watched) this.#keys.delete(key)
        for (const cancel of watched.pauses) cancel()
        watched.channel.close()
      },
    }
  }

  watches(key: string): boolean {
    return this.#keys.has(key)
  }

  /** This process releases the key: other waiters have waited longer than its own. */
  endTurn(key: string): void {
    const watched = this.#keys.get(key)
    if (watched) watched.passedOver = 0
  }

  #open(key: string): WatchedKey {
    const channel = this.#channels.open(wakeupChannel(key), {
      message: (node, text) => this.#handleMessage(node, watched, text),
      // Announcements were missed while too few nodes were subscribed: the waiters have to ask.
      resumed: () => this.#notify(watched, { type: 'freed' }),
    })
    const watched: WatchedKey = {
      channel,
      listeners: new Set(),
      announcements: new Map(),
      pauses: new Set(),
      passedOver: 0,
    }
    this.#keys.set(key, watched)
    return watched
  }

  /** `<subscribers> freed <owner>`, or `ended` if the lease was announced; `taken <owner>`; `changed <owner> <version>`. */
  #handleMessage(i: number, watched: WatchedKey, text: string): void {
    const [subscribers = '1', type = ''] = text.split(' ', 2)
    const rest = text.slice(subscribers.length + 1 + type.length)
    // Not every node knows that a lease was announced: `ended` and `freed` are the same event.
    const what = type === 'ended' ? `freed${rest}` : type + rest
    // `taken` is published with a vote, which may fail: it is true only when a majority announces it.
    const needsMajority = type === 'taken'
    let announcement = watched.announcements.get(what)
    if (!announcement) {
      announcement = newAnnouncement()
      watched.announcements.set(what, announcement)
      if (!needsMajority) this.#world.after(MINORITY_MS, () => this.#deliver(watched, what, Number(subscribers)))
      this.#world.after(REMEMBERED_MS, () => watched.announcements.delete(what))
    }
    announcement.nodes |= 1 << i
    if (type === 'ended' && !announcement.announced) {
      announcement.announced = true
      if (announcement.delivered) this.#notify(watched, { type: 'changed' })
    }
    // What a majority announces has happened on a majority: asking now cannot be too early, and what is taken is a lock.
    const enough = needsMajority ? this.#majority : Math.min(this.#majority, count(watched.channel.subscribed))
    if (count(announcement.nodes) >= enough) this.#deliver(watched, what, Number(subscribers))
  }

  #deliver(watched: WatchedKey, what: string, subscribers: number): void {
    const announcement = watched.announcements.get(what)
    if (!announcement || announcement.delivered) return
    announcement.delivered = true
    const [type] = what.split(' ', 1)
    if (type === 'changed') this.#notify(watched, { type })
    else if (type === 'taken') for (const cancel of watched.pauses) cancel()
    else if (type === 'freed') this.#wake(watched, subscribers, announcement)
  }

  /**
   * Without a queue all waiters would ask at once, split the vote and all be refused. So each process pauses for a random
   * time, a shorter one the more often the key went to another process; and when another process got the key meanwhile, it
   * does not ask at all.
   */
  #wake(watched: WatchedKey, subscribers: number, { announced }: Announcement): void {
    if (announced) this.#notify(watched, { type: 'changed' })
    const others = subscribers - 1
    if (others <= 0) return this.#notify(watched, { type: 'freed' })
    const spread = Math.min(others * this.#usualMs() * SPREAD, MAX_SPREAD_MS) / (1 + watched.passedOver / others)
    watched.passedOver++
    const delay = this.#world.random() * spread
    if (delay < AT_ONCE_MS) return this.#notify(watched, { type: 'freed' })
    const stop = this.#world.after(delay, () => {
      watched.pauses.delete(cancel)
      this.#notify(watched, { type: 'freed' })
    })
    const cancel = (): void => {
      stop()
      watched.pauses.delete(cancel)
    }
    watched.pauses.add(cancel)
  }

  #notify(watched: WatchedKey, event: StoreEvent): void {
    for (const listener of [...watched.listeners]) listener(event)
  }
}

/**
 * Leases that were cut off by `revoke` or a steal: one channel on every node, for all keys. A lease is lost when a majority
 * announces it. A minority may have been cut off in vain, by a steal that was refused: then the holder has to ask.
 */
export class RedlockRevocations {
  readonly #channels: NodeChannels
  readonly #world: World
  readonly #majority: number
  readonly #listeners = new Set<(lease: LeaseId) => void>()
  readonly #lossListeners = new Set<(affected: (key: string) => boolean) => void>()
  readonly #announcements = new Map<string, Announcement>()
  #channel: NodeChannel | undefined

  constructor(channels: NodeChannels, { majority, world }: Cluster) {
    this.#channels = channels
    this.#world = world
    this.#majority = majority
  }

  watch(listener: (lease: LeaseId) => void): Watch {
    // A function of its own: one listener given twice is called twice.
    const own = (lease: LeaseId): void => listener(lease)
    this.#listeners.add(own)
    const channel = (this.#channel ??= this.#channels.open(REVOKED, {
      message: (node, text) => this.#handleMessage(node, text),
      // Announcements were missed, and may concern any lease.
      resumed: () => this.#notifyPossibleLoss(() => true),
    }))
    return {
      ready: channel.ready(),
      live: () => this.#listeners.has(own) && channel.live(),
      close: () => {
        if (!this.#listeners.delete(own) || this.#listeners.size > 0) return
        this.#channel = undefined
        channel.close()
      },
    }
  }

  onPossibleLoss(listener: (affected: (key: string) => boolean) => void): () => void {
    const own = (affected: (key: string) => boolean): void => listener(affected)
    this.#lossListeners.add(own)
    return () => void this.#lossListeners.delete(own)
  }

  /** `[key, owner, …]` */
  #handleMessage(node: number, text: string): void {
    const [key, ...owners] = JSON.parse(text) as [string, ...string[]]
    const fresh: Announcement[] = []
    for (const owner of owners) {
      const id = `${owner}\0${key}`
      let announcement = this.#announcements.get(id)
      if (!announcement) {
        announcement = newAnnouncement()
        this.#announcements.set(id, announcement)
        fresh.push(announcement)
      }
      announcement.nodes |= 1 << node
      if (announcement.delivered || count(announcement.nodes) < this.#majority) continue
      announcement.delivered = true
      // Every attempt has an owner of its own: there is no other grant that a token would tell apart.
      for (const listener of [...this.#listeners]) listener({ key, owner })
    }
    if (fresh.length === 0) return
    this.#world.after(MINORITY_MS, () => {
      if (fresh.some(({ delivered }) => !delivered)) this.#notifyPossibleLoss((other) => other === key)
    })
    this.#world.after(REMEMBERED_MS, () => {
      for (const owner of owners) this.#announcements.delete(`${owner}\0${key}`)
    })
  }

  #notifyPossibleLoss(affected: (key: string) => boolean): void {
    for (const listener of [...this.#lossListeners]) listener(affected)
  }
}
