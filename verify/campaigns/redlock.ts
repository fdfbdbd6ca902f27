// Redlock: a hundred thousand simulated schedules and every mutant; then five real servers frozen, killed and emptied
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createLocks, StoreUnavailableError } from '../../src/index.js'
import type { Locks } from '../../src/index.js'
import { redlock } from '../../src/stores/redlock/index.js'
import type { Share } from '../simulation/redlock/share.js'
import { REDLOCK_MUTATIONS, type RedlockMutation, REGIMES, simulate } from '../simulation/redlock/simulation.js'
import { chance } from '../simulation/redlock/timeline.js'
import { judge, readHistory } from '../../testbed/lock-history.js'
import { type RedisServer, startRedis } from '../../testbed/servers/index.js'
import type { Proving } from './proving.js'
import { program } from '../../testbed/programs.js'

const SCHEDULES = 100_000

export default async function prove(p: Proving): Promise<void> {
  await simulation(p)
  await latency(p)
  await death(p)
  await chaos(p)
}

/** On all cores: schedules are independent of each other. */
async function simulation(p: Proving): Promise<void> {
  const shares = availableParallelism()
  const all = await Promise.all(Array.from({ length: shares }, (_, nth) => shareOf(p.seed, nth, shares)))
  // Processor time, so that other programs on this machine do not change the figure.
  const seconds = Math.max(...all.map(({ cpuSeconds }) => cpuSeconds))
  const total = (what: 'grants' | 'refusals' | 'restarts'): number => all.reduce((sum, share) => sum + share[what], 0)
  const bad = all.flatMap((share) => share.bad)
  const work = `${SCHEDULES} schedules, ${total('grants')} grants, ${total('refusals')} refusals, ${total('restarts')} restarts`
  p.check('no schedule has a duplicate or inverted token, or two holders at once', bad.length === 0, bad[0] ?? work)
  p.check(
    'the simulation takes less than a minute of each core',
    seconds < 60,
    `${seconds.toFixed(1)} s on ${shares} cores`,
  )
  const limit = Error.stackTraceLimit
  Error.stackTraceLimit = 0
  for (const mutation of REDLOCK_MUTATIONS) mutant(p, mutation)
  Error.stackTraceLimit = limit
}

async function shareOf(seed: number, nth: number, shares: number): Promise<Share> {
  const file = program(new URL('../simulation/redlock/share.ts', import.meta.url))
  const args = [file, ...[seed, SCHEDULES, nth, shares].map(String)]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  let said = ''
  for await (const text of child.stdout) said += text
  return JSON.parse(said) as Share
}

function mutant(p: Proving, mutation: RedlockMutation): void {
  const most = 10_000
  let caught = 0
  let first = 0
  for (let i = 0; i < most && caught < 20; i++) {
    const regime = REGIMES[i % REGIMES.length] as (typeof REGIMES)[number]
    if (simulate({ seed: p.seed + i, regime, mutation }).violations.length === 0) continue
    caught++
    first ||= i + 1
  }
  p.check(`caught: ${mutation}`, caught > 0, caught > 0 ? `first in schedule ${first}` : `not in ${most} schedules`)
}

function connect(servers: readonly RedisServer[]): Redis[] {
  return servers.map((server) => {
    const client = new Redis(server.port, '127.0.0.1', { retryStrategy: () => 100 })
    client.on('error', () => {})
    return client
  })
}

async function cycles(locks: Locks, count: number, name: string): Promise<number[]> {
  const times: number[] = []
  for (let i = 0; i < count; i++) {
    const began = performance.now()
    await (await locks.acquire(`${name}:${i % 20}`)).release()
    times.push(performance.now() - began)
  }
  return times
}

const median = (all: readonly number[]): number => [...all].sort((a, b) => a - b)[all.length >> 1] as number

/** A frozen server must not slow requests down. In alternation, so that a noisy machine is noisy for both. */
async function latency(p: Proving): Promise<void> {
  const servers = await Promise.all(Array.from({ length: 5 }, () => startRedis()))
  const clients = connect(servers)
  const locks = createLocks(redlock(clients, { maxTtl: '1m' }), { ttl: '30s' })
  await cycles(locks, 500, 'warm')
  const all: number[] = []
  const frozen: number[] = []
  for (let round = 0; round < 10; round++) {
    const victim = servers[round % 5] as RedisServer
    all.push(...(await cycles(locks, 150, 'all')))
    await victim.freeze()
    frozen.push(...(await cycles(locks, 150, 'frozen')))
    await victim.thaw()
    await cycles(locks, 20, 'thawed')
  }
  const [up, down] = [median(all), median(frozen)]
  const figures = `median ${up.toFixed(2)} ms with all five, ${down.toFixed(2)} ms with one frozen (${(down / up).toFixed(2)}x)`
  p.check('one of five frozen: median latency at most 1.3x', down <= 1.3 * up, figures)
  for (const client of clients) client.disconnect()
  await Promise.all(servers.map((server) => server.stop()))
}

async function death(p: Proving): Promise<void> {
  const servers = await Promise.all(Array.from({ length: 5 }, () => startRedis()))
  const clients = connect(servers)
  const store = redlock(clients, { maxTtl: '1m' })
  const locks = createLocks(store, { ttl: '30s', wait: '10s' })
  await cycles(locks, 10, 'before')
  for (const i of [0, 3]) await (servers[i] as RedisServer).kill()
  let succeeded = 0
  for (let i = 0; i < 500; i++) if (await (await locks.tryAcquire(`two-down:${i}`))?.release()) succeeded++
  p.check('two of five killed: every lock succeeds', succeeded === 500, `${succeeded} of 500`)
  await (servers[1] as RedisServer).kill()
  const began = performance.now()
  const error = await locks.tryAcquire('three-down').catch((reason: unknown) => reason)
  const took = performance.now() - began
  const dead = [0, 1, 3].map((i) => `127.0.0.1:${(servers[i] as RedisServer).port}`)
  const named = error instanceof StoreUnavailableError && dead.every((name) => error.message.includes(name))
  const figures = `after ${took.toFixed(0)} ms: ${error instanceof Error ? error.message : String(error)}`
  p.check(
    'three of five killed: StoreUnavailableError in time, naming the three',
    named && took < store.timeoutMs,
    figures,
  )
  for (const client of clients) client.disconnect()
  await Promise.all(servers.map((server) => server.stop()))
}

const WORKERS = 8
const MAX_TTL_MS = 2_000

/**
 * Nodes die, freeze and come back with and without their data, and processes come and go, but a majority always votes.
 */
async function chaos(p: Proving): Promise<void> {
  const random = chance(p.seed)
  const servers = await Promise.all(Array.from({ length: 5 }, () => startRedis({ appendonly: true })))
  const dir = mkdtempSync(join(tmpdir(), 'leasehold-redlock-'))
  const log = join(dir, 'history.jsonl')
  writeFileSync(log, '')
  const file = program(new URL('../../test/stores/redlock/worker.ts', import.meta.url))
  const ports = servers.map(({ port }) => port).join()
  const broken: string[] = []
  const start = (): ChildProcess => {
    const child = spawn(process.execPath, [file, log, String(MAX_TTL_MS), ports], {
      stdio: ['ignore', 'ignore', 'pipe'],
    })
    let complaint = ''
    child.stderr?.on('data', (text: Buffer) => (complaint += text))
    child.on('exit', (code) => code !== null && broken.push(`exit ${code}: ${complaint.trim().slice(-500)}`))
    return child
  }
  const workers = Array.from({ length: WORKERS }, start)
  const alive = (): number => new Set(readHistory(log).map(({ pid }) => pid)).size
  for (const limit = performance.now() + 60_000; alive() < WORKERS && performance.now() < limit; ) await sleep(100)
  const deeds = { emptied: 0, restarted: 0, frozen: 0, 'clients replaced': 0 }
  const deadline = performance.now() + p.seconds * 1_000
  while (performance.now() < deadline) {
    const i = Math.floor(random() * WORKERS)
    if (random() < 0.15) {
      workers[i]?.kill('SIGKILL')
      workers[i] = start()
      deeds['clients replaced']++
    } else await disturb(servers, random, deeds)
    await sleep(200 + random() * 600)
  }
  for (const worker of workers) worker.kill('SIGKILL')
  await Promise.all(servers.map((server) => server.stop()))
  const history = readHistory(log)
  const verdict = judge(history)
  const did = Object.entries(deeds).map(([deed, times]) => `${times} ${deed}`)
  p.say(`${verdict.grants} grants by ${verdict.processes} processes in ${p.seconds} s; ${did.join(', ')}`)
  p.check('workers end only when they are killed', broken.length === 0, broken[0])
  p.check(
    'locks were granted throughout',
    verdict.grants > 20 * p.seconds && steady(history),
    `${verdict.grants} grants`,
  )
  p.check('no token twice', verdict.duplicates.length === 0, verdict.duplicates[0])
  p.check('no token inverted', verdict.inversions.length === 0, verdict.inversions[0])
  p.check('no process believes in a lock beside another', verdict.overlaps.length === 0, verdict.overlaps[0])
  rmSync(dir, { recursive: true, force: true })
}

/** Empties or restarts a server only while a majority votes without it. */
async function disturb(
  servers: readonly RedisServer[],
  random: () => number,
  deeds: { emptied: number; restarted: number; frozen: number },
): Promise<void> {
  const server = servers[Math.floor(random() * servers.length)] as RedisServer
  if (random() < 0.3) {
    await server.freeze()
    await sleep(random() * 1_000)
    await server.thaw()
    deeds.frozen++
    return
  }
  const voters = await Promise.all(servers.map(votes))
  if (voters.filter(Boolean).length < 4) return
  const keepData = random() < 0.5
  await server.kill()
  await sleep(random() * 500)
  await server.restart({ keepData })
  deeds[keepData ? 'restarted' : 'emptied']++
}

async function votes(server: RedisServer): Promise<boolean> {
  const state = await server.command('HGET', 'leasehold:redlock', 'state')
  const run = await server.command('HGET', 'leasehold:redlock', 'run')
  const info = String(await server.command('INFO', 'server'))
  return state === 'votes' && info.includes(`run_id:${run}`)
}

/** True if there is no gap of more than ten seconds: a majority was available all the time. */
function steady(history: readonly { grantedAt: number }[]): boolean {
  const times = history.map(({ grantedAt }) => grantedAt).sort((a, b) => a - b)
  return times.every((time, i) => i === 0 || time - (times[i - 1] as number) < 10_000)
}
