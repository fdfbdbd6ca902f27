// Session advisory locks through leasehold, beside bare pg on one connection. Same run, same server, taken in turns, so
// that a noisy machine is noisy for all: compare the ratios, not the microseconds.
//
//   npm run bench -- postgres-advisory [--rounds 40]
import pg from 'pg'
import { startPostgres } from '../scripts/servers/index.js'
import { createLocks, type Locks } from '../dist/index.js'
import { advisory } from '../dist/stores/postgres-advisory/index.js'

const at = process.argv.indexOf('--rounds')
const ROUNDS = at > 0 ? Number(process.argv[at + 1]) : 40

/** Code that has just begun to run is slow for reasons that are not its own. */
const WARM_UP = 40

interface Figures {
  /** Median over rounds. */
  of(name: string): number
  /** How many times the other's figure: median over rounds, so that a noisy moment strikes both sides of the ratio. */
  ratio(name: string, other: string): number
}

/** Each contender runs a little in every round, one right after the other. */
async function inTurns(contenders: Record<string, () => Promise<number>>): Promise<Figures> {
  const figures: Record<string, number[]> = {}
  for (const run of Object.values(contenders)) for (let i = 0; i < WARM_UP; i++) await run()
  for (let round = 0; round < ROUNDS; round++) {
    for (const [name, run] of Object.entries(contenders)) (figures[name] ??= []).push(await run())
  }
  const all = (name: string): number[] => figures[name] as number[]
  return {
    of: (name) => median(all(name)),
    ratio: (name, other) => median(all(name).map((figure, round) => figure / (all(other)[round] as number))),
  }
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] as number
}

async function averageUs(count: number, work: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  for (let i = 0; i < count; i++) await work()
  return ((performance.now() - began) * 1_000) / count
}

const us = (value: number): string => `${value.toFixed(0)} µs`
const times = (ratio: number): string => `${ratio.toFixed(2)}x`

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
  console.log('Serial acquire + release, one at a time (asked for: at most 1.2x of bare pg_try_advisory_lock + unlock)')
  console.log(`  bare pg_try_advisory_lock + unlock          ${us(figures.of('plain'))}`)
  console.log(`  the same as prepared statements             ${us(figures.of('prepared'))}`)
  console.log(
    `  leasehold, with ttl and fencing token       ${us(figures.of('ours'))}   ${times(figures.ratio('ours', 'plain'))} of bare, ${times(figures.ratio('ours', 'prepared'))} of prepared`,
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
      await blocked()
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
  async function blocked(): Promise<void> {
    for (;;) {
      const { rows } = await watcher.query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
      if (rows.length > 0) break
    }
    await new Promise((resolve) => setTimeout(resolve, 2))
  }
  const figures = await inTurns({ bare, ours })
  console.log('Hand-off to a waiter on another session (asked for: at most 1.5x of bare pg_advisory_lock)')
  console.log(`  bare pg_advisory_lock                       ${us(figures.of('bare'))}`)
  console.log(
    `  leasehold                                   ${us(figures.of('ours'))}   ${times(figures.ratio('ours', 'bare'))}`,
  )
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
  const perSecond = (name: string): string => `${Math.round((64 * 1e6) / figures.of(name))}/s`
  console.log('64 names, acquire + release (asked for: at least 8x of one statement at a time)')
  console.log(`  bare, one statement at a time               ${perSecond('alone')}`)
  console.log(`  leasehold, one at a time                    ${perSecond('oneByOne')}`)
  console.log(
    `  leasehold, 64 in flight                     ${perSecond('together')}   ${times(figures.ratio('alone', 'together'))} of bare, ${times(figures.ratio('oneByOne', 'together'))} of its own`,
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
