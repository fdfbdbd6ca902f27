import type { World } from '../../util/world.js'
import type { EtcdClient } from './client.js'
import type { EtcdKeys } from './keys.js'
import type { EtcdLeases } from './leases.js'
import type { TokenOffset } from './tokens.js'
import type { TrackedEntries } from './tracked.js'
import type { QueueWatches } from './queue-watches.js'

/** What acquiring, renewing and releasing share. */
export interface EtcdContext {
  readonly client: EtcdClient
  readonly keys: EtcdKeys
  readonly world: World
  readonly offset: TokenOffset
  readonly leases: EtcdLeases
  readonly tracked: TrackedEntries
  readonly queue: QueueWatches
  /** This store object among all others. */
  readonly session: string
  /** How long one call may take, all attempts included. */
  readonly limitMs: number
  nextAttempt(): number
}
