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
import type { Share } from '../../test/simulation/redlock/share.js'
import { type Mutation, REGIMES, simulate } from '../../test/simulation/redlock/simulation.js'
import { chance } from '../../test/simulation/redlock/timeline.js'
import { judge, readHistory } from '../../test/stores/redlock/history.js'
import { type RedisServer, startRedis } from '../servers/index.js'
import type { Proving } from './proving.js'
import { program } from '../support/programs.js'

const SCHEDULES = 100_000
const MUTATIONS: Mutation[] = [
  'raise without still mine',
  'max of increments',
  'majority of half',
  'no sitting out',
  'sitting out in client memory',
  'counters per name that expire',
  'writer blind to readers',
  'release without owner check',
  'a guess is always good',
  'a batch is blind to what it raises',
  'raises behind a steal',
  'trust beyond the ttl',
]

export default async function prove(p: Proving): Promise<void> {
  await simulation(p)
  await latency(p)
  await listing(p)
  await death(p)
  await chaos(p)
}

/** All cores take part: schedules have nothing to do with each other. */
async function simulation(p: Proving): Promise<void> {
  const shares = availableParallelism()
  const all = await Promise.all(Array.from({ length: shares }, (_, nth) => shareOf(p.seed, nth, shares)))
  // Processor time: who else is busy on this machine changes nothing.
  const seconds = Math.max(...all.map(({ cpuSeconds }) => cpuSeconds))
  const total = (what: 'grants' | 'refusals' | 'restarts'): number => all.reduce((sum, share) => sum + share[what], 0)
  const bad = all.flatMap((share) => share.bad)
  const work = `${SCHEDULES} schedules, ${total('grants')} grants, ${total('refusals')} refusals, ${total('restarts')} restarts`
  p.check('no schedule has a duplicate or inverted token, or two who hold at once', bad.length === 0, bad[0] ?? work)
  p.check(
    'the simulation takes less than a minute of each core',
    seconds < 60,
    `${seconds.toFixed(1)} s on ${shares} cores`,
  )
  const limit = Error.stackTraceLimit
  Error.stackTraceLimit = 0
  for (const mutation of MUTATIONS) mutant(p, mutation)
  Error.stackTraceLimit = limit
}

async function shareOf(seed: number, nth: number, shares: number): Promise<Share> {
  const file = program(new URL('../../test/simulation/redlock/share.ts', import.meta.url))
  const args = [file, ...[seed, SCHEDULES, nth, shares].map(String)]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  let said = ''
  for await (const text of child.stdout) said += text
  return JSON.parse(said) as Share
}

function mutant(p: Proving, mutation: Mutation): void {
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

/** One frozen server must not be felt. By turns, so that a noisy machine is noisy for both. */
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

const HELD = 100_000

/** Everything is listed while another process takes locks, by turns with rest. */
async function listing(p: Proving): Promise<void> {
  const servers = await Promise.all(Array.from({ length: 3 }, () => startRedis()))
  const clients = connect(servers)
  const store = redlock(clients, { maxTtl: '20m' })
  await cycles(createLocks(store), 10, 'before')
  await Promise.all(clients.map(holdMany))
  const file = program(new URL('../../test/stores/redlock/contender.ts', import.meta.url))
  const child = spawn(process.execPath, [file, '20m', servers.map(({ port }) => port).join()], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let times: string[] = []
  child.stdout.on('data', (text: Buffer) => times.push(...text.toString().trim().split('\n')))
  while (times.length < 200) await sleep(50)
  const usual: string[] = []
  const meanwhile: string[] = []
  let found = 0
  let listedMs = 0
  for (let round = 0; round < 3; round++) {
    times = usual
    await sleep(2_000)
    times = meanwhile
    const began = performance.now()
    found = (await store.holders?.('lock:many:'))?.length ?? 0
    listedMs = performance.now() - began
  }
  child.kill('SIGKILL')
  const slow = (await Promise.all(clients.map(pages))).flat().sort((a, b) => a - b)
  const at = (share: number): string => `${((slow[Math.floor(slow.length * share)] ?? 0) / 1_000).toFixed(1)} ms`
  const figures = `${slow.length} pages, median ${at(0.5)}, 99 % below ${at(0.99)}, in ${(listedMs / 1_000).toFixed(1)} s`
  p.check(`${HELD} held locks are listed, a page at a time`, found === HELD, figures)
  p.check(
    'a page keeps a server for less than 5 ms (SLOWLOG, 95 %)',
    (slow[Math.floor(slow.length * 0.95)] ?? 0) < 5_000,
  )
  const numbers = (all: readonly string[]): number[] => all.filter((text) => text !== 'failed').map(Number)
  const [before, during] = [median(numbers(usual)), median(numbers(meanwhile))]
  const failed = [...usual, ...meanwhile].filter((text) => text === 'failed').length
  p.check(
    "another process's acquire stays below 3x its usual median meanwhile",
    during < 3 * before && failed === 0,
    `${before.toFixed(2)} ms, meanwhile ${during.toFixed(2)} ms (${(during / before).toFixed(2)}x), ${failed} failed`,
  )
  for (const client of clients) client.disconnect()
  await Promise.all(servers.map((server) => server.stop()))
}

/** As the scripts write it, and in a fraction of the time. */
async function holdMany(client: Redis): Promise<void> {
  // What a page takes, and other calls do not.
  await client.config('SET', 'slowlog-log-slower-than', '200')
  await client.config('SET', 'slowlog-max-len', '20000')
  for (let from = 0; from < HELD; from += 2_000) {
    const pipeline = client.pipeline()
    const fields: string[] = []
    for (let i = from; i < from + 2_000; i++) {
      const owner = `owner-${i}#abcdefgh1`
      pipeline.set(`lock:many:${i}`, owner, 'PX', 1_000_000)
      fields.push(`:lock:many:${i}`, `${Date.now()}000:${Date.now()}:1:0:0:${owner}`)
    }
    pipeline.hset('leasehold:redlock', ...fields)
    await pipeline.exec()
  }
  await client.slowlog('RESET')
}

/** How many microseconds each page of a listing took, by the server's own account. */
async function pages(client: Redis): Promise<number[]> {
  const log = (await client.slowlog('GET', 20_000)) as [number, number, number, string[]][]
  return log.filter(([, , , args]) => args.includes(':lock:many:*')).map(([, , micros]) => micros)
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

/** Nodes die, freeze and come back with and without their data, and processes come and go, but a majority always votes. */
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
  p.check('nobody believes in a lock beside another', verdict.overlaps.length === 0, verdict.overlaps[0])
  rmSync(dir, { recursive: true, force: true })
}

/** A server is emptied or restarted only while a majority votes without it. */
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

/** Never a gap of more than ten seconds: a majority was there all the time. */
function steady(history: readonly { grantedAt: number }[]): boolean {
  const times = history.map(({ grantedAt }) => grantedAt).sort((a, b) => a - b)
  return times.every((time, i) => i === 0 || time - (times[i - 1] as number) < 10_000)
}
