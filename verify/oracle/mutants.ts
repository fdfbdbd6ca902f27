/**
 * Small defects, made in a copy of the sources by replacing text. Each has to be caught: an oracle that misses them has
 * proven nothing about the original either. A renewal that creates a lease is not among them: a revoked holder is told
 * at once through its subscription and hardly ever renews, so the conformance kit tests that directly.
 */
export interface OracleMutant {
  /** The scheme of the store's URL. */
  store: string
  name: string
  /** Below src/. */
  file: string
  find: string
  replace: string
  /** The campaign that catches it. */
  campaign: 'plain' | 'shared' | 'kill' | 'freeze' | 'break'
}

const sqlite: readonly OracleMutant[] = [
  {
    store: 'sqlite',
    name: 'a release does not check the owner',
    file: 'stores/sqlite/lease-table.ts',
    find: `const found = seen.holding > 0 ? this.#find(key, owner) : undefined
    const holder = found && (token ?? BigInt(found.token)) === BigInt(found.token) ? found : undefined
    if (holder) this.#sql.endHolder.run(key, owner)`,
    replace: `const holder = seen.holding > 0 ? { announce: 0 } : undefined
    if (holder) this.#sql.endHolders.all(key)`,
    campaign: 'freeze',
  },
  {
    store: 'sqlite',
    name: 'a lock is one of one, beside readers that are one of all',
    file: 'stores/sqlite/lease-table.ts',
    find: 'if (!head || head.owner === before || held + head.weight > head.capacity) return',
    replace:
      'if (!head || head.owner === before || (held >= 2 ** 31 - 1 ? 1 : held) + (head.weight === head.capacity ? 1 : head.weight) > (head.weight === head.capacity ? 1 : head.capacity)) return',
    campaign: 'shared',
  },
  {
    store: 'sqlite',
    name: 'the token counter is stored with the lock',
    file: 'stores/sqlite/lease-table.ts',
    find: 'const token = Math.max((this.lastToken as number) + 1, this.#context.wallMicros())',
    replace: 'const token = 1',
    campaign: 'plain',
  },
]

const LUA = 'stores/redis/lua/embedded.ts'
const redis: readonly OracleMutant[] = [
  {
    store: 'redis',
    name: 'a release does not check the owner',
    file: LUA,
    find: "local known = try('GET', plain) == mine and try(",
    replace: "mine = try('GET', plain) colon = 1 local known = mine and try(",
    campaign: 'freeze',
  },
  {
    store: 'redis',
    name: 'a lock is one of one, beside readers that are one of all',
    file: LUA,
    find: 'return held.total ~= nil and held.total + claim.weight <= claim.capacity',
    replace:
      'return (held.total or 1) + (claim.weight == ALL and 1 or claim.weight) <= (claim.weight == ALL and 1 or claim.capacity)',
    campaign: 'shared',
  },
  {
    store: 'redis',
    name: 'the token counter is stored with the lock',
    file: LUA,
    find: "if last >= token then token = string.format('%.0f', last + 1) end",
    replace: "token = '1000000000000000'",
    campaign: 'plain',
  },
  {
    store: 'redis',
    name: 'the token counter is stored with the lock, among readers',
    file: LUA,
    find: 'newest = math.max(last + 1, micros)',
    replace: 'newest = 1',
    campaign: 'shared',
  },
]

const SQL = 'stores/postgres/sql/embedded.ts'
const postgres: readonly OracleMutant[] = [
  {
    store: 'postgres',
    name: 'a release does not check the owner',
    file: SQL,
    find: 'where key = p_key and owner = p_owner and expires_at > v_now and (p_token is null or token = p_token)',
    replace: 'where key = p_key and owner is not null and expires_at > v_now',
    campaign: 'freeze',
  },
  {
    store: 'postgres',
    name: 'a lock is one of one, beside readers that are one of all',
    file: 'stores/postgres/store.ts',
    find: '      sqlInteger(weight),\n      sqlInteger(capacity),',
    replace:
      '      sqlInteger(weight === capacity ? 1 : weight),\n      sqlInteger(weight === capacity ? 1 : capacity),',
    campaign: 'shared',
  },
  {
    store: 'postgres',
    name: 'the token counter is stored with the lock',
    file: SQL,
    find: 'return greatest(p_last + 32, (date_part',
    replace: 'return least(1, (date_part',
    campaign: 'plain',
  },
]

/**
 * A connection whose loss is not reported is not among these: no campaign breaks connections of a process that
 * survives, and a dead process has no caller to report to. The tests of the store do that
 * (test/stores/postgres-advisory/losses.test.ts).
 */
const advisory: readonly OracleMutant[] = [
  {
    store: 'postgres+advisory',
    name: 'the lock is held for a transaction, as on a connection that a pooler passes on after each one',
    file: 'stores/postgres-advisory/statements.ts',
    find: "const shared = mode % 2 === 0 ? '_shared' : ''",
    replace:
      "const shared = mode % 2 === 0 ? '_shared' : ''\n  name = name.replace('advisory_lock', 'advisory_xact_lock')",
    campaign: 'plain',
  },
  {
    store: 'postgres+advisory',
    name: 'the token is looked up instead of drawn',
    file: 'stores/postgres-advisory/statements.ts',
    find: "THEN nextval('${literal}'::regclass) END",
    replace: "THEN pg_sequence_last_value('${literal}'::regclass) END",
    campaign: 'plain',
  },
  {
    store: 'postgres+advisory',
    name: 'readers and writers lock different numbers',
    file: 'stores/postgres-advisory/statements.ts',
    find: '`${name}${shared}($1::bigint)`',
    replace: "`${name}${shared}($1::bigint${shared && ' + 1'})`",
    campaign: 'shared',
  },
  {
    store: 'postgres+advisory',
    name: 'a revoked lock is unlocked, but its holder keeps it and is not told',
    file: 'stores/postgres-advisory/releasing.ts',
    find: `const removed = [...lock.holders.values()].filter((holding) => this.#heldLocks.remove(holding))
      if (removed.length > 0) onRemoved(removed)`,
    replace: 'const removed = [...lock.holders.values()]',
    campaign: 'break',
  },
]

const REDLOCK_LUA = 'stores/redlock/lua/embedded.ts'
/** Defects that show only when messages, expiry or restarts fall between the two rounds are for verify/simulation/redlock. */
const redlock: readonly OracleMutant[] = [
  {
    store: 'redlock',
    name: 'a majority is half of the nodes',
    file: 'stores/redlock/store.ts',
    find: 'majority: Math.floor(connections.length / 2) + 1',
    replace: 'majority: Math.floor(connections.length / 2)',
    campaign: 'plain',
  },
  {
    store: 'redlock',
    name: 'a release does not check the owner',
    file: REDLOCK_LUA,
    find: 'if mine ~= ARGV[i + 1] or seen[plain] then',
    replace: 'if not mine or seen[plain] then',
    campaign: 'freeze',
  },
  {
    store: 'redlock',
    name: 'a lease is trusted for longer than its ttl',
    file: 'stores/redlock/cluster.ts',
    find: 'return ttlMs - (ttlMs * drift + 2)',
    replace: 'return ttlMs * 2 + drift',
    campaign: 'freeze',
  },
  {
    store: 'redlock',
    name: 'a writer ignores readers',
    file: REDLOCK_LUA,
    find: 'if holder and not (reads and holder == SHARED) then return refusal',
    replace: 'if holder and holder ~= SHARED then return refusal',
    campaign: 'shared',
  },
  {
    store: 'redlock',
    name: 'the token counter is stored with the lock',
    file: 'stores/redlock/ballot.ts',
    find: 'attempt.token = Math.max(attempt.counter + 1, attempt.micros)',
    replace: 'attempt.token = 1',
    campaign: 'plain',
  },
]

const etcd: readonly OracleMutant[] = [
  {
    store: 'etcd',
    name: 'a grant is trusted for longer than its lease',
    file: 'stores/etcd/acquire.ts',
    find: 'const ttlMs = Math.min(claim.ttlMs, lease.validUntil - startedAt)',
    replace: 'const ttlMs = 60_000',
    campaign: 'freeze',
  },
  {
    store: 'etcd',
    name: 'a lock is one of one, beside readers that are one of all',
    file: 'stores/etcd/directory.ts',
    find: 'if (isHeld(entry)) free -= (entry.record as EtcdRecord).weight',
    replace: 'if (isHeld(entry)) free -= 1',
    campaign: 'shared',
  },
  {
    store: 'etcd',
    name: 'the token does not grow with the revision',
    file: 'stores/etcd/tokens.ts',
    find: 'return this.#value + BigInt(revision)',
    replace: 'return this.#value + BigInt(Math.min(revision, 1))',
    campaign: 'plain',
  },
  {
    store: 'etcd',
    name: 'the transaction of a grant does not compare what was read',
    file: 'stores/etcd/attempt.ts',
    find: "{ ...directory, is: '=', create: 0 }",
    replace: '',
    campaign: 'plain',
  },
]

/** Defects that every store would show. */
const core: readonly OracleMutant[] = [
  {
    store: 'sqlite',
    name: 'isHeld trusts a timer instead of the clock',
    file: 'core/lease.ts',
    find: 'return !this.released && this.loss === undefined && this.host.world.now(true) < this.deadline',
    replace: 'return !this.released && this.loss === undefined',
    campaign: 'freeze',
  },
]

export const MUTANTS: readonly OracleMutant[] = [
  ...sqlite,
  ...redis,
  ...postgres,
  ...advisory,
  ...redlock,
  ...etcd,
  ...core,
]
