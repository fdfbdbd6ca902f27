import { Pool } from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { ALL, type Answer, type Claim, type LeaseId, type Renewal, type Store } from '../../../src/store.js'
import { driverOf } from '../../../src/clients/postgres/open.js'
import { migrateWith } from '../../../src/stores/postgres/migrate.js'
import { type SqlFiles, sqlFiles } from '../../../src/stores/postgres/schema.js'
import { createPostgresStore } from '../../../src/stores/postgres/store.js'

const FAST = "if v_blocked = '{}' then"
const V_FAST = 'v_fast constant boolean := true'
const slow: SqlFiles = {
  ...sqlFiles,
  acquire: sqlFiles.acquire.replace(FAST, 'if false then'),
  release: sqlFiles.release.replace(FAST, 'if false then').replace(V_FAST, 'v_fast constant boolean := false'),
  renew: sqlFiles.renew.replace(V_FAST, 'v_fast constant boolean := false'),
}
const KEYS = ['lock:a', 'lock:b', 'semaphore:c', 'lock:d']
const LAST = 'lock:last'
const ROUNDS = 400
/** Far longer than a grant, so that the state tells which leases were renewed. */
const RENEWED_MS = 600_000

let server: PostgresServer
let pool: Pool

beforeAll(async () => {
  server = await startPostgres({ settings: { synchronous_commit: 'off' } })
  pool = new Pool({ connectionString: server.url, max: 4 })
})

afterAll(async () => {
  await pool.end()
  await server.stop()
})

/** With which token a lease is released. */
type TokenGiven = 'none' | 'right' | 'wrong'

interface ChosenLease {
  key: string
  owner: string
  token: TokenGiven
}

/** One of two schemas that are asked the same. */
class Side {
  readonly store: Store
  readonly tokens: Map<string, bigint> = new Map()
  readonly granted: string[] = []
  /** By key, how many hold it. */
  readonly #holders = new Map<string, number>()
  readonly #schema: string

  constructor(schema: string, files: SqlFiles) {
    this.#schema = schema
    this.store = createPostgresStore(driverOf(pool), { schema }, files)
  }

  async listen(): Promise<void> {
    for (const key of [...KEYS, LAST]) {
      const watch = this.store.watch?.(key, (event) => {
        if (event.type === 'granted') this.granted.push(`${key} ${event.owner}`)
      })
      expect(await watch?.ready).toBe(true)
    }
  }

  async acquire(claims: Claim[]): Promise<unknown[]> {
    const answers = await this.store.acquire(claims)
    return answers.map((answer, i) => this.#seen(answer, claims[i] as Claim))
  }

  async release(leases: readonly ChosenLease[]): Promise<unknown> {
    return this.store.release(leases.map((lease) => this.#idOf(lease)))
  }

  async renew(leases: readonly ChosenLease[], terms: readonly Pick<Renewal, 'ttlMs' | 'value'>[]): Promise<unknown> {
    return this.store.renew(leases.map((lease, i) => ({ ...this.#idOf(lease), ttlMs: RENEWED_MS, ...terms[i] })))
  }

  #idOf({ key, owner, token }: ChosenLease): LeaseId {
    const last = this.tokens.get(`${key} ${owner}`) ?? 1n
    return { key, owner, token: token === 'none' ? undefined : token === 'right' ? last : last - 1n }
  }

  /** Ends the lease and the queue entry of an owner by time. */
  async expire(key: string, owner: string): Promise<void> {
    for (const table of ['leases', 'queue'])
      await pool.query(
        `update ${this.#schema}.leasehold_${table} set expires_at = now() - interval '1 s' where key = $1 and owner = $2`,
        [key, owner],
      )
  }

  async state(): Promise<unknown> {
    const leases = await pool.query(
      `select key, slot, owner, case when owner is not null then array[weight, capacity] end as share, announce and owner is not null as announce,
         value, owner is not null and expires_at < clock_timestamp() as late,
         owner is not null and expires_at > clock_timestamp() + interval '200 s' as renewed
       from ${this.#schema}.leasehold_leases order by key, slot`,
    )
    const queue = await pool.query(
      // An entry that has expired is deleted by the decision that finds it at the head, which the fast path leaves to the loop.
      `select key, owner, weight, capacity, ttl_ms, queue_ms, announce, value
       from ${this.#schema}.leasehold_queue where expires_at > clock_timestamp() order by key, arrival`,
    )
    // The tokens of hand-offs, which no answer tells.
    const held = await pool.query(
      `select key, owner, token from ${this.#schema}.leasehold_leases where owner is not null`,
    )
    this.#holders.clear()
    for (const { key, owner, token } of held.rows) {
      this.tokens.set(`${key} ${owner}`, BigInt(token))
      this.#holders.set(key, (this.#holders.get(key) ?? 0) + 1)
    }
    return { leases: leases.rows, queue: queue.rows }
  }

  #seen(answer: Answer, { key, owner, ttlMs }: Claim): unknown {
    if (answer.granted === true) {
      this.tokens.set(`${key} ${owner}`, answer.token)
      this.#holders.set(key, (this.#holders.get(key) ?? 0) + 1)
      return { granted: true, whole: answer.ttlMs === ttlMs }
    }
    if (answer.granted !== false) return answer
    const { ahead, blocker, newest } = answer
    const isNewest = blocker?.token !== undefined && newest !== undefined ? newest >= blocker.token : undefined
    // Of several that hold it, the one that ends first is named. Those that were granted it at once end together, or within
    // microseconds, where a batch does not read the clock for each.
    const isAlone = (this.#holders.get(key) ?? 0) <= 1
    const named = isAlone ? { owner: blocker?.owner, value: blocker?.value } : blocker !== undefined
    return { granted: false, ahead, blocker: named, isNewest }
  }
}

/** The same for the same seed. */
function random(seed: number): (below: number) => number {
  let state = seed
  return (below) => {
    state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x6d2b79f5) | 0
    return ((state ^ (state >>> 13)) >>> 0) % below
  }
}

/** An owner that asks again asks for the same. */
class Asks {
  readonly #asked = new Map<string, Claim>()
  readonly #pick: (below: number) => number

  constructor(pick: (below: number) => number) {
    this.#pick = pick
  }

  /** A request that is alone takes other functions than a batch, and a small batch of renewals the slow path. */
  batch(): Claim[] {
    return Array.from({ length: 1 + this.#pick(8) }, () => this.#claim())
  }

  #claim(): Claim {
    const pick = this.#pick
    const key = KEYS[pick(KEYS.length)] as string
    const owner = `o${pick(12)}`
    const counting = key === 'semaphore:c'
    let asked = this.#asked.get(`${key} ${owner}`)
    if (!asked) {
      const weight = counting || pick(2) === 0 ? 1 : ALL
      const value = pick(2) ? `"v${pick(9)}"` : undefined
      asked = { key, owner, weight, capacity: counting ? 2 : ALL, ttlMs: 60_000, value, announce: pick(6) === 0 }
      this.#asked.set(`${key} ${owner}`, asked)
    }
    return { ...asked, queueMs: pick(4) ? 30_000 : undefined, steal: pick(25) === 0 }
  }
}

test('the fast paths answer, write and send what the slow ones behind them do', async () => {
  expect(slow.acquire).not.toBe(sqlFiles.acquire)
  expect(slow.release).not.toBe(sqlFiles.release)
  for (const changed of [slow.release, slow.renew]) expect(changed).not.toContain(V_FAST)
  expect(slow.release).not.toContain(FAST)
  await migrateWith(driverOf(pool), { schema: 'fast' })
  await migrateWith(driverOf(pool), { schema: 'slow' }, slow)
  const sides = [new Side('fast', sqlFiles), new Side('slow', slow)] as const
  for (const side of sides) await side.listen()
  const seed = Math.floor(Math.random() * 2 ** 31)
  const pick = random(seed)
  const asks = new Asks(pick)
  for (let round = 0; round < ROUNDS; round++) {
    const kind = pick(10)
    const claims = asks.batch()
    const leases = claims.map(({ key, owner }) => ({
      key,
      owner,
      token: (['none', 'right', 'wrong'] as const)[pick(3)] as TokenGiven,
    }))
    const act = kind < 4 ? 'acquire' : kind < 6 ? 'renew' : 'release'
    // A renewal never shortens.
    const terms = claims.map(() => ({
      ttlMs: pick(4) ? RENEWED_MS : 1_000,
      value: pick(5) ? undefined : `"r${pick(9)}"`,
    }))
    const what = `seed ${seed}, round ${round}: ${act} ${JSON.stringify(claims)}`
    const [expired] = claims as [Claim]
    const outcomes = []
    for (const side of sides) {
      if (kind === 9) await side.expire(expired.key, expired.owner)
      const answers =
        act === 'acquire'
          ? await side.acquire(claims)
          : await (act === 'renew' ? side.renew(leases, terms) : side.release(leases))
      outcomes.push({ answers, state: await side.state() })
    }
    expect(outcomes[0], what).toEqual(outcomes[1])
  }
  for (const side of sides) {
    // The last hand-off: once it is heard of, so is everything before it.
    const last = { key: LAST, weight: ALL, capacity: ALL, ttlMs: 60_000, queueMs: 30_000 }
    await side.acquire([{ ...last, owner: 'first' }])
    await side.acquire([{ ...last, owner: 'second' }])
    await side.release([{ key: LAST, owner: 'first', token: 'right' }])
    await expect.poll(() => side.granted).toContain(`${LAST} second`)
  }
  expect(sides[0].granted.toSorted(), `seed ${seed}`).toEqual(sides[1].granted.toSorted())
  expect(sides[0].granted.length).toBeGreaterThan(10)
  for (const side of sides) await side.store.close()
})
