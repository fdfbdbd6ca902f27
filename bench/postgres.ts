// The lease table beside verrou's knex driver, on the same server and taken in turns, so that a noisy machine is noisy
// for both: compare the ratios, not the microseconds.
//
//   npx tsx bench/postgres.ts [--rounds 30]
import { Verrou } from '@verrou/core'
import { knexStore } from '@verrou/core/drivers/knex'
import createKnex from 'knex'
import { Pool } from 'pg'
import postgresJs from 'postgres'
import { startPostgres } from '../scripts/servers/index.js'
import { createLocks, type Locks } from '../src/index.js'
import { migrate, postgres } from '../src/stores/postgres/index.js'

const at = process.argv.indexOf('--rounds')
const ROUNDS = at > 0 ? Number(process.argv[at + 1]) : 30

type Contenders = Record<string, () => Promise<number>>

/** Each runs a little in every round; what counts is the median over rounds. The first round warms up. */
async function inTurns(contenders: Contenders, rounds: number): Promise<Record<string, number>> {
  const figures: Record<string, number[]> = {}
  for (const run of Object.values(contenders)) await run()
  for (let round = 0; round < rounds; round++) {
    for (const [name, run] of Object.entries(contenders)) (figures[name] ??= []).push(await run())
  }
  return Object.fromEntries(
    Object.entries(figures).map(([name, all]) => [name, all.sort((a, b) => a - b)[all.length >> 1] as number]),
  )
}

async function averageMs(times: number, work: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  for (let i = 0; i < times; i++) await work()
  return (performance.now() - began) / times
}

function print(title: string, figures: Record<string, number>, peer: string): void {
  console.log(title)
  for (const [name, ms] of Object.entries(figures)) {
    const ratio = name === peer ? '' : `   ${((figures[peer] as number) / ms).toFixed(2)}x faster than ${peer}`
    console.log(`  ${name.padEnd(34)} ${ms.toFixed(3).padStart(9)} ms${ratio}`)
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
)
print('64 names at once, until all are released', many, 'verrou')

const hands = await inTurns(
  {
    verrou: () => handOff(() => verrouAcquire('hand'), 3),
    'leasehold with pg': () => handOff((turn) => (withPg[turn % 2] as Locks).acquire('hand'), 10),
  },
  Math.max(5, ROUNDS / 3),
)
print('hand-over to one who waits, everything at its defaults (asked for: 20x)', hands, 'verrou')

await Promise.all([...withPg, withPostgresJs].map((locks) => locks.close({ grace: 0 })))
await knex.destroy()
await pool.end()
await sql.end()
await server.stop()
process.exit()
