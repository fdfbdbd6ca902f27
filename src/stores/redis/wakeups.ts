/**
 * The wake-ups of one store. Stores of one client that name their keys alike share one subscriber connection.
 *
 * @module
 */
import type { Adapter } from '../../clients/redis/adapter.js'
import type { LeaseId, StoreEvent, Watch } from '../../store.js'
import type { Keys } from './keys.js'
import { DEAF, SharedWakeups } from './shared-wakeups.js'
import type { WakeupsOptions } from './subscriber-connection.js'
import type { WakeupsUser } from './topic.js'

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
