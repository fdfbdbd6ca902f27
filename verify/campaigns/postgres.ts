// The lease table: processes with kills, failover, kill -9, isolation levels.
import { Pool } from 'pg'
import { ALL, type Claim, type Store } from '../../src/store.js'
import { migrate } from '../../src/stores/postgres/index.js'
import { contend } from '../../testbed/postgres/history.js'
import { storeAt } from '../../testbed/postgres/fixture.js'
import { type PostgresServer, startPgBouncer, startPostgres, startStandby } from '../../testbed/servers/index.js'
import type { Proving } from './proving.js'

export default async function prove(p: Proving): Promise<void> {
  await processes(p)
  await isolation(p)
  await crashes(p)
  await failovers(p)
}

export async function prepared(server: PostgresServer): Promise<void> {
  const pool = new Pool({ connectionString: server.url, max: 1 })
  await migrate(pool)
  await pool.end()
}

/** 8 processes × 500 acquisitions of 20 names with random kills; half of them with each library; some behind PgBouncer. */
async function processes(p: Proving): Promise<void> {
  const server = await startPostgres()
  const bouncer = await startPgBouncer({ postgres: server, mode: 'transaction' })
  await prepared(server)
  const contest = { names: 20, seed: p.seed, withinMs: 300_000, acquisitions: 4_000 }
  for (const [label, urls] of [
    ['direct', Array.from({ length: 8 }, () => server.url)],
    ['half of them behind PgBouncer', Array.from({ length: 8 }, (_, i) => (i % 2 ? server : bouncer).url)],
  ] as const) {
    const history = await contend({
      ...contest,
      urls,
      libraries: ['pg', 'pg', 'postgres.js', 'postgres.js'],
      killEvery: 150,
    })
    const figures = `${history.acquisitions} acquisitions, ${history.kills} kills, ${history.lost} noticed losses, ${history.violations.length} violations`
    for (const violation of history.violations.slice(0, 10)) p.say(violation)
    p.check(
      `8 processes, 20 names, random kills (${label}): the history is clean`,
      history.violations.length === 0,
      figures,
    )
  }
  await bouncer.stop()
  await server.stop()
}

/** Rounds in which several ask for one name at once: exactly one may get it. */
export async function contestRounds(
  stores: Store[],
  rounds: number,
  key: string,
): Promise<{ several: number; none: number; failed: number }> {
  const seen = { several: 0, none: 0, failed: 0 }
  for (let round = 0; round < rounds; round++) {
    const claim = (i: number): Claim => ({
      key: `${key}:${round}`,
      owner: `${i}`,
      weight: ALL,
      capacity: ALL,
      ttlMs: 60_000,
    })
    const answers = await Promise.allSettled(stores.map(async (store, i) => store.acquire([claim(i)])))
    const granted = answers.filter(
      (answer) => answer.status === 'fulfilled' && answer.value[0]?.granted === true,
    ).length
    if (granted > 1) seen.several++
    if (granted === 0) seen.none++
    seen.failed += answers.filter((answer) => answer.status === 'rejected').length
  }
  return seen
}

async function isolation(p: Proving): Promise<void> {
  for (const level of ['read committed', 'repeatable read', 'serializable']) {
    const server = await startPostgres({
      settings: { default_transaction_isolation: `'${level}'`.replaceAll("'", '') },
    })
    await prepared(server)
    const stores = Array.from({ length: 8 }, (_, i) => storeAt(i % 2 ? 'pg' : 'postgres.js', server.url, { max: 1 }))
    const { several, none, failed } = await contestRounds(stores, 200, 'lock:round')
    p.check(
      `default ${level}: one holder in every round`,
      several + none + failed === 0,
      `200 rounds of 8: ${several} with several, ${none} with none, ${failed} calls failed`,
    )
    for (const store of stores) await store.close()
    await server.stop()
  }
}

async function crashes(p: Proving): Promise<void> {
  for (const commit of ['on', 'off']) {
    const server = await startPostgres({ settings: { synchronous_commit: commit } })
    await prepared(server)
    const seen = { repeats: 0, tokens: 0, kills: 0 }
    const last = new Map<string, bigint>()
    const deadline = performance.now() + p.seconds * 150
    while (seen.kills < 3 || performance.now() < deadline) {
      const load = new Load(server.url, 20, last)
      await load.run(1_000)
      await server.kill()
      await load.end()
      seen.kills++
      seen.repeats += load.repeats
      seen.tokens += load.grants
      await server.restart()
    }
    p.check(
      `kill -9 of the server, synchronous_commit ${commit}: tokens never repeat`,
      seen.repeats === 0,
      `${seen.kills} kills, ${seen.tokens} tokens, ${seen.repeats} not larger than the one before`,
    )
    await server.stop()
  }
}

/** Takes and releases names as fast as it can, and remembers the answers. */
export class Load {
  readonly held: Map<string, { owner: string; token: bigint }> = new Map()
  readonly last: Map<string, bigint>
  grants = 0
  repeats = 0
  readonly #stores: Store[]
  readonly #names: number
  readonly #work: Promise<void>[]
  #over = false

  constructor(url: string, names: number, last: Map<string, bigint> = new Map()) {
    this.#names = names
    this.last = last
    this.#stores = Array.from({ length: 4 }, () => storeAt('pg', url, { max: 1, timeout: '1s', listen: false }))
    this.#work = this.#stores.map((store, i) => this.#loop(store, i))
  }

  /** Settled when so many were granted. */
  async run(grants: number): Promise<void> {
    while (this.grants < grants) await new Promise((resolve) => setTimeout(resolve, 5))
  }

  async #loop(store: Store, worker: number): Promise<void> {
    for (let i = 0; !this.#over; i++) {
      // Each worker has names of its own, so that its last answer is the one that counts.
      const key = `lock:load:${worker}:${i % this.#names}`
      const owner = `${worker}/${i}/${process.pid}/${performance.now()}`
      try {
        const held = this.held.get(key)
        if (held) {
          // Asked to be released: from here on it may be either.
          this.held.delete(key)
          await store.release([{ key, owner: held.owner }])
        }
        const [answer] = await store.acquire([{ key, owner, weight: ALL, capacity: ALL, ttlMs: 600_000, steal: true }])
        if (answer?.granted !== true) continue
        this.grants++
        if (answer.token <= (this.last.get(key) ?? 0n)) this.repeats++
        this.last.set(key, answer.token)
        this.held.set(key, { owner, token: answer.token })
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 20))
      }
    }
  }

  async end(): Promise<void> {
    this.#over = true
    await Promise.all(this.#work)
    for (const store of this.#stores) await store.close()
  }
}

export interface FailoverFigures {
  acknowledged: number
  lostGrants: number
  repeatedTokens: number
}

/** The primary dies under load and the standby takes over. What was acknowledged must be there. */
export async function failover(synchronous: boolean, grants: number): Promise<FailoverFigures> {
  const primary = await startPostgres()
  await prepared(primary)
  const standby = await startStandby(primary, { synchronous })
  const load = new Load(primary.url, 20)
  await load.run(grants)
  await primary.kill()
  await load.end()
  await standby.promote()
  const store = storeAt('pg', standby.url, { listen: false })
  const figures: FailoverFigures = { acknowledged: load.grants, lostGrants: 0, repeatedTokens: 0 }
  for (const [key, { owner }] of load.held) {
    const [other] = await store.acquire([{ key, owner: 'other', weight: ALL, capacity: ALL, ttlMs: 1_000 }])
    const [renewed] = await store.renew([{ key, owner, ttlMs: 60_000 }])
    if (other?.granted !== false || renewed?.outcome !== 'ours') figures.lostGrants++
  }
  for (const [key, token] of load.last) {
    const [answer] = await store.acquire([
      { key, owner: 'thief', weight: ALL, capacity: ALL, ttlMs: 1_000, steal: true },
    ])
    if (answer?.granted !== true || answer.token <= token) figures.repeatedTokens++
  }
  await store.close()
  await standby.stop()
  await primary.stop()
  return figures
}

async function failovers(p: Proving): Promise<void> {
  for (const synchronous of [true, false]) {
    const total: FailoverFigures & { rounds: number } = { rounds: 0, acknowledged: 0, lostGrants: 0, repeatedTokens: 0 }
    const deadline = performance.now() + p.seconds * 150
    while (total.rounds < 2 || performance.now() < deadline) {
      const round = await failover(synchronous, 2_000)
      total.rounds++
      total.acknowledged += round.acknowledged
      total.lostGrants += round.lostGrants
      total.repeatedTokens += round.repeatedTokens
    }
    const figures = `${total.rounds} failovers, ${total.acknowledged} grants acknowledged, ${total.lostGrants} held ones lost, ${total.repeatedTokens} tokens repeated`
    if (synchronous)
      p.check(
        'failover to a synchronous standby loses nothing that was acknowledged',
        total.lostGrants + total.repeatedTokens === 0,
        figures,
      )
    else
      p.check(
        'failover to an asynchronous standby may lose grants, but repeats no token on one clock',
        total.repeatedTokens === 0,
        figures,
      )
  }
}
