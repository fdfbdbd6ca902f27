/**
 * Small mistakes, made in a copy of the sources by replacing text. Each has to be caught: an oracle that stays silent
 * about them has shown nothing about the original either. A renewal that creates is not among them: whoever is cut off is
 * told so at once by the bell it still hears, and hardly ever renews; the conformance kit asks for that directly.
 */
export interface Mutant {
  /** The scheme of the store's URL. */
  store: string
  name: string
  /** Below src/. */
  file: string
  find: string
  replace: string
  /** The campaign in which it shows. */
  campaign: 'plain' | 'shared' | 'kill' | 'freeze' | 'break'
}

const sqlite: readonly Mutant[] = [
  {
    store: 'sqlite',
    name: 'release without an owner check',
    file: 'stores/sqlite/books.ts',
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
    file: 'stores/sqlite/books.ts',
    find: 'if (!head || head.owner === before || held + head.weight > head.capacity) return',
    replace:
      'if (!head || head.owner === before || (held >= 2 ** 31 - 1 ? 1 : held) + (head.weight === head.capacity ? 1 : head.weight) > (head.weight === head.capacity ? 1 : head.capacity)) return',
    campaign: 'shared',
  },
  {
    store: 'sqlite',
    name: 'the fence is stored with the lock',
    file: 'stores/sqlite/books.ts',
    find: 'const token = Math.max((this.lastToken as number) + 1, this.#facts.wallMicros())',
    replace: 'const token = 1',
    campaign: 'plain',
  },
]

const LUA = 'stores/redis/lua/embedded.ts'
const redis: readonly Mutant[] = [
  {
    store: 'redis',
    name: 'release without an owner check',
    file: LUA,
    find: "local known = try('GET', plain) == mine and try(",
    replace: "mine = try('GET', plain) ARGV[2] = '' local known = mine and try(",
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
    name: 'the fence is stored with the lock',
    file: LUA,
    find: "if known[1] >= token then token = string.format('%.0f', known[1] + 1) end",
    replace: "token = '1000000000000000'",
    campaign: 'plain',
  },
  {
    store: 'redis',
    name: 'the fence is stored with the lock, among readers',
    file: LUA,
    find: 'newest = math.max(last + 1, micros)',
    replace: 'newest = 1',
    campaign: 'shared',
  },
]

const SQL = 'stores/postgres/sql/embedded.ts'
const postgres: readonly Mutant[] = [
  {
    store: 'postgres',
    name: 'release without an owner check',
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
    name: 'the fence is stored with the lock',
    file: SQL,
    find: 'return greatest(p_last + 1, (date_part',
    replace: 'return least(1, (date_part',
    campaign: 'plain',
  },
]

/**
 * A connection whose loss is not told is not among these: no campaign breaks connections of a process that lives on, and
 * one that does not has nobody to tell. The tests of the store do that (test/stores/postgres-advisory/losses.test.ts).
 */
const advisory: readonly Mutant[] = [
  {
    store: 'postgres+advisory',
    name: 'the lock is taken for a transaction, as on a connection that a pooler gives away after each',
    file: 'stores/postgres-advisory/statements.ts',
    find: "const shared = how % 2 === 0 ? '_shared' : ''",
    replace:
      "const shared = how % 2 === 0 ? '_shared' : ''\n  name = name.replace('advisory_lock', 'advisory_xact_lock')",
    campaign: 'plain',
  },
  {
    store: 'postgres+advisory',
    name: 'the token is looked up instead of drawn',
    file: 'stores/postgres-advisory/sql/embedded.ts',
    find: "THEN nextval('{sequence}'::regclass) END",
    replace: "THEN pg_sequence_last_value('{sequence}'::regclass) END",
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
    name: 'what is taken away by force is unlocked, but its holder keeps it and is not told',
    file: 'stores/postgres-advisory/releasing.ts',
    find: `const cut = [...entry.holders.values()].filter((holding) => this.#book.remove(holding))
      if (cut.length > 0) onCut(cut)`,
    replace: 'const cut = [...entry.holders.values()]',
    campaign: 'break',
  },
]

const REDLOCK_LUA = 'stores/redlock/lua/embedded.ts'
/** What shows only when messages, expiry or restarts fall between the two rounds is for test/simulation/redlock. */
const redlock: readonly Mutant[] = [
  {
    store: 'redlock',
    name: 'a majority is half of the nodes',
    file: 'stores/redlock/store.ts',
    find: 'majority: Math.floor(lines.length / 2) + 1',
    replace: 'majority: Math.floor(lines.length / 2)',
    campaign: 'plain',
  },
  {
    store: 'redlock',
    name: 'release without an owner check',
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
    name: 'a writer is blind to readers',
    file: REDLOCK_LUA,
    find: 'if holder and not (reads and holder == SHARED) then return obstacle',
    replace: 'if holder and holder ~= SHARED then return obstacle',
    campaign: 'shared',
  },
  {
    store: 'redlock',
    name: 'the fence is stored with the lock',
    file: 'stores/redlock/ballot.ts',
    find: 'candidate.token = Math.max(candidate.counter + 1, candidate.micros)',
    replace: 'candidate.token = 1',
    campaign: 'plain',
  },
]

/** Mistakes that every store would show. */
const core: readonly Mutant[] = [
  {
    store: 'sqlite',
    name: 'isHeld trusts a timer instead of the clock',
    file: 'core/lease.ts',
    find: 'return !this.released && this.loss === undefined && this.engine.world.now(true) < this.deadline',
    replace: 'return !this.released && this.loss === undefined',
    campaign: 'freeze',
  },
]

export const MUTANTS: readonly Mutant[] = [...sqlite, ...redis, ...postgres, ...advisory, ...redlock, ...core]
