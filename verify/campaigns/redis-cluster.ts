// Redis Cluster: a thousand locks while a master is dead, and a slot with 60,000 keys that is resharded under load.
import { execFile } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { createLocks, type Lock, type Locks } from '../../src/index.js'
import { redis } from '../../src/stores/redis/index.js'
import { slotOf } from '../../src/stores/redis/keys.js'
import { clusterRules } from '../../testbed/redis/acl.js'
import { clusterOf, type Connection } from '../../testbed/redis/fixtures.js'
import { type RedisCluster, startRedisCluster } from '../../testbed/servers/index.js'
import type { Proving } from './proving.js'

const HELD = 1_000
const KEYS = 60_000
/** The first slot of the first master: what redis-cli moves when it is told to move one. */
const MOVED_SLOT = 0
const user = { username: 'locker', password: 'pw' }

const CLIENTS: Record<string, (cluster: RedisCluster) => Promise<Connection>> = {
  'ioredis 6': async (cluster) => clusterOf.ioredis6(cluster, { redisOptions: user }),
  'ioredis 5': async (cluster) => clusterOf.ioredis5(cluster, { redisOptions: user }),
  'node-redis': async (cluster) => clusterOf.nodeRedis(cluster, { defaults: user }),
}

export default async function prove(p: Proving): Promise<void> {
  const unhandled: unknown[] = []
  process.on('unhandledRejection', (error) => void unhandled.push(error))
  for (const [name, connect] of Object.entries(CLIENTS)) await reshard(p, name, connect)
  for (const [name, connect] of Object.entries(CLIENTS)) await deadMaster(p, name, connect)
  p.check('no rejection is left unhandled', unhandled.length === 0, String(unhandled[0] ?? ''))
}

/** With the user of the docs. */
async function start(): Promise<RedisCluster> {
  const cluster = await startRedisCluster({ replicasPerMaster: 0, nodeTimeoutMs: 1_500 })
  for (const node of cluster.nodes) {
    await node.command('CONFIG', 'SET', 'cluster-require-full-coverage', 'no')
    await node.command('ACL', 'SETUSER', 'locker', 'reset', 'on', '>pw', ...clusterRules())
  }
  return cluster
}

const median = (all: readonly number[]): number => all.toSorted((a, b) => a - b)[all.length >> 1] as number

/** Names of the third of three masters, or of the others. */
function names(count: number, onThird: boolean): string[] {
  const found: string[] = []
  for (let i = 0; found.length < count; i++) if (slotOf(`lock:n${i}`) >= 10_923 === onThird) found.push(`n${i}`)
  return found
}

async function scripts(cluster: RedisCluster): Promise<number> {
  const stats = await Promise.all(cluster.masters.slice(0, 2).map((node) => node.command('INFO', 'commandstats')))
  return stats.reduce<number>((sum, text) => {
    const calls = [...String(text).matchAll(/cmdstat_eval(?:sha)?:calls=(\d+)/g)].map(([, count]) => Number(count))
    return sum + calls.reduce((all, count) => all + count, 0)
  }, 0)
}

/** Takes locks on a healthy shard, and asks for what the doomed one served, as an application would. */
async function work(locks: Locks, cluster: RedisCluster, doomed: string, ms: number): Promise<Work> {
  const healthy = names(HELD, false).at(-1) as string
  const times: number[] = []
  const [before, began] = [await scripts(cluster), performance.now()]
  let asked = 0
  for (let i = 0; performance.now() - began < ms; i++) {
    const at = performance.now()
    const lock = await locks.tryAcquire(healthy)
    times.push(performance.now() - at)
    await lock?.release()
    asked += 2
    if (i % 10 === 0)
      locks
        .tryAcquire(doomed)
        .then((one) => one?.release())
        .catch(() => {})
    await sleep(10)
  }
  const seconds = (performance.now() - began) / 1_000
  return { acquireMs: median(times), scriptsPerSecond: ((await scripts(cluster)) - before - asked) / seconds }
}

interface Work {
  acquireMs: number
  /** Other than those of the locks that are taken meanwhile. */
  scriptsPerSecond: number
}

async function deadMaster(
  p: Proving,
  name: string,
  connect: (cluster: RedisCluster) => Promise<Connection>,
): Promise<void> {
  const cluster = await start()
  const connection = await connect(cluster)
  const store = redis(connection.client)
  // Renewed every four seconds: the same number of times before and after.
  const locks = createLocks(store, { ttl: '12s' })
  const [healthy, doomed] = [names((HELD * 2) / 3, false), names(HELD / 3, true)]
  const held = await Promise.all([...healthy, ...doomed].map((one) => locks.acquire(one)))
  await sleep(4_000)
  const before = await work(locks, cluster, doomed[0] as string, 8_000)
  await cluster.masters[2]?.kill()
  const after = await work(locks, cluster, doomed[0] as string, 8_000)
  const alive = held.slice(0, healthy.length).filter((lock) => lock.isHeld).length
  const rates = `${before.scriptsPerSecond.toFixed(0)} before, ${after.scriptsPerSecond.toFixed(0)} scripts/s after`
  p.check(
    `${name}: a dead master of three, ${held.length} locks held: scripts on the healthy masters at most 2x of before`,
    after.scriptsPerSecond <= 2 * before.scriptsPerSecond,
    rates,
  )
  p.check(
    `${name}: an acquire on a healthy shard below 3x its median, and no lock there is lost`,
    after.acquireMs < 3 * before.acquireMs && alive === healthy.length,
    `${before.acquireMs.toFixed(2)} and ${after.acquireMs.toFixed(2)} ms, ${alive} of ${healthy.length} held`,
  )
  await locks.close({ grace: 0 })
  await store.close()
  await connection.end()
  await cluster.stop()
}

async function fill(cluster: RedisCluster, tag: string): Promise<void> {
  const filler = clusterOf.ioredis6(cluster)
  for (let from = 0; from < KEYS; from += 5_000) {
    const pipeline = filler.client.pipeline()
    for (let i = from; i < from + 5_000; i++) pipeline.set(`filler:{${tag}}:${i}`, 'x')
    await pipeline.exec()
  }
  filler.end()
}

interface Load {
  turns: number
  notReleased: string[]
  refused: string[]
  lost: string[]
  moving: boolean
}

/** Takes and gives back names of one slot; what fails for good stays held by nobody who could release it. */
async function turnsOn(locks: Locks, name: string, load: Load): Promise<void> {
  while (load.moving) {
    let lock: Lock
    try {
      lock = await locks.acquire(name, { wait: '20s' })
    } catch (error) {
      load.refused.push(String(error))
      continue
    }
    await sleep(5)
    const released = await lock.release().catch((error: unknown) => String(error))
    if (released === true) load.turns++
    else load.notReleased.push(String(released))
  }
}

async function reshard(
  p: Proving,
  name: string,
  connect: (cluster: RedisCluster) => Promise<Connection>,
): Promise<void> {
  const cluster = await start()
  let tag = ''
  for (let i = 0; tag === ''; i++) if (slotOf(`{t${i}}`) === MOVED_SLOT) tag = `t${i}`
  await fill(cluster, tag)
  const connections = [await connect(cluster), await connect(cluster)]
  const load: Load = { turns: 0, notReleased: [], refused: [], lost: [], moving: true }
  const instances = connections.map(({ client }) => {
    const locks = createLocks(redis(client), { ttl: '30s' })
    locks.on('lost', ({ name: lost }) => load.lost.push(lost))
    return locks
  })
  const [first, second] = instances as [Locks, Locks]
  const held = await Promise.all(
    Array.from({ length: 20 }, (_, i) => first.acquire(`{${tag}}:held:${i}`, { ttl: '6s' })),
  )
  held.push(...(await Promise.all([1, 2].map(() => first.semaphore(`{${tag}}:s`, 2).acquire({ ttl: '6s' })))))
  const contested = Array.from({ length: 10 }, (_, i) => `{${tag}}:turn:${i}`)
  const turns = contested.flatMap((one) => [turnsOn(first, one, load), turnsOn(second, one, load)])
  await sleep(1_000)
  const began = performance.now()
  const moved = await move(cluster)
  const seconds = (performance.now() - began) / 1_000
  // Longer than the ttl of what is held: its renewals have to find the new master.
  await sleep(7_000)
  load.moving = false
  await Promise.all(turns)
  const stillHeld = held.filter((lock) => lock.isHeld).length
  const released = (await Promise.all(held.map((lock) => lock.release().catch(() => false)))).filter(Boolean).length
  const free = await Promise.all(contested.map((one) => second.acquire(one, { wait: '5s' }).catch(() => undefined)))
  const keys = Number(
    await (await cluster.masterOf(MOVED_SLOT)).command('CLUSTER', 'COUNTKEYSINSLOT', String(MOVED_SLOT)),
  )
  p.check(
    `${name}: redis-cli reshards a slot with ${KEYS} keys under load: no MIGRATE fails`,
    moved.ok && keys >= KEYS && (await cluster.masterOf(MOVED_SLOT)) !== cluster.masters[0],
    `${keys} keys in ${seconds.toFixed(1)} s, ${load.turns} turns ${moved.failure}`,
  )
  // A release that is not answered resolves with false, and is tried again in the background. Had one failed for good, its name
  // would be held for the ttl of 30 s: somebody who waits for 20 s would be refused.
  p.check(
    `${name}: no release fails for good, and no lock is reported lost`,
    load.refused.length + load.lost.length === 0 &&
      free.every(Boolean) &&
      stillHeld === held.length &&
      released === held.length,
    `${load.notReleased.length} released in the background, ${load.lost.length} lost, ` +
      `${stillHeld} and ${released} of ${held.length} held and released, ${free.filter(Boolean).length} of ${free.length} free at the end, ` +
      `${load.refused.length} refused ${load.refused[0] ?? ''}`,
  )
  await Promise.all(instances.map((locks) => locks.close({ grace: 0 })))
  for (const { end } of connections) await end()
  await cluster.stop()
}

/** One slot from the first master to the second. */
async function move(cluster: RedisCluster): Promise<{ ok: boolean; failure: string }> {
  const [from, to] = cluster.masters.slice(0, 2)
  const ids = await Promise.all([from, to].map(async (node) => String(await node?.command('CLUSTER', 'MYID'))))
  const args = ['--cluster-from', ids[0], '--cluster-to', ids[1], '--cluster-slots', '1', '--cluster-yes'] as string[]
  try {
    const { stdout } = await promisify(execFile)(
      'redis-cli',
      ['--cluster', 'reshard', `127.0.0.1:${from?.port}`, ...args],
      { maxBuffer: 2 ** 26 },
    )
    const failure = /^.*(?:ERR|BUSYKEY|\[ERR\]).*$/m.exec(stdout)?.[0] ?? ''
    return { ok: failure === '', failure }
  } catch (error) {
    const { stdout = '', message } = error as Error & { stdout?: string }
    return { ok: false, failure: `${stdout.slice(-300)} ${message.slice(-200)}` }
  }
}
