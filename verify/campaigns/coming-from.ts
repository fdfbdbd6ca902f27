/** Old and new during a change of library: redlock@5, redis-semaphore and verrou beside leasehold, as docs/guide/coming-from.md says. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createLocks, type Locks, LockTimeoutError } from '../../src/index.js'
import { redis } from '../../src/stores/redis/index.js'
import { redlock } from '../../src/stores/redlock/index.js'
import { startRedis } from '../../testbed/servers/index.js'
import { type Peer, installPeers, redisSemaphoreMutex, redlock5, verrou } from './coming-from/peers.js'
import type { Proving } from './proving.js'

/** Workers of each side, and runs of each worker. */
const WORKERS = 4
const TURNS = 60

export default async function prove(p: Proving): Promise<void> {
  installPeers()
  const servers = await Promise.all([startRedis(), startRedis(), startRedis()])
  const clients: Redis[] = []
  const connect = (index = 0): Redis => {
    const client = new Redis((servers[index] as (typeof servers)[number]).url)
    clients.push(client)
    return client
  }
  const three = (): Redis[] => [0, 1, 2].map(connect)
  const one = createLocks(redis(connect()))
  const quorum = createLocks(redlock(three(), { maxTtl: '1m' }))
  // Where both use the same key, one deploy is enough.
  await sameKey(
    p,
    'redlock@5',
    redlock5([connect()], (name) => `lock:${name}`),
    one,
  )
  await sameKey(
    p,
    'redlock@5 on three servers',
    redlock5(three(), (name) => `lock:${name}`),
    quorum,
  )
  await sameKey(
    p,
    'verrou',
    verrou(connect(), (name) => `lock:${name}`),
    one,
  )
  // With two deploys, the keys of the libraries do not matter.
  await twoDeploys(
    p,
    'redlock@5',
    redlock5([connect()], (name) => name),
    one,
  )
  await twoDeploys(
    p,
    'verrou',
    verrou(connect(), (name) => name),
    one,
  )
  await twoDeploys(p, 'redis-semaphore', redisSemaphoreMutex(connect()), one)
  await Promise.all([one.close(), quorum.close()])
  for (const client of clients) client.disconnect()
  await Promise.all(servers.map((server) => server.stop()))
}

/** Each excludes the other, by one key. */
async function sameKey(p: Proving, label: string, peer: Peer, locks: Locks): Promise<void> {
  const name = `same:${label}`
  const theirs = await peer(name, 30_000)
  p.check(`${label} holds: tryAcquire gets nothing`, theirs !== undefined && (await locks.tryAcquire(name)) === null)
  const refused = await locks.acquire(name, { wait: 100 }).catch((error: unknown) => error)
  p.check(`${label} holds: acquire times out`, refused instanceof LockTimeoutError)
  const waiting = locks.acquire(name, { wait: '10s' })
  await sleep(50)
  const freedAt = performance.now()
  await theirs?.()
  const ours = await waiting
  p.check(`${label} releases: a waiter gets it`, ours.isHeld, `after ${Math.round(performance.now() - freedAt)} ms`)
  p.check(`leasehold holds: ${label} is refused`, (await peer(name, 1_000)) === undefined)
  await ours.release()
  const again = await peer(name, 30_000)
  p.check(`leasehold releases: ${label} gets it`, again !== undefined)
  await again?.()
  const abandoned = await peer(name, 500)
  const next = await locks.acquire(name, { wait: '10s' })
  p.check(`${label} dies: leasehold gets it after its ttl`, abandoned !== undefined && next.isHeld)
  await next.release()
  const old = (work: Work): Promise<void> => workUnder(peer, name, work)
  // By single attempts: leasehold hands a lock off to its waiters, and the other library would hardly ever get it.
  const ourAttempt: Peer = async (its) => {
    const lock = await locks.tryAcquire(its)
    return lock ? () => lock.release() : undefined
  }
  const fresh = (work: Work): Promise<void> => workUnder(ourAttempt, name, work)
  await mix(p, `${label} and leasehold by one key`, [old, fresh])
}

/** First both locks, then leasehold's alone. */
async function twoDeploys(p: Proving, label: string, peer: Peer, locks: Locks): Promise<void> {
  const name = `two:${label}`
  const old = (work: Work): Promise<void> => workUnder(peer, name, work)
  const both = (work: Work): Promise<void> =>
    locks.withLock(name, () => workUnder(peer, name, work), { wait: '60s', ttl: '30s' })
  const fresh = (work: Work): Promise<void> => locks.withLock(name, () => work(), { wait: '60s' })
  await mix(p, `${label}, first deploy: the old lock, and both`, [old, both])
  await mix(p, `${label}, second deploy: both, and leasehold's`, [both, fresh])
}

type Work = () => Promise<void>

/** Retries until the lock is granted, as users of these libraries do. */
async function workUnder(peer: Peer, name: string, work: Work): Promise<void> {
  for (;;) {
    const release = await peer(name, 30_000)
    if (!release) {
      await sleep(2 + Math.random() * 8)
      continue
    }
    await work()
    await release()
    return
  }
}

async function mix(p: Proving, label: string, sides: readonly ((work: Work) => Promise<void>)[]): Promise<void> {
  let inside = 0
  let overlaps = 0
  let changes = 0
  let last = -1
  let runs = 0
  const worker = async (side: number): Promise<void> => {
    for (let turn = 0; turn < TURNS; turn++) {
      await sides[side]?.(async () => {
        if (++inside > 1) overlaps++
        if (last !== side) changes++
        last = side
        runs++
        await sleep(Math.random() * 2)
        inside--
      })
      await sleep(Math.random() * 4)
    }
  }
  const all = sides.flatMap((_, side) => Array.from({ length: WORKERS }, () => worker(side)))
  await Promise.all(all)
  const figures = `${runs} runs, ${changes} changes of side, ${overlaps} overlaps`
  p.check(`${label}: never two at once`, overlaps === 0 && changes > 10 && runs === all.length * TURNS, figures)
}
