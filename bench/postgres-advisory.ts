// Session advisory locks through leasehold, beside bare pg on one connection. Same run, same server, taken in turns, so
// that a noisy machine is noisy for all: compare the ratios, not the microseconds.
//
//   npx tsx bench/postgres-advisory.ts [--rounds 40]
import pg from 'pg'
import { startPostgres } from '../scripts/servers/index.js'
import { createLocks, type Locks } from '../src/index.js'
import { advisory } from '../src/stores/postgres-advisory/index.js'

const at = process.argv.indexOf('--rounds')
const ROUNDS = at > 0 ? Number(process.argv[at + 1]) : 40

/** Each contender runs a little in every round. The median of a contender is over rounds. */
async function inTurns(contenders: Record<string, () => Promise<number>>): Promise<Record<string, number>> {
  const figures: Record<string, number[]> = {}
  for (const run of Object.values(contenders)) await run()
  for (let round = 0; round < ROUNDS; round++) {
    for (const [name, run] of Object.entries(contenders)) (figures[name] ??= []).push(await run())
  }
  return Object.fromEntries(
    Object.entries(figures).map(([name, all]) => [name, all.sort((a, b) => a - b)[all.length >> 1] as number]),
  )
}

async function averageUs(times: number, work: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  for (let i = 0; i < times; i++) await work()
  return ((performance.now() - began) * 1_000) / times
}

const us = (value: number): string => `${value.toFixed(0)} µs`
const ratio = (value: number, of: number): string => `${(value / of).toFixed(2)}x`

async function connected(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  return client
}

async function serial(url: string, locks: Locks): Promise<void> {
  const client = await connected(url)
  const plain = async (): Promise<void> => {
    await client.query('SELECT pg_try_advisory_lock($1)', ['42'])
    await client.query('SELECT pg_advisory_unlock($1)', ['42'])
  }
  const prepared = async (): Promise<void> => {
    await client.query({ name: 'lock', text: 'SELECT pg_try_advisory_lock($1)', values: ['42'] })
    await client.query({ name: 'unlock', text: 'SELECT pg_advisory_unlock($1)', values: ['42'] })
  }
  const ours = async (): Promise<void> => {
    const lock = await locks.acquire('serial')
    await lock.release()
  }
  const figures = await inTurns({
    plain: () => averageUs(60, plain),
    prepared: () => averageUs(60, prepared),
    ours: () => averageUs(60, ours),
  })
  const { plain: bare = 0, prepared: best = 0, ours: mine = 0 } = figures
  console.log('Serial acquire + release, one at a time (asked for: at most 1.2x of bare pg_try_advisory_lock + unlock)')
  console.log(`  bare pg_try_advisory_lock + unlock          ${us(bare)}`)
  console.log(`  the same as prepared statements             ${us(best)}`)
  console.log(
    `  leasehold, with ttl and fencing token       ${us(mine)}   ${ratio(mine, bare)} of bare, ${ratio(mine, best)} of prepared`,
  )
  await client.end()
}

/** From the call that lets go to the moment the other has it. */
async function handOff(url: string, one: Locks, two: Locks): Promise<void> {
  const clients = [await connected(url), await connected(url)] as const
  const bare = async (): Promise<number> => {
    let total = 0
    await clients[0].query('SELECT pg_advisory_lock(43)')
    for (let i = 0; i < 20; i++) {
      const [from, to] = i % 2 ? [clients[1], clients[0]] : [clients[0], clients[1]]
      const waiting = to.query('SELECT pg_advisory_lock(43)')
      await blocked(clients[i % 2 ? 0 : 1])
      const began = performance.now()
      void from.query('SELECT pg_advisory_unlock(43)')
      await waiting
      total += performance.now() - began
    }
    await clients[0].query('SELECT pg_advisory_unlock(43)')
    return (total * 1_000) / 20
  }
  const ours = async (): Promise<number> => {
    let total = 0
    let held = await one.acquire('hand-off')
    for (let i = 0; i < 20; i++) {
      const waiting = (i % 2 ? one : two).acquire('hand-off')
      await blocked()
      const began = performance.now()
      void held.release()
      held = await waiting
      total += performance.now() - began
    }
    await held.release()
    return (total * 1_000) / 20
  }
  const watcher = await connected(url)
  /** Until somebody stands in the server's queue, and a little longer, so that both sides begin at rest. */
  async function blocked(_?: pg.Client): Promise<void> {
    for (;;) {
      const { rows } = await watcher.query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
      if (rows.length > 0) break
    }
    await new Promise((resolve) => setTimeout(resolve, 2))
  }
  const { bare: plain = 0, ours: mine = 0 } = await inTurns({ bare, ours })
  console.log('Hand-off to a waiter on another session (asked for: at most 1.5x of bare pg_advisory_lock)')
  console.log(`  bare pg_advisory_lock                       ${us(plain)}`)
  console.log(`  leasehold                                   ${us(mine)}   ${ratio(mine, plain)}`)
  await Promise.all([...clients, watcher].map((client) => client.end()))
}

async function inFlight(url: string, locks: Locks): Promise<void> {
  const client = await connected(url)
  const names = Array.from({ length: 64 }, (_, i) => `flight:${i}`)
  const alone = async (): Promise<void> => {
    for (const [i] of names.entries()) {
      await client.query('SELECT pg_try_advisory_lock($1)', [String(1_000 + i)])
      await client.query('SELECT pg_advisory_unlock($1)', [String(1_000 + i)])
    }
  }
  const oneByOne = async (): Promise<void> => {
    for (const name of names) await (await locks.acquire(name)).release()
  }
  const together = async (): Promise<void> => {
    await Promise.all(names.map(async (name) => (await locks.acquire(name)).release()))
  }
  const figures = await inTurns({
    alone: () => averageUs(1, alone),
    oneByOne: () => averageUs(1, oneByOne),
    together: () => averageUs(4, together),
  })
  const { alone: bare = 0, oneByOne: serially = 0, together: batched = 0 } = figures
  const perSecond = (total: number): string => `${Math.round((64 * 1e6) / total)}/s`
  console.log('64 names, acquire + release (asked for: at least 8x of one statement at a time)')
  console.log(`  bare, one statement at a time               ${perSecond(bare)}`)
  console.log(`  leasehold, one at a time                    ${perSecond(serially)}`)
  console.log(
    `  leasehold, 64 in flight                     ${perSecond(batched)}   ${ratio(bare, batched)} of bare, ${ratio(serially, batched)} of its own`,
  )
  await client.end()
}

const server = await startPostgres()
const pool = new pg.Pool({ connectionString: server.url })
const stores = [advisory(pool), advisory(pool)] as const
const [one, two] = [createLocks(stores[0]), createLocks(stores[1])]
try {
  await serial(server.url, one)
  await handOff(server.url, one, two)
  await inFlight(server.url, one)
} finally {
  await Promise.all([one.close(), two.close()])
  await Promise.all(stores.map((store) => store.close()))
  await pool.end()
  await server.stop()
}
