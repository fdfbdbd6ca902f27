import { InvalidOptionError } from '../../errors.js'
import { type Duration, milliseconds } from '../../util/duration.js'
import { knownOptions } from '../../util/options.js'
import type { Adapter } from '../../clients/redis/adapter.js'
import type { Store } from '../../store.js'
import { RedisStore, type RedisStoreSettings } from './store.js'
import { type RedisScriptSources, embedded } from './transport.js'

export interface RedisStoreOptions {
  /** Stands before every key, so that several applications share one Redis. Default: nothing, `lock:<name>`. */
  prefix?: string | undefined
  /** A call that is not answered within this time counts as unknown. Default: `2s`. */
  timeout?: Duration | undefined
  /** Lists holders who are not ours as well, found by SCAN for at most 5 % of the time. Default: true. */
  listForeign?: boolean | undefined
  /** Grants locks on a server that is evicting keys, and so may drop them without a word. Default: false. */
  allowEviction?: boolean | undefined
  /**
   * A grant counts only once so many replicas have it. If they do not acknowledge it in time, it is released, and the call
   * fails with `StoreUnavailableError`. Default: 0, replicas are not asked.
   */
  replicas?: number | undefined
  /** How long `replicas` may take to acknowledge a grant. Default: `100ms`. */
  within?: Duration | undefined
  /** Declares every key that a script may touch, for servers that insist on it. Not for a cluster. Default: false. */
  declareKeys?: boolean | undefined
}

const OPTIONS = ['prefix', 'timeout', 'listForeign', 'allowEviction', 'replicas', 'within', 'declareKeys']

function checkedOptions(options: RedisStoreOptions, { cluster }: Adapter): RedisStoreSettings {
  const {
    prefix = '',
    timeout = '2s',
    listForeign = true,
    allowEviction = false,
    replicas = 0,
    within = '100ms',
    declareKeys = false,
  } = knownOptions(options, OPTIONS)
  if (typeof prefix !== 'string' || prefix.includes('\0'))
    throw new InvalidOptionError('prefix', prefix, 'a text without NUL')
  if (!Number.isInteger(replicas) || replicas < 0)
    throw new InvalidOptionError('replicas', replicas, 'a whole number, at least 0')
  if (declareKeys && cluster)
    throw new InvalidOptionError(
      'declareKeys',
      declareKeys,
      'false on a cluster, where a slot that moves would refuse every call',
    )
  return {
    prefix,
    listForeign,
    allowEviction,
    replicas,
    declareKeys,
    timeoutMs: milliseconds('timeout', timeout, { min: 1, max: 2 ** 31 - 1 }),
    withinMs: milliseconds('within', within, { min: 1, max: 60_000 }),
  }
}

/** `sources`: other texts for the scripts, such as mutants that a test must find out. `closeClient`: for a client of our own. */
export function createRedisStore(
  adapter: Adapter,
  options: RedisStoreOptions = {},
  sources: RedisScriptSources = embedded,
  closeClient?: () => Promise<unknown>,
): Store {
  return new RedisStore(adapter, checkedOptions(options, adapter), sources, closeClient)
}
