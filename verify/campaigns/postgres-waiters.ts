// The lease table: thousands wait for one name: what waiting costs the server, what a hand-off takes, and in which order.
import { type ChildProcess, fork } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { Pool } from 'pg'
import { createLocks } from '../../src/locks.js'
import { migrate, postgres } from '../../src/stores/postgres/index.js'
import { type PostgresServer, startPostgres } from '../../testbed/servers/index.js'
import { program } from '../../testbed/programs.js'
import type { Proving } from './proving.js'

interface Crowd {
  processes: number
  instances: number
  stores: number
}

interface CrowdFigures {
  waiters: number
  /** Of one core, while everybody waits. */
  cpuPercent: number
  /** From one release to the next. */
  handoffMs: number
  served: number
  errors: number
  firstError: string
  /** Tokens not in the order in which they were served by the queue. */
  outOfOrder: number
}

const CHILD = new URL('./postgres/waiter.ts', import.meta.url)

/** CPU time of each process of the server, in milliseconds. */
async function cpuOf(pool: Pool): Promise<Map<number, number>> {
  const { rows } = await pool.query('select pid from pg_stat_activity')
  const times = new Map<number, number>()
  for (const { pid } of rows) {
    try {
      times.set(pid, Number(readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[0]) / 1e6)
    } catch {
      // It has ended since.
    }
  }
  return times
}

/** Of the processes that were there all the time, and of those that came. */
function spent(before: Map<number, number>, after: Map<number, number>): number {
  return [...after].reduce((sum, [pid, ms]) => sum + ms - (before.get(pid) ?? 0), 0)
}

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

async function crowd(server: PostgresServer, name: string, size: Crowd, seconds: number): Promise<CrowdFigures> {
  const pool = new Pool({ connectionString: server.url, max: 3 })
  const store = postgres(pool)
  const locks = createLocks(store, { ttl: '1m', wait: 'forever' })
  const held = await locks.acquire(name)
  const served: { token: bigint; at: number }[] = []
  const errors: string[] = []
  const waiters = size.processes * size.instances
  const children: ChildProcess[] = []
  for (let i = 0; i < size.processes; i++) {
    const child = fork(program(CHILD), [server.url, String(size.instances), String(size.stores), name])
    child.on('message', (message: { token?: string; at?: number; error?: string }) => {
      if (message.error) errors.push(message.error)
      if (message.token) served.push({ token: BigInt(message.token), at: message.at ?? 0 })
    })
    children.push(child)
    await new Promise((resolve) => child.once('message', resolve))
  }
  for (const child of children) child.send('wait')
  const queued = async (): Promise<number> =>
    (await pool.query('select count(*)::int as n from leasehold_queue where expires_at > clock_timestamp()')).rows[0].n
  while ((await queued()) < waiters) await sleep(200)
  await sleep(3_000)
  // Thousands who begin at once may be answered late; from here on nobody should be.
  errors.length = 0
  const [before, began] = [await cpuOf(pool), performance.now()]
  await sleep(seconds * 1_000)
  const cpuPercent = spent(before, await cpuOf(pool)) / ((performance.now() - began) / 100)
  const stillThere = await queued()
  const released = Date.now()
  await held.release()
  const deadline = Date.now() + 120_000
  while (served.length < waiters && Date.now() < deadline) await sleep(20)
  for (const child of children) child.kill('SIGKILL')
  await locks.close({ grace: 0 })
  await store.close()
  await pool.end()
  const last = Math.max(...served.map(({ at }) => at))
  const inOrder = served.toSorted((a, b) => (a.token < b.token ? -1 : 1))
  const outOfOrder = inOrder.filter(({ at }, i) => i > 0 && at + 5 < (inOrder[i - 1]?.at ?? 0)).length
  return {
    waiters: stillThere,
    cpuPercent: Math.round(cpuPercent * 100) / 100,
    handoffMs: Math.round(((last - released) / served.length) * 100) / 100,
    served: served.length,
    errors: errors.length,
    firstError: errors[0] ?? '',
    outOfOrder,
  }
}

export default async function prove(p: Proving): Promise<void> {
  const server = await startPostgres({ settings: { max_connections: 1_000 } })
  const pool = new Pool({ connectionString: server.url, max: 1 })
  await migrate(pool)
  await pool.end()
  const few = await crowd(server, 'few', { processes: 2, instances: 5, stores: 1 }, 3)
  p.say(`10 waiters: ${JSON.stringify(few)}`)
  const many = await crowd(server, 'many', { processes: 20, instances: 100, stores: 1 }, Math.min(p.seconds, 20))
  p.check(
    '2,000 waiters in 20 processes: below 3 % of a core while they wait, none forgotten, drained in order',
    many.cpuPercent < 3 && many.waiters === 2_000 && many.served === 2_000 && many.outOfOrder + many.errors === 0,
    JSON.stringify(many),
  )
  p.check(
    'a hand-off at 2,000 waiters takes at most twice as long as at 10',
    many.handoffMs <= 2 * few.handoffMs,
    `${many.handoffMs} against ${few.handoffMs} ms`,
  )
  const apart = await crowd(server, 'apart', { processes: 10, instances: 30, stores: 30 }, Math.min(p.seconds, 20))
  p.check(
    '300 stores with connections of their own, all waiting for one name: none is forgotten, all are served',
    apart.waiters === 300 && apart.served === 300 && apart.errors === 0,
    JSON.stringify(apart),
  )
  await server.stop()
}
