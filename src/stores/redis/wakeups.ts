/**
 * Who is woken: the watches of one store, the stores of one client that share its subscriber connections, and the way of a message
 * to its listeners.
 *
 * @module
 */
import type { Adapter } from '../../clients/redis/adapter.js'
import type { LeaseId, StoreEvent, Watch } from '../../store.js'
import { grantOf, revokedOf } from './grant-inbox.js'
import type { Keys } from './keys.js'
import type { WakeupsOptions } from './subscriber-connection.js'
import { GRANTS, REVOCATIONS, type Topic, type TopicListener, Topics, type WakeupsUser } from './topics.js'

/** REFRESH_PAUSE_MS: between two replacements of the subscriber connection. All stores of a client ask at once. */
const REFRESH_PAUSE_MS = 1_000

const DEAF: Watch = { ready: false, live: () => false, close: () => {} }

/** The watches of one store. */
export class RedisWakeups {
  readonly #wakeups: SharedWakeups
  readonly #user: WakeupsUser
  readonly #watches = new Set<Watch>()
  #closed = false

  constructor(adapter: Adapter, keys: Keys, options: WakeupsOptions, user: WakeupsUser) {
    this.#wakeups = wakeupsOf(adapter, keys, options)
    this.#user = user
    openStores.set(this.#wakeups, (openStores.get(this.#wakeups) ?? 0) + 1)
  }

  get subscriber(): string {
    return this.#wakeups.subscriber
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#closed ? DEAF : this.#keep(this.#wakeups.watch(this.#user, key, listener))
  }

  watchGrants(listener: (key: string | undefined, event: StoreEvent) => void): Watch {
    return this.#closed ? DEAF : this.#keep(this.#wakeups.watchGrants(this.#user, listener))
  }

  watchRevoked(listener: (lease: LeaseId) => void): Watch {
    return this.#closed ? DEAF : this.#keep(this.#wakeups.watchRevoked(this.#user, listener))
  }

  refresh(): void {
    if (!this.#closed) this.#wakeups.refresh()
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    for (const watch of [...this.#watches]) watch.close()
    const others = (openStores.get(this.#wakeups) ?? 1) - 1
    openStores.set(this.#wakeups, others)
    if (others === 0) this.#wakeups.close()
  }

  #keep(watch: Watch): Watch {
    const kept: Watch = {
      ready: watch.ready,
      live: watch.live,
      close: () => {
        this.#watches.delete(kept)
        watch.close()
      },
    }
    this.#watches.add(kept)
    return kept
  }
}

/** By client, and then by what has to be the same. Weak: a store that nobody closed must not live for as long as its client. */
const known = new WeakMap<object, Map<string, WeakRef<SharedWakeups>>>()

function wakeupsOf(adapter: Adapter, keys: Keys, options: WakeupsOptions): SharedWakeups {
  let ofClient = known.get(adapter.identity)
  if (!ofClient) known.set(adapter.identity, (ofClient = new Map()))
  const alike = JSON.stringify([keys.lead, options.timeoutMs, options.inbox])
  let wakeups = ofClient.get(alike)?.deref()
  if (!wakeups) ofClient.set(alike, new WeakRef((wakeups = new SharedWakeups(adapter, keys, options))))
  return wakeups
}

/** How many stores that are not closed share it. */
const openStores = new WeakMap<SharedWakeups, number>()

/**
 * The wake-ups of all stores of one client that name their keys alike. The subscriber connections (one, or on a cluster one per
 * node) are opened with the first watch, and closed when idle for a while.
 */
class SharedWakeups {
  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #timeoutMs: number
  readonly #topics: Topics
  readonly #revoked = new Set<(lease: LeaseId) => void>()
  /** Stores with something to watch, and how much. The first of them speaks for all. */
  readonly #users = new Map<WakeupsUser, number>()
  #refreshedAt = Number.NEGATIVE_INFINITY
  #refreshing: NodeJS.Timeout | undefined

  constructor(adapter: Adapter, keys: Keys, options: WakeupsOptions) {
    this.#adapter = adapter
    this.#keys = keys
    this.#timeoutMs = options.timeoutMs
    this.#topics = new Topics(adapter, keys, {
      ...options,
      user: () => this.#users.keys().next().value,
      message: (channel, text) => this.#receiveMessage(channel, text),
      grant: this.#receive,
    })
  }

  /** Where grants to waiters that ask now have to be sent. */
  get subscriber(): string {
    return this.#topics.connections.inbox?.subscriber ?? this.#keys.subscriber
  }

  watch(user: WakeupsUser, key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#join(user, this.#topics.topic(key, this.#adapter.cluster), listener)
  }

  /** Live while the inbox is open. Without an inbox each key has a channel of its own, and has to be watched by itself. */
  watchGrants(user: WakeupsUser, listener: (key: string | undefined, event: StoreEvent) => void): Watch {
    if (!this.#topics.connections.byInbox) return DEAF
    return this.#join(user, this.#topics.topic(GRANTS, false), (event, key) => listener(key, event))
  }

  watchRevoked(user: WakeupsUser, listener: (lease: LeaseId) => void): Watch {
    this.#revoked.add(listener)
    // Revocations during an interruption are lost. The core renews what it holds after every interruption anyway.
    const watch = this.#join(user, this.#topics.topic(REVOCATIONS, false), () => {})
    return {
      ready: watch.ready,
      live: watch.live,
      close: () => {
        this.#revoked.delete(listener)
        watch.close()
      },
    }
  }

  /** At once, and then at most once a second, for whichever of the stores asks. */
  refresh(): void {
    if (this.#refreshing) return
    const pauseMs = this.#refreshedAt + REFRESH_PAUSE_MS - performance.now()
    if (pauseMs > 0) {
      this.#refreshing = setTimeout(() => {
        this.#refreshing = undefined
        this.refresh()
      }, pauseMs)
      this.#refreshing.unref()
      return
    }
    this.#refreshedAt = performance.now()
    this.#topics.refresh()
  }

  /** The last store was closed. Another that comes later begins anew. */
  close(): void {
    clearTimeout(this.#refreshing)
    this.#refreshing = undefined
    this.#topics.close()
  }

  #join(user: WakeupsUser, topic: Topic, listener: TopicListener): Watch {
    topic.add(listener, user.judge)
    this.#users.set(user, (this.#users.get(user) ?? 0) + 1)
    this.#topics.attend(topic)
    let listening = true
    return {
      ready: topic.live || topic.settled(this.#timeoutMs),
      live: () => topic.live && this.#topics.byKey.get(topic.key) === topic,
      close: () => {
        if (!listening) return
        listening = false
        const others = (this.#users.get(user) ?? 1) - 1
        if (others > 0) this.#users.set(user, others)
        else this.#users.delete(user)
        if (topic.remove(listener)) this.#topics.forget(topic)
      },
    }
  }

  #receiveMessage(channel: string, text: string): void {
    if (channel === this.#keys.revocations) return this.#receiveRevoked(text)
    if (text.startsWith('granted ')) return this.#receive(text.slice('granted '.length))
    if (text === 'changed') this.#topics.byChannel.get(channel)?.tell({ type: 'changed' })
  }

  #receiveRevoked(text: string): void {
    for (const lease of revokedOf(text, (plain) => this.#keys.key(plain))) {
      for (const listener of [...this.#revoked]) {
        try {
          listener(lease)
        } catch {
          // A listener that throws must not keep the revocation from the others.
        }
      }
    }
  }

  readonly #receive = (message: string): void => {
    const grant = grantOf(message)
    const key = this.#keys.key(grant.plain)
    this.#topics.byKey.get(GRANTS)?.receive(key, grant)
    this.#topics.byKey.get(key)?.receive(key, grant)
  }
}
