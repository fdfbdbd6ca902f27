// The lease table beside verrou's knex driver, on the same server and taken in turns, so that a noisy machine is noisy
// for both: compare the ratios, not the microseconds.
//
//   npm run bench -- postgres [--rounds 30]
import { Verrou } from '@verrou/core'
import { knexStore } from '@verrou/core/drivers/knex'
import createKnex from 'knex'
import { Pool } from 'pg'
import postgresJs from 'postgres'
import { startPostgres } from '../scripts/servers/index.js'
import { createLocks, type Locks } from '../dist/index.js'
import { migrate, postgres } from '../dist/stores/postgres/index.js'

const at = process.argv.indexOf('--rounds')
const ROUNDS = at > 0 ? Number(process.argv[at + 1]) : 30

type Contenders = Record<string, () => Promise<number>>

/** Code that has just begun to run is slow for reasons that are not its own. */
const WARM_UP = 10

/** Each runs a little in every round, one right after the other. */
async function inTurns(contenders: Contenders, rounds: number, warmUp: number): Promise<Record<string, number[]>> {
  const figures: Record<string, number[]> = {}
  for (const run of Object.values(contenders)) for (let i = 0; i < warmUp; i++) await run()
  for (let round = 0; round < rounds; round++) {
    for (const [name, run] of Object.entries(contenders)) (figures[name] ??= []).push(await run())
  }
  return figures
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] as number
}

async function averageMs(times: number, work: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  for (let i = 0; i < times; i++) await work()
  return (performance.now() - began) / times
}

/** Medians over rounds, of the times and of the ratios: a noisy moment strikes both sides of a ratio. */
function print(title: string, figures: Record<string, number[]>, peer: string): void {
  console.log(title)
  const others = figures[peer] as number[]
  for (const [name, all] of Object.entries(figures)) {
    const faster = median(all.map((ms, round) => (others[round] as number) / ms))
    const ratio = name === peer ? '' : `   ${faster.toFixed(2)}x faster than ${peer}`
    console.log(`  ${name.padEnd(34)} ${median(all).toFixed(3).padStart(9)} ms${ratio}`)
  }
}

/** From the call that lets go to the moment the other has it, which began to wait a while before. */
async function handOff(
  acquire: (turn: number) => Promise<{ release(): Promise<unknown> }>,
  times: number,
): Promise<number> {
  let total = 0
  let held = await acquire(0)
  for (let turn = 1; turn <= times; turn++) {
    const waiting = acquire(turn)
    await new Promise((resolve) => setTimeout(resolve, 20 + Math.random() * 30))
    const began = performance.now()
    void held.release()
    held = await waiting
    total += performance.now() - began
  }
  await held.release()
  return total / times
}

const server = await startPostgres()
const pool = new Pool({ connectionString: server.url, max: 10 })
const sql = postgresJs(server.url, { max: 10, onnotice: () => {} })
await migrate(pool)
const withPg: [Locks, Locks] = [
  createLocks(postgres(pool), { ttl: '30s' }),
  createLocks(postgres(pool), { ttl: '30s' }),
]
const withPostgresJs = createLocks(postgres(sql), { ttl: '30s' })
const knex = createKnex({ client: 'pg', connection: server.url, pool: { min: 2, max: 10 } })
const store = knexStore({ connection: knex, tableName: 'verrou', autoCreateTable: true })
const verrou = new Verrou({ default: 'knex', stores: { knex: { driver: store } } })

const verrouAcquire = async (name: string): Promise<{ release(): Promise<unknown> }> => {
  const lock = verrou.createLock(name, '30s')
  if (!(await lock.acquire())) throw new Error('verrou did not get it')
  return lock
}

let n = 0
const serial = await inTurns(
  {
    verrou: () => averageMs(50, async () => (await verrouAcquire(`serial-${++n % 100}`)).release()),
    'leasehold with pg': () => averageMs(50, async () => (await withPg[0].acquire(`serial-${++n % 100}`)).release()),
    'leasehold with postgres.js': () =>
      averageMs(50, async () => (await withPostgresJs.acquire(`serial-${++n % 100}`)).release()),
    'one bare UPDATE each (the floor)': () =>
      averageMs(50, async () => {
        await pool.query('update leasehold_meta set fence = fence')
        await pool.query('update leasehold_meta set fence = fence')
      }),
  },
  ROUNDS,
  WARM_UP,
)
print('acquire + release, one after the other, 100 names (asked for: 1.3x)', serial, 'verrou')

const many = await inTurns(
  {
    verrou: () =>
      averageMs(1, () =>
        Promise.all(Array.from({ length: 64 }, async (_, i) => (await verrouAcquire(`many-${i}`)).release())),
      ),
    'leasehold with pg': () =>
      averageMs(1, () =>
        Promise.all(Array.from({ length: 64 }, async (_, i) => (await withPg[0].acquire(`many-${i}`)).release())),
      ),
  },
  ROUNDS,
  WARM_UP,
)
print('64 names at once, until all are released', many, 'verrou')

const hands = await inTurns(
  {
    verrou: () => handOff(() => verrouAcquire('hand'), 3),
    'leasehold with pg': () => handOff((turn) => (withPg[turn % 2] as Locks).acquire('hand'), 10),
  },
  Math.max(5, ROUNDS / 3),
  1,
)
print('hand-over to one who waits, everything at its defaults (asked for: 20x)', hands, 'verrou')

await Promise.all([...withPg, withPostgresJs].map((locks) => locks.close({ grace: 0 })))
await knex.destroy()
await pool.end()
await sql.end()
await server.stop()
process.exit()
