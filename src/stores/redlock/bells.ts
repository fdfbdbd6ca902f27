/**
 * Hearing what happens to keys. Every node tells on its own; a connection per node listens, made when the first watch
 * asks for it and closed when it has been idle for a while.
 *
 * @module
 */
import type { World } from '../../kit/world.js'
import type { StoreEvent, Watch } from '../../store.js'
import type { Ear } from '../../clients/redis/adapter.js'
import type { Line } from './clients.js'
import { type Cluster, count } from './cluster.js'
import { channelOf } from './lua-node.js'

/** How long connections without any watch are kept: the next wait comes soon. */
const IDLE_MS = 10_000
const FIRST_RETRY_MS = 50
const RETRY_MS = 1_000
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
interface Channel {
  readonly key: string
  readonly listeners: Set<(event: StoreEvent) => void>
  readonly settle: Set<(live: boolean) => void>
  /** The nodes we hear it from. */
  heardFrom: number
  /** It was heard well before: what happened since may have been missed. */
  interrupted: boolean
  readonly news: Map<string, News>
  /** Those who were told that it is free and have not asked yet. */
  readonly asking: Set<() => void>
  /** How often it became free since it was ours. */
  passedOver: number
}

export class Bells {
  readonly #lines: readonly Line[]
  readonly #world: World
  /** With so many nodes heard, every majority has one of them. */
  readonly #enough: number
  readonly #majority: number
  readonly #timeoutMs: number
  readonly #usualMs: () => number
  readonly #channels = new Map<string, Channel>()
  readonly #ears: (Ear | undefined)[]
  #idle: (() => void) | undefined
  #closed = false

  /** `usualMs`: how long it takes to be answered when one asks for a lock. */
  constructor(lines: readonly Line[], { majority, world, nodeTimeoutMs }: Cluster, usualMs: () => number) {
    this.#lines = lines
    this.#usualMs = usualMs
    this.#world = world
    this.#majority = majority
    this.#enough = lines.length - majority + 1
    this.#timeoutMs = nodeTimeoutMs
    this.#ears = lines.map(() => undefined)
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    const channel = this.#channel(key)
    // A function given twice listens twice.
    const own = (event: StoreEvent): void => listener(event)
    channel.listeners.add(own)
    return {
      ready: this.#isLive(channel) || this.#settled(channel),
      live: () => this.#isLive(channel),
      close: () => {
        if (channel.listeners.delete(own) && channel.listeners.size === 0) this.#forget(channel)
      },
    }
  }

  watches(key: string): boolean {
    return this.#channels.has(key)
  }

  /** It is ours no longer: others have waited more than we have. */
  hadOurTurn(key: string): void {
    const channel = this.#channels.get(key)
    if (channel) channel.passedOver = 0
  }

  close(): void {
    this.#closed = true
    for (const channel of this.#channels.values()) this.#forget(channel)
    this.#idle?.()
    this.#hangUp()
  }

  #channel(key: string): Channel {
    const known = this.#channels.get(key)
    if (known) return known
    const channel: Channel = {
      key,
      listeners: new Set(),
      settle: new Set(),
      heardFrom: 0,
      interrupted: false,
      news: new Map(),
      asking: new Set(),
      passedOver: 0,
    }
    this.#channels.set(key, channel)
    this.#idle?.()
    this.#idle = undefined
    for (let i = 0; i < this.#lines.length; i++) this.#subscribe(i, channel)
    return channel
  }

  #isLive(channel: Channel): boolean {
    return this.#channels.get(channel.key) === channel && count(channel.heardFrom) >= this.#enough
  }

  #settled(channel: Channel): Promise<boolean> {
    return new Promise((resolve) => {
      const settle = (live: boolean): void => {
        cancel()
        channel.settle.delete(settle)
        resolve(live)
      }
      // Nobody may wait for ever for servers that say nothing.
      const cancel = this.#world.after(this.#timeoutMs, () => settle(false))
      channel.settle.add(settle)
    })
  }

  #subscribe(i: number, channel: Channel): void {
    const ear = this.#ear(i)
    const current = (): boolean => this.#channels.get(channel.key) === channel && this.#ears[i] === ear
    ear.subscribe([channelOf(channel.key)], false).then(
      () => {
        if (!current()) return
        const wasLive = this.#isLive(channel)
        channel.heardFrom |= 1 << i
        if (wasLive || !this.#isLive(channel)) return
        for (const settle of channel.settle) settle(true)
        // Whatever was told while too few were heard is lost: whoever waits had better look.
        if (channel.interrupted) this.#tell(channel, { type: 'freed' })
        channel.interrupted = false
      },
      () => {
        // The connection broke, and says so itself.
      },
    )
  }

  #ear(i: number): Ear {
    const known = this.#ears[i]
    if (known) return known
    const ear = (this.#lines[i] as Line).adapter.listen('', {
      message: (name, text) => {
        const channel = this.#channels.get(name.slice(channelOf('').length))
        if (channel) this.#hear(i, channel, text)
      },
      broken: () => {
        if (this.#ears[i] === ear) this.#lose(i)
      },
      moved: () => {},
    })
    this.#ears[i] = ear
    return ear
  }

  /** Heard again as soon as the node is there again, if anybody still watches anything. */
  #lose(i: number): void {
    this.#ears[i] = undefined
    let wasHeard = false
    for (const channel of this.#channels.values()) {
      wasHeard ||= (channel.heardFrom & (1 << i)) !== 0
      const wasLive = this.#isLive(channel)
      channel.heardFrom &= ~(1 << i)
      channel.interrupted ||= wasLive && !this.#isLive(channel)
    }
    this.#world.after(wasHeard ? FIRST_RETRY_MS : RETRY_MS, () => {
      if (this.#closed || this.#ears[i]) return
      for (const channel of this.#channels.values()) this.#subscribe(i, channel)
    })
  }

  #forget(channel: Channel): void {
    this.#channels.delete(channel.key)
    for (const ear of this.#ears) ear?.unsubscribe([channelOf(channel.key)], false)
    for (const settle of channel.settle) settle(false)
    if (this.#channels.size > 0 || this.#closed) return
    this.#idle?.()
    this.#idle = this.#world.after(IDLE_MS, () => this.#hangUp())
  }

  #hangUp(): void {
    for (const [i, ear] of this.#ears.entries()) {
      this.#ears[i] = undefined
      ear?.close()
    }
  }

  /**
   * `<listeners> freed <owner>`, or `ended` if the lease was announced; `taken <owner>`; `changed <owner> <version>`;
   * `revoked <owner>`.
   */
  #hear(i: number, channel: Channel, text: string): void {
    const [listeners = '1', type = ''] = text.split(' ', 2)
    const rest = text.slice(listeners.length + 1 + type.length)
    // Not every node knows that a lease was announced: all of them tell of the same end.
    const what = type === 'ended' ? `freed${rest}` : type + rest
    // Told with a vote, which may come to nothing: it is true when a majority says so, and not before.
    const certain = type === 'taken'
    let news = channel.news.get(what)
    if (!news) {
      news = { nodes: 0, told: false, announced: false }
      channel.news.set(what, news)
      if (!certain) this.#world.after(HEARSAY_MS, () => this.#believe(channel, what, Number(listeners)))
      this.#world.after(OLD_NEWS_MS, () => channel.news.delete(what))
    }
    news.nodes |= 1 << i
    if (type === 'ended' && !news.announced) {
      news.announced = true
      if (news.told) this.#tell(channel, { type: 'changed' })
    }
    // Told by a majority, it has happened on a majority: asking now cannot be too early, and what is taken is a lock.
    const quorum = certain ? this.#majority : Math.min(this.#majority, count(channel.heardFrom))
    if (count(news.nodes) >= quorum || type === 'revoked') this.#believe(channel, what, Number(listeners))
  }

  #believe(channel: Channel, what: string, listeners: number): void {
    const news = channel.news.get(what)
    if (!news || news.told) return
    news.told = true
    const [type] = what.split(' ', 1)
    if (type === 'revoked') this.#tell(channel, { type, owner: what.slice('revoked '.length) })
    else if (type === 'changed') this.#tell(channel, { type })
    else if (type === 'taken') for (const cancel of channel.asking) cancel()
    else if (type === 'freed') this.#free(channel, listeners, news)
  }

  /**
   * Without a line all who wait would ask at once, split the vote and go away empty. So each takes a moment of its own, a
   * sooner one the more often it went to another; and when one of them got it, the others that have not asked need not.
   */
  #free(channel: Channel, listeners: number, { announced }: News): void {
    if (announced) this.#tell(channel, { type: 'changed' })
    const others = listeners - 1
    if (others <= 0) return this.#tell(channel, { type: 'freed' })
    const spread = Math.min(others * this.#usualMs() * SPREAD, WIDEST_SPREAD_MS) / (1 + channel.passedOver / others)
    channel.passedOver++
    const delay = this.#world.random() * spread
    if (delay < AT_ONCE_MS) return this.#tell(channel, { type: 'freed' })
    const stop = this.#world.after(delay, () => {
      channel.asking.delete(cancel)
      this.#tell(channel, { type: 'freed' })
    })
    const cancel = (): void => {
      stop()
      channel.asking.delete(cancel)
    }
    channel.asking.add(cancel)
  }

  #tell(channel: Channel, event: StoreEvent): void {
    for (const listener of [...channel.listeners]) listener(event)
  }
}
