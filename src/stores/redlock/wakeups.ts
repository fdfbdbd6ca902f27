/**
 * Hearing what happens to keys. Every node tells on its own; what a majority tells has happened.
 *
 * @module
 */
import type { World } from '../../kit/world.js'
import type { StoreEvent, Watch } from '../../store.js'
import { type Cluster, count } from './cluster.js'
import { wakeupChannel } from './keys.js'
import type { NodeChannel, NodeChannels } from './node-channels.js'

/** News come from each node. If so few tell that they are no majority, believe them after this. */
const HEARSAY_MS = 10
/** How long news are remembered, so that a slow node does not tell them again. */
const OLD_NEWS_MS = 2_000
/** Those who wait for the same key ask one after the other, so far apart, as a share of the time that a lock takes. */
const SPREAD = 1
const WIDEST_SPREAD_MS = 250
/** A timer takes a millisecond at least, so two who wait for less come in the order in which they heard. */
const AT_ONCE_MS = 0.5

interface News {
  /** Who told it. */
  nodes: number
  told: boolean
  /** The lease that ended was one that others look at. */
  announced: boolean
}

/** One key, and everybody in this process who watches it. */
interface WatchedKey {
  readonly channel: NodeChannel
  readonly listeners: Set<(event: StoreEvent) => void>
  readonly news: Map<string, News>
  /** Those who were told that it is free and have not asked yet. */
  readonly asking: Set<() => void>
  /** How often it became free since it was ours. */
  passedOver: number
}

export class Wakeups {
  readonly #channels: NodeChannels
  readonly #world: World
  readonly #majority: number
  readonly #usualMs: () => number
  readonly #keys = new Map<string, WatchedKey>()

  /** `usualMs`: how long it takes to be answered when one asks for a lock. */
  constructor(channels: NodeChannels, { majority, world }: Cluster, usualMs: () => number) {
    this.#channels = channels
    this.#world = world
    this.#majority = majority
    this.#usualMs = usualMs
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    const watched = this.#keys.get(key) ?? this.#open(key)
    // A function given twice listens twice.
    const own = (event: StoreEvent): void => listener(event)
    watched.listeners.add(own)
    return {
      ready: watched.channel.ready(),
      live: () => watched.listeners.has(own) && watched.channel.live(),
      close: () => {
        if (!watched.listeners.delete(own) || watched.listeners.size > 0) return
        if (this.#keys.get(key) === watched) this.#keys.delete(key)
        for (const cancel of watched.asking) cancel()
        watched.channel.close()
      },
    }
  }

  watches(key: string): boolean {
    return this.#keys.has(key)
  }

  /** It is ours no longer: others have waited more than we have. */
  hadOurTurn(key: string): void {
    const watched = this.#keys.get(key)
    if (watched) watched.passedOver = 0
  }

  #open(key: string): WatchedKey {
    const channel = this.#channels.open(wakeupChannel(key), {
      message: (node, text) => this.#hear(node, watched, text),
      // Whatever was told while too few were heard is lost: whoever waits had better look.
      resumed: () => this.#tell(watched, { type: 'freed' }),
    })
    const watched: WatchedKey = { channel, listeners: new Set(), news: new Map(), asking: new Set(), passedOver: 0 }
    this.#keys.set(key, watched)
    return watched
  }

  /** `<listeners> freed <owner>`, or `ended` if the lease was announced; `taken <owner>`; `changed <owner> <version>`. */
  #hear(i: number, watched: WatchedKey, text: string): void {
    const [listeners = '1', type = ''] = text.split(' ', 2)
    const rest = text.slice(listeners.length + 1 + type.length)
    // Not every node knows that a lease was announced: all of them tell of the same end.
    const what = type === 'ended' ? `freed${rest}` : type + rest
    // Told with a vote, which may come to nothing: it is true when a majority says so, and not before.
    const certain = type === 'taken'
    let news = watched.news.get(what)
    if (!news) {
      news = { nodes: 0, told: false, announced: false }
      watched.news.set(what, news)
      if (!certain) this.#world.after(HEARSAY_MS, () => this.#believe(watched, what, Number(listeners)))
      this.#world.after(OLD_NEWS_MS, () => watched.news.delete(what))
    }
    news.nodes |= 1 << i
    if (type === 'ended' && !news.announced) {
      news.announced = true
      if (news.told) this.#tell(watched, { type: 'changed' })
    }
    // Told by a majority, it has happened on a majority: asking now cannot be too early, and what is taken is a lock.
    const quorum = certain ? this.#majority : Math.min(this.#majority, count(watched.channel.heardFrom))
    if (count(news.nodes) >= quorum) this.#believe(watched, what, Number(listeners))
  }

  #believe(watched: WatchedKey, what: string, listeners: number): void {
    const news = watched.news.get(what)
    if (!news || news.told) return
    news.told = true
    const [type] = what.split(' ', 1)
    if (type === 'changed') this.#tell(watched, { type })
    else if (type === 'taken') for (const cancel of watched.asking) cancel()
    else if (type === 'freed') this.#free(watched, listeners, news)
  }

  /**
   * Without a queue all who wait would ask at once, split the vote and go away empty. So each takes a moment of its own, a
   * sooner one the more often it went to another; and when one of them got it, the others that have not asked need not.
   */
  #free(watched: WatchedKey, listeners: number, { announced }: News): void {
    if (announced) this.#tell(watched, { type: 'changed' })
    const others = listeners - 1
    if (others <= 0) return this.#tell(watched, { type: 'freed' })
    const spread = Math.min(others * this.#usualMs() * SPREAD, WIDEST_SPREAD_MS) / (1 + watched.passedOver / others)
    watched.passedOver++
    const delay = this.#world.random() * spread
    if (delay < AT_ONCE_MS) return this.#tell(watched, { type: 'freed' })
    const stop = this.#world.after(delay, () => {
      watched.asking.delete(cancel)
      this.#tell(watched, { type: 'freed' })
    })
    const cancel = (): void => {
      stop()
      watched.asking.delete(cancel)
    }
    watched.asking.add(cancel)
  }

  #tell(watched: WatchedKey, event: StoreEvent): void {
    for (const listener of [...watched.listeners]) listener(event)
  }
}
