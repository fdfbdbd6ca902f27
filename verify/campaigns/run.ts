/** `leasehold run`: 500 hand-offs on SQLite, Redis and PostgreSQL between commands that are hard to end, 0 overlaps. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { migrate } from '../../src/stores/postgres/index.js'
import { startPostgres, startRedis } from '../../testbed/servers/index.js'
import { randomFrom } from '../../testbed/random.js'
import type { Proving } from './proving.js'
import { handOff, type HandoffCommand } from './run/handoffs.js'

const LANES = 5
const HANDOFFS_PER_LANE = 100
const TTL_MS = 5_000

export default function prove(p: Proving): Promise<void> {
  return proveHandoffs(p, 'run')
}

export async function proveHandoffs(p: Proving, command: HandoffCommand): Promise<void> {
  p.say(`${LANES} locks on each store, ${HANDOFFS_PER_LANE} hand-offs of each; --seconds is not used here`)
  const parts = p.parts(['sqlite', 'redis', 'postgres'])
  if (parts.includes('sqlite')) await proveOnSqlite(p, command)
  if (parts.includes('redis')) await proveOnRedis(p, command)
  if (parts.includes('postgres')) await proveOnPostgres(p, command)
}

async function proveOnSqlite(p: Proving, command: HandoffCommand): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-prove-run-'))
  await proveOn(p, command, 'sqlite', `sqlite:${folder}/locks.db`)
  rmSync(folder, { recursive: true, force: true })
}

async function proveOnRedis(p: Proving, command: HandoffCommand): Promise<void> {
  const redis = await startRedis()
  await proveOn(p, command, 'redis', redis.url)
  await redis.stop()
}

async function proveOnPostgres(p: Proving, command: HandoffCommand): Promise<void> {
  const postgres = await startPostgres()
  const pool = new pg.Pool({ connectionString: postgres.url })
  await migrate(pool)
  await pool.end()
  await proveOn(p, command, 'postgres', postgres.url)
  await postgres.stop()
}

async function proveOn(p: Proving, command: HandoffCommand, kind: string, store: string): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), `leasehold-prove-run-${kind}-`))
  const random = randomFrom(p.seed)
  const since = performance.now()
  const report = await handOff({
    command,
    store,
    folder,
    handoffs: HANDOFFS_PER_LANE,
    lanes: LANES,
    ttlMs: TTL_MS,
    random,
  })
  const seconds = Math.round((performance.now() - since) / 1_000)
  const fates = Object.entries(report.fates).map(([fate, count]) => `${count} ${fate}`)
  const figures = `${report.handoffs} hand-offs (${fates.join(', ')}) in ${seconds} s, ${report.lines} lines written`
  p.check(`${kind}: no process of an earlier holder is alive when the next begins`, report.alive.length === 0, figures)
  p.check(`${kind}: no earlier holder writes after the next has begun`, report.late === 0, `${report.late} lines`)
  p.check(
    `${kind}: every holder exits with the status of its fate`,
    report.wrongStatus.length === 0,
    report.wrongStatus.join('; ') || `${report.stopped} of them 70, stopped because this machine renewed too late`,
  )
  for (const line of report.alive) p.say(line)
  rmSync(folder, { recursive: true, force: true })
}
