// The lease table: hand-offs on 16 names at once, and what they cost another database of the same server.
import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { Pool } from 'pg'
import type * as library from '../../src/stores/postgres/index.js'
import { ensureBuilt } from '../../scripts/build.mjs'
import { type PostgresServer, startPostgres } from '../../testbed/servers/index.js'
import type { Proving } from './proving.js'

const HERE = fileURLToPath(new URL('../..', import.meta.url)).replace(/\/$/, '')
/** Another checkout with a build, to be measured by turns with this one: LEASEHOLD_BEFORE=<folder> npm run prove -- postgres-handoffs. */
const BEFORE = process.env.LEASEHOLD_BEFORE
const CONTENDER = fileURLToPath(new URL('./postgres/contender.mjs', import.meta.url))
const [PROCESSES, NAMES] = [3, 16]
const WARM_UP_MS = 1_500

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

/** The element below which this share of all lies. */
function quantile(values: readonly number[], share: number): number {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length * share)] ?? Number.NaN
}

const median = (values: readonly number[]): number => quantile(values, 0.5)
const rounded = (values: readonly number[]): string => values.map(Math.round).join(', ')

/** A database with the schema of that build. */
async function prepare(server: PostgresServer, project: string): Promise<string> {
  const url = await server.createDatabase()
  const pool = new Pool({ connectionString: url, max: 1 })
  const file = pathToFileURL(`${project}/dist/stores/postgres/index.js`).href
  await ((await import(file)) as typeof library).migrate(pool)
  await pool.end()
  return url
}

/** Processes that want the same names, while `meanwhile` runs; how often one of them got one, a second. */
async function contended(project: string, url: string, meanwhile: () => Promise<unknown>): Promise<number> {
  const children: ChildProcess[] = []
  for (let i = 0; i < PROCESSES; i++) children.push(fork(CONTENDER, [project, url, String(NAMES)]))
  const answers = () =>
    Promise.all(children.map((child) => new Promise<number>((resolve) => child.once('message', resolve))))
  const count = async (): Promise<number> => {
    const counted = answers()
    for (const child of children) child.send('count')
    return (await counted).reduce((sum, n) => sum + n, 0)
  }
  await answers()
  await sleep(WARM_UP_MS)
  const [before, began] = [await count(), performance.now()]
  await meanwhile()
  const rate = ((await count()) - before) / ((performance.now() - began) / 1_000)
  for (const child of children) child.kill('SIGKILL')
  await Promise.all(children.map((child) => new Promise((resolve) => child.once('exit', resolve))))
  return rate
}

/** Plain commits of one row each at this rate, without any NOTIFY. */
async function plainCommits(url: string, perSecond: number, meanwhile: () => Promise<unknown>): Promise<number> {
  const pool = new Pool({ connectionString: url, max: NAMES })
  await pool.query('create table plain (i integer primary key, n integer not null) with (fillfactor = 50)')
  await pool.query('insert into plain select i, 0 from generate_series(1, $1) i', [NAMES])
  let [done, over] = [0, false]
  const began = performance.now()
  const worker = async (i: number): Promise<void> => {
    while (!over) {
      const ahead = (done / perSecond) * 1_000 - (performance.now() - began)
      if (ahead > 1) await sleep(ahead)
      done++
      await pool.query('update plain set n = n + 1 where i = $1', [i])
    }
  }
  const workers = Array.from({ length: NAMES }, (_, i) => worker(i + 1))
  await meanwhile()
  over = true
  const rate = done / ((performance.now() - began) / 1_000)
  await Promise.all(workers)
  await pool.end()
  return rate
}

interface Neighbour {
  commitMs: number
  notifyMs: number
  commits: number
  /** Of the whole server meanwhile: how often it waited for the disk, and for how long each time. */
  syncs: number
  syncMs: number
}

/** What a commit, and one with NOTIFY, takes in a database that has nothing to do with it. */
async function neighbour(url: string, seconds: number): Promise<Neighbour> {
  const pool = new Pool({ connectionString: url, max: 1 })
  await pool.query('create table if not exists mine (i integer)')
  const times: Record<'commit' | 'notify', number[]> = { commit: [], notify: [] }
  const disk = async (): Promise<{ n: number; ms: number }> => {
    await pool.query('select pg_stat_force_next_flush()')
    return (await pool.query('select wal_sync::int as n, wal_sync_time::float as ms from pg_stat_wal')).rows[0]
  }
  const before = await disk()
  const end = performance.now() + seconds * 1_000
  while (performance.now() < end) {
    for (const kind of ['commit', 'notify'] as const) {
      const began = performance.now()
      await pool.query(`begin; insert into mine values (1); ${kind === 'notify' ? 'notify mine;' : ''} commit`)
      times[kind].push(performance.now() - began)
    }
  }
  const after = await disk()
  await pool.end()
  const [commits, syncs] = [times.commit.length + times.notify.length, after.n - before.n]
  const syncMs = (after.ms - before.ms) / syncs
  return { commitMs: median(times.commit), notifyMs: median(times.notify), commits, syncs, syncMs }
}

async function byTurns(p: Proving, server: PostgresServer): Promise<void> {
  const builds = { now: HERE, ...(BEFORE ? { before: BEFORE } : {}) }
  const rates: Record<string, number[]> = {}
  const urls: Record<string, string> = {}
  for (const [name, project] of Object.entries(builds)) urls[name] = await prepare(server, project)
  for (let round = 0; round < 5; round++) {
    for (const [name, project] of Object.entries(builds)) {
      const rate = await contended(project, urls[name] as string, () => sleep(p.seconds * 50))
      ;(rates[name] ??= []).push(rate)
    }
  }
  const { now = [], before } = rates
  p.say(`hand-offs a second on ${NAMES} names, ${PROCESSES} processes, 5 rounds: ${rounded(now)}`)
  if (!before) return p.say('LEASEHOLD_BEFORE=<another checkout with a build> compares with that')
  p.say(`the other build, by turns: ${rounded(before)}`)
  // Of neighbours in time: the disk of one minute is not that of the next.
  const ratios = now.map((rate, i) => rate / (before[i] as number))
  p.check(
    `hand-offs on ${NAMES} names: at least 3x the rate of the other build`,
    median(ratios) >= 3,
    `${median(ratios).toFixed(2)}x, the median of ${ratios.map((ratio) => ratio.toFixed(2)).join(', ')}`,
  )
}

async function beside(p: Proving, server: PostgresServer): Promise<void> {
  const [locks, plain, other] = [
    await prepare(server, HERE),
    await server.createDatabase(),
    await server.createDatabase(),
  ]
  const seen: Record<'idle' | 'plain' | 'handoffs', Neighbour[]> = { idle: [], plain: [], handoffs: [] }
  const look = (kind: keyof typeof seen) => async () => void seen[kind].push(await neighbour(other, p.seconds / 20))
  const commits: string[] = []
  for (let round = 0; round < 3; round++) {
    const before = await committed(server, locks)
    const began = performance.now()
    const rate = await contended(HERE, locks, look('handoffs'))
    const perSecond = ((await committed(server, locks)) - before) / ((performance.now() - began) / 1_000)
    const reached = await plainCommits(plain, perSecond, look('plain'))
    await server.psql('drop table plain', new URL(plain).pathname.slice(1))
    await look('idle')()
    commits.push(`${Math.round(rate)} hand-offs in ${Math.round(perSecond)} commits (plain: ${Math.round(reached)})`)
  }
  const at = (kind: keyof typeof seen, what: keyof Neighbour): number => median(seen[kind].map((one) => one[what]))
  p.say(`a second: ${commits.join('; ')}`)
  for (const kind of ['idle', 'plain', 'handoffs'] as const)
    p.say(
      `${kind}: ${seen[kind].map((one) => `${one.commits} commits, ${one.syncs} syncs of ${one.syncMs.toFixed(2)} ms`).join('; ')}`,
    )
  // Otherwise what is compared below is not what a commit takes.
  p.check(
    'the neighbour waits for the disk: on an idle server each of its commits is a sync, and takes at least as long',
    seen.idle.every((one) => one.syncs >= one.commits && one.commitMs >= 0.5 * one.syncMs),
  )
  for (const what of ['commitMs', 'notifyMs'] as const) {
    const [idle, base, ours] = [at('idle', what), at('plain', what), at('handoffs', what)]
    p.check(
      `another database's ${what === 'commitMs' ? 'COMMIT' : 'NOTIFY'}: p50 at most 1.3x of that beside as many plain commits`,
      ours <= 1.3 * base,
      `${(ours / base).toFixed(2)}x: ${ours.toFixed(2)} against ${base.toFixed(2)} ms (idle server ${idle.toFixed(2)} ms)`,
    )
  }
}

/** Transactions of that database so far. */
async function committed(server: PostgresServer, url: string): Promise<number> {
  return Number(
    await server.psql(`select xact_commit from pg_stat_database where datname = '${new URL(url).pathname.slice(1)}'`),
  )
}

export default async function prove(p: Proving): Promise<void> {
  ensureBuilt()
  await using server = await startPostgres({ settings: { track_wal_io_timing: 'on' } })
  await byTurns(p, server)
  await beside(p, server)
}
