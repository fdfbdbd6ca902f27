import { InvalidOptionError } from '../../errors.js'
import { type Duration, milliseconds } from '../../kit/duration.js'
import { realWorld } from '../../kit/world.js'
import type { Store } from '../../store.js'
import { knownOptions } from '../../util/options.js'
import { lineFor } from './clients.js'
import { RedlockStore } from './store.js'

/** Sets of nodes are the bits of a number. */
const MOST_NODES = 31
const FEWEST_NODES = 3
/** Twice the default ttl of a lock. A server that was emptied sits out for as long, so it should not be much more. */
const DEFAULT_MAX_TTL = '1m'
export const OPTIONS: readonly string[] = ['maxTtl', 'drift', 'nodeTimeout']

export interface RedlockOptions {
  /**
   * The longest lease. Longer ones are refused, and a server that was restarted or emptied sits out this long before it
   * votes again: shorter means sooner back, longer means longer holds without a heartbeat. The same for all who use these
   * servers. Default `1m`.
   */
  maxTtl?: Duration | undefined
  /** How much faster than ours a server's clock may run, as a share of the ttl. Leases are trusted for that much less. */
  drift?: number | undefined
  /** How long one server may take to answer before the others decide without it. Small against the ttl. */
  nodeTimeout?: Duration | undefined
}

/** `onClose` ends what the store itself opened. */
export function createRedlock(
  clients: readonly unknown[],
  options: RedlockOptions,
  onClose: () => Promise<unknown>,
): Store {
  if (!Array.isArray(clients) || clients.length < FEWEST_NODES || clients.length > MOST_NODES) {
    const given = Array.isArray(clients) ? clients.length : clients
    throw new InvalidOptionError(
      'clients',
      given,
      `a list of ${FEWEST_NODES} to ${MOST_NODES} clients of independent servers`,
    )
  }
  if (new Set(clients).size < clients.length) {
    throw new InvalidOptionError('clients', clients.length, 'a client per server, and one of them is there twice')
  }
  const { maxTtl = DEFAULT_MAX_TTL, drift = 0.01, nodeTimeout = 500 } = knownOptions(options, OPTIONS)
  if (typeof drift !== 'number' || !(drift >= 0 && drift <= 0.5)) {
    throw new InvalidOptionError('drift', drift, 'a share of the ttl from 0 to 0.5')
  }
  const maxTtlMs = Math.ceil(milliseconds('maxTtl', maxTtl, { min: 10 }))
  const nodeTimeoutMs = milliseconds('nodeTimeout', nodeTimeout, { min: 1, max: maxTtlMs })
  const lines = clients.map(lineFor)
  return new RedlockStore(lines, { world: realWorld, maxTtlMs, drift, nodeTimeoutMs }, onClose)
}
