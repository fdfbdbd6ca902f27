// etcd: three real nodes whose leader is killed, frozen and cut off, all restarted, history compacted; and no quorum at all
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createLocks, openStore, StoreUnavailableError } from '../../src/index.js'
import { type HistoryEntry, judge, readHistory } from '../../testbed/lock-history.js'
import { program } from '../../testbed/programs.js'
import { randomFrom } from '../../testbed/random.js'
import { type EtcdCluster, type EtcdNode, startEtcd } from '../../testbed/servers/index.js'
import { SUITES_ON } from '../../testbed/suites.js'
import { runCampaign } from '../oracle/campaign.js'
import { MUTANTS } from '../oracle/mutants.js'
import { withMutant } from '../oracle/mutate.js'
import type { Proving } from './proving.js'

const WORKERS = 6
const TTL_MS = 4_000
/** Names that two processes keep, and for how long each lock lasts: longer than a check has room for, and than an election. */
const KEPT = 700
const KEPT_TTL_MS = 8_000
/** LONGEST_GAP_MS: a frozen leader, an election, and calls that had to find another endpoint. */
const LONGEST_GAP_MS = 20_000

const PARTS = ['chaos', 'held', 'quorum', 'oracle', 'primitives'] as const
const RUNS: Record<(typeof PARTS)[number], (p: Proving) => Promise<void>> = { chaos, held, quorum, oracle, primitives }

export default async function prove(p: Proving): Promise<void> {
  for (const part of p.parts(PARTS)) await RUNS[part](p)
}

/** One disturbance at a time, each followed by a repair: a majority works most of the time, and all of it in the end. */
const DISTURBANCES: Record<string, (cluster: EtcdCluster, random: () => number) => Promise<void>> = {
  'leaders killed': async (cluster, random) => {
    const leader = await cluster.leader()
    await leader.kill()
    await sleep(500 + random() * 2_000)
    await leader.restart()
  },
  'nodes frozen': async (cluster, random) => {
    const node = random() < 0.5 ? await cluster.leader() : anyOf(cluster, random)
    await node.freeze()
    await sleep(500 + random() * 6_000)
    await node.thaw()
  },
  'minorities cut off': async (cluster, random) => {
    cluster.cutOff([random() < 0.5 ? await cluster.leader() : anyOf(cluster, random)])
    await sleep(1_000 + random() * 4_000)
    cluster.healNetwork()
  },
  'restarts of all': (cluster) => cluster.restart({ mode: 'immediate' }),
  compactions: async (cluster) => {
    const status = JSON.parse(await cluster.ctl('endpoint', 'status', '-w', 'json')) as [
      { Status: { header: { revision: number } } },
    ]
    await cluster.ctl('compact', String(status[0].Status.header.revision))
  },
}

const anyOf = (cluster: EtcdCluster, random: () => number): EtcdNode =>
  cluster.nodes[Math.floor(random() * cluster.nodes.length)] as EtcdNode

async function chaos(p: Proving): Promise<void> {
  const random = randomFrom(p.seed)
  const cluster = await startEtcd({ nodes: 3, network: true })
  const dir = mkdtempSync(join(tmpdir(), 'leasehold-etcd-'))
  const log = join(dir, 'history.jsonl')
  writeFileSync(log, '')
  const broken: string[] = []
  const workers = Array.from({ length: WORKERS }, () => startWorker(log, cluster.url, broken))
  const lasting = workers.slice(0, WORKERS / 2).map(({ pid }) => pid)
  const grantedBy = (since: number): Set<number> =>
    new Set(readHistory(log).flatMap(({ pid, grantedAt }) => (grantedAt >= since ? [pid] : [])))
  await until(60_000, () => grantedBy(0).size >= WORKERS)
  const deeds = Object.fromEntries([...Object.keys(DISTURBANCES), 'clients killed'].map((deed) => [deed, 0]))
  const failed: string[] = []
  const deadline = performance.now() + p.seconds * 1_000
  for (let turn = 0; performance.now() < deadline; turn++) {
    const deed = Object.keys(DISTURBANCES)[turn % 5] as string
    try {
      await DISTURBANCES[deed]?.(cluster, random)
      deeds[deed] = (deeds[deed] ?? 0) + 1
    } catch (error) {
      failed.push(`${deed}: ${String(error)}`)
    }
    if (random() < 0.3) {
      const i = WORKERS / 2 + Math.floor((random() * WORKERS) / 2)
      workers[i]?.kill('SIGKILL')
      workers[i] = startWorker(log, cluster.url, broken)
      deeds['clients killed'] = (deeds['clients killed'] ?? 0) + 1
    }
    await sleep(500 + random() * 1_500)
  }
  cluster.healNetwork()
  await cluster.thaw()
  const calm = Number(process.hrtime.bigint()) / 1e6
  const recovered = (): boolean => lasting.every((pid) => grantedBy(calm).has(pid as number))
  await until(60_000, recovered)
  const ok = recovered()
  for (const worker of workers) worker.kill('SIGKILL')
  await cluster.stop()
  report(p, readHistory(log), deeds, { broken, failed, recovered: ok })
  rmSync(dir, { recursive: true, force: true })
}

/** Two processes that hold hundreds of locks by heartbeats, through the same disturbances. */
async function held(p: Proving): Promise<void> {
  const random = randomFrom(p.seed)
  const cluster = await startEtcd({ nodes: 3, network: true })
  const dir = mkdtempSync(join(tmpdir(), 'leasehold-etcd-'))
  const log = join(dir, 'history.jsonl')
  writeFileSync(log, '')
  const broken: string[] = []
  const keepers = [1, 2].map(() =>
    startProgram('keeper', [log, String(KEPT_TTL_MS), cluster.url, String(KEPT)], broken),
  )
  await until(60_000, () => readHistory(log).length > 0)
  const deeds: Record<string, number> = {}
  const deadline = performance.now() + p.seconds * 1_000
  for (let turn = 0; performance.now() < deadline; turn++) {
    const deed = Object.keys(DISTURBANCES)[turn % 5] as string
    // One that could not be done, such as without a leader, is not counted.
    const isDone = await DISTURBANCES[deed]?.(cluster, random).then(
      () => true,
      () => false,
    )
    if (isDone) deeds[deed] = (deeds[deed] ?? 0) + 1
    await sleep(1_000 + random() * 3_000)
  }
  cluster.healNetwork()
  await cluster.thaw()
  await sleep(2 * KEPT_TTL_MS)
  const ended = keepers.map((keeper) => once(keeper, 'exit'))
  for (const keeper of keepers) keeper.kill('SIGTERM')
  await Promise.all(ended)
  await cluster.stop()
  const history = readHistory(log)
  rmSync(dir, { recursive: true, force: true })
  const renewed = history.filter(({ grantedAt, until: last }) => last - grantedAt > KEPT_TTL_MS).length
  const did = Object.entries(deeds).map(([deed, times]) => `${times} ${deed}`)
  p.say(`${history.length} locks, ${renewed} of them held for longer than their ttl; ${did.join(', ')}`)
  const complaints = broken.filter((each) => !each.startsWith('exit 0'))
  p.check('keepers end only when they are told to', complaints.length === 0, complaints[0])
  p.check('locks outlive their ttl by heartbeats', renewed >= KEPT / 2, `${renewed} of ${history.length}`)
  const { duplicates, inversions, overlaps } = judge(history)
  p.check(
    'held: no token twice or inverted',
    duplicates.length + inversions.length === 0,
    duplicates[0] ?? inversions[0],
  )
  p.check('held: no process believes in a lock beside another', overlaps.length === 0, overlaps[0])
}

const startWorker = (log: string, url: string, broken: string[]): ChildProcess =>
  startProgram('worker', [log, String(TTL_MS), url], broken)

function startProgram(name: 'worker' | 'keeper', args: string[], broken: string[]): ChildProcess {
  const file = program(new URL(`etcd/${name}.ts`, import.meta.url))
  const child = spawn(process.execPath, [file, ...args], { stdio: ['ignore', 'ignore', 'pipe'] })
  let complaint = ''
  child.stderr?.on('data', (text: Buffer) => (complaint += text))
  child.on('exit', (code) => code !== null && broken.push(`exit ${code}: ${complaint.trim().slice(-500)}`))
  return child
}

async function until(limitMs: number, condition: () => boolean): Promise<void> {
  for (const limit = performance.now() + limitMs; !condition() && performance.now() < limit; ) await sleep(100)
}

function report(
  p: Proving,
  history: readonly HistoryEntry[],
  deeds: Record<string, number>,
  { broken, failed, recovered }: { broken: string[]; failed: string[]; recovered: boolean },
): void {
  const verdict = judge(history)
  const did = Object.entries(deeds).map(([deed, times]) => `${times} ${deed}`)
  p.say(`${verdict.grants} grants by ${verdict.processes} processes in ${p.seconds} s; ${did.join(', ')}`)
  for (const failure of failed) p.say(`could not disturb: ${failure}`)
  p.check(
    'every kind of disturbance happened',
    Object.values(deeds).every((times) => times > 0),
    did.join(', '),
  )
  p.check('workers end only when they are killed', broken.length === 0, broken[0])
  const gap = longestGap(history)
  p.check('locks were granted throughout', gap < LONGEST_GAP_MS, `the longest gap was ${(gap / 1_000).toFixed(1)} s`)
  p.check('processes that were there all the time recover without a restart', recovered)
  p.check('no token twice', verdict.duplicates.length === 0, verdict.duplicates[0])
  p.check('no token inverted', verdict.inversions.length === 0, verdict.inversions[0])
  p.check('no process believes in a lock beside another', verdict.overlaps.length === 0, verdict.overlaps[0])
}

function longestGap(history: readonly { grantedAt: number }[]): number {
  const times = history.map(({ grantedAt }) => grantedAt).sort((a, b) => a - b)
  return Math.max(...times.map((time, i) => (i === 0 ? 0 : time - (times[i - 1] as number))))
}

/** Two of three are gone: every call has to say so in time, and the same process goes on when one is back. */
async function quorum(p: Proving): Promise<void> {
  const cluster = await startEtcd({ nodes: 3 })
  const store = await openStore(cluster.url)
  const locks = createLocks(store, { ttl: '30s', wait: '2s' })
  await (await locks.acquire('before')).release()
  const [one, two] = cluster.nodes as [EtcdNode, EtcdNode]
  await Promise.all([one.kill(), two.kill()])
  const began = performance.now()
  const error = await locks.tryAcquire('during').catch((reason: unknown) => reason)
  const took = performance.now() - began
  const named =
    error instanceof StoreUnavailableError && cluster.nodes.every(({ host }) => error.message.includes(host))
  const figures = `after ${took.toFixed(0)} ms: ${error instanceof Error ? error.message : String(error)}`
  p.check('quorum lost: StoreUnavailableError in time, naming the endpoints', named && took < store.timeoutMs, figures)
  await one.restart()
  const back = performance.now()
  let lock = await locks.tryAcquire('after').catch(() => null)
  while (!lock && performance.now() - back < 30_000) lock = await locks.tryAcquire('after').catch(() => null)
  p.check('the same process is granted locks again', lock !== null, `after ${(performance.now() - back).toFixed(0)} ms`)
  await lock?.release()
  await locks.close()
  await store.close()
  await cluster.stop()
}

/** Real processes on three nodes, judged by what they believed; and every mutant of the store is caught. */
async function oracle(p: Proving): Promise<void> {
  const cluster = await startEtcd({ nodes: 3 })
  for (const campaign of ['plain', 'shared', 'kill', 'freeze', 'break'] as const) {
    const seconds = Math.max(Math.ceil(p.seconds / 6), 5)
    const { violations, sections, handoffs } = await runCampaign({ store: cluster.url, campaign, seconds })
    const figures = violations[0] ?? `${sections} sections, ${handoffs} hand-offs`
    p.check(`${campaign}: no violation`, violations.length === 0 && handoffs > 0, figures)
  }
  for (const mutant of MUTANTS.filter(({ store }) => store === 'etcd')) {
    const { violations } = await withMutant(mutant, (source) =>
      runCampaign({ store: cluster.url, campaign: mutant.campaign, seconds: 30, source, untilWrong: true }),
    )
    p.check(`caught: ${mutant.name}`, violations.length > 0, violations[0] ?? 'not in 30 s')
  }
  await cluster.stop()
}

/** The suites that every store has to pass, which are too long on etcd for `npm test`. */
const SUITES = ['all', 'election', 'properties', 'read-write', 'semaphore', 'web-locks'] as const

async function primitives(p: Proving): Promise<void> {
  for (const suite of ['stores/etcd/conformance', ...SUITES.map((name) => `primitives/${name}`)]) {
    const { ok, output } = await runSuite(`test/${suite}`)
    p.check(`${suite}: the suite of all stores passes`, ok, /Tests +(.*)/.exec(output)?.[1] ?? output.slice(-500))
  }
}

function runSuite(folder: string): Promise<{ ok: boolean; output: string }> {
  const vitest = fileURLToPath(new URL('../../node_modules/vitest/vitest.mjs', import.meta.url))
  const env = { ...process.env, [SUITES_ON]: 'etcd', NO_COLOR: '1' }
  return new Promise((resolve) => {
    execFile(process.execPath, [vitest, 'run', folder], { env, maxBuffer: 2 ** 26 }, (error, stdout, stderr) =>
      resolve({ ok: error === null, output: stdout + stderr }),
    )
  })
}
