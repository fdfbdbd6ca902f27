import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createLocks, type Locks, StoreUnavailableError } from '../../../src/index.js'
import { ALL, type Answer, type Claim, type Grant, type Store } from '../../../src/store.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, type EtcdNode, type Proxy, startEtcd, startProxy } from '../../../testbed/servers/index.js'
import { until } from '../../../testbed/servers/process.js'

let names = 0
const fresh = (): string => `lock:fault:${names++}`
const claim = (key: string, more: Partial<Claim> = {}): Claim => {
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 20_000, renewed: true, ...more }
}
const ask = async (store: Store, wanted: Claim): Promise<Answer> => (await store.acquire([wanted]))[0] as Answer
const grant = async (store: Store, wanted: Claim): Promise<Grant> => {
  const answer = await ask(store, wanted)
  if (answer.granted !== true) throw answer.granted === 'unknown' ? answer.error : new Error(`refused: ${wanted.key}`)
  return answer
}

/** Asks again while the store is unavailable. */
async function eventually<T>(attempt: () => Promise<T>, withinMs = 30_000): Promise<T> {
  const deadline = performance.now() + withinMs
  for (;;) {
    try {
      return await attempt()
    } catch (error) {
      if (!(error instanceof StoreUnavailableError) || performance.now() > deadline) throw error
    }
  }
}

describe('three nodes', () => {
  let cluster: EtcdCluster
  let store: Store
  let locks: Locks
  let other: Locks
  const hosts = (): string[] => cluster.nodes.map(({ host }) => host)

  beforeAll(async () => {
    cluster = await startEtcd({ nodes: 3, network: true })
    store = etcd(hosts())
    locks = createLocks(store, { ttl: '40s', wait: '50s' })
    other = createLocks(etcd(hosts()), { ttl: '40s', wait: '50s' })
  })
  afterAll(async () => {
    await locks.close({ grace: 0 })
    await other.close({ grace: 0 })
    await cluster.stop()
  })

  /** A lock that is held through a disturbance stays held, and passes on to a waiter of another process after it. */
  async function survives(disturb: () => Promise<void>, repair: () => Promise<void>): Promise<void> {
    const name = `survives:${names++}`
    const held = await locks.acquire(name)
    const waiting = other.acquire(name)
    await disturb()
    const wanted = claim(fresh())
    // An election may take longer than one call.
    const later = await eventually(() => grant(store, wanted))
    expect(later.token > held.fencingToken).toBe(true)
    await eventually(() => held.extend('20s'))
    expect(held.isHeld).toBe(true)
    expect(await other.tryAcquire(name)).toBe(null)
    expect(await held.release()).toBe(true)
    const next = await waiting
    expect(next.fencingToken > later.token).toBe(true)
    await next.release()
    await repair()
  }

  test('a lock outlives the death of the leader, and passes on to the waiter of another process', async () => {
    const leader = await cluster.leader()
    await survives(
      () => leader.kill(),
      () => leader.restart(),
    )
  })

  test('a lock outlives a frozen leader, and no call waits for the node', async () => {
    const leader = await cluster.leader()
    await survives(
      () => leader.freeze(),
      () => leader.thaw(),
    )
  })

  test('a lock outlives a leader that is cut off from the others, although clients still reach it', async () => {
    const leader = await cluster.leader()
    await survives(
      async () => {
        cluster.cutOff([leader])
        await until('the others elect another leader', async () => {
          const now = await cluster.leader().catch(() => leader)
          return now !== leader
        })
      },
      async () => cluster.healNetwork(),
    )
  })

  test('a lock outlives a restart of all nodes', async () => {
    await until('all are back', async () => (await Promise.all(cluster.nodes.map(isBack))).every(Boolean))
    await survives(
      () => cluster.restart({ mode: 'immediate' }),
      async () => {},
    )
  })

  async function isBack(node: EtcdNode): Promise<boolean> {
    return (await cluster.leader().catch(() => undefined)) !== undefined && node.pid > 0
  }

  test('a lease that was revoked by hand is gone, and its renewal does not bring it back', async () => {
    const key = fresh()
    const lease = await grant(store, claim(key, { renewed: false }))
    const [id] = (await cluster.ctl('lease', 'list')).split('\n').slice(1)
    for (const line of (await cluster.ctl('lease', 'list')).split('\n').slice(1)) {
      if (line !== '') await cluster.ctl('lease', 'revoke', line)
    }
    expect(id).toBeDefined()
    expect(await store.renew([{ key, ...lease, ttlMs: 20_000 }])).toEqual([{ outcome: 'gone' }])
    const again = await grant(store, claim(key))
    expect(again.token > lease.token).toBe(true)
  })

  test('without a quorum every call ends in time with a StoreUnavailableError that names the endpoints', async () => {
    const key = fresh()
    const lease = await grant(store, claim(key))
    const [one, two] = cluster.nodes as [EtcdNode, EtcdNode]
    await Promise.all([one.kill(), two.freeze()])
    const began = performance.now()
    const failures = await Promise.all([
      ask(store, claim(fresh())).then((answer) => (answer as { error?: unknown }).error),
      Promise.resolve(store.renew([{ key, ...lease, ttlMs: 20_000 }])).then(
        ([renewed]) => (renewed as { error?: unknown }).error,
      ),
      Promise.resolve(store.release([{ key, ...lease }])).then(([released]) => (released as { error?: unknown }).error),
      Promise.resolve(store.inspect?.(key)).catch((error: unknown) => error),
      Promise.resolve(store.holders?.('lock:')).catch((error: unknown) => error),
      Promise.resolve(store.revoke?.(key)).catch((error: unknown) => error),
    ])
    // A call that had no limit would wait for a quorum, which comes back only below.
    expect(performance.now() - began).toBeLessThan(5 * store.timeoutMs)
    for (const failure of failures) {
      expect(failure).toBeInstanceOf(StoreUnavailableError)
      for (const host of hosts()) expect((failure as Error).message).toContain(host)
    }
    await Promise.all([one.restart(), two.thaw()])
    await until('it recovers', async () => (await ask(store, claim(fresh()))).granted === true)
  })
})

describe('one node behind a proxy', () => {
  let cluster: EtcdCluster
  let proxy: Proxy
  let direct: Store

  beforeAll(async () => {
    cluster = await startEtcd()
    proxy = await startProxy(cluster.port)
    direct = etcd([cluster.nodes[0]?.host as string])
  })
  afterAll(async () => {
    await direct.close()
    await proxy.stop()
    await cluster.stop()
  })

  test('what an unanswered request left behind is removed, although another lock keeps the shared lease alive', async () => {
    const store = etcd([`127.0.0.1:${proxy.port}`])
    const kept = claim(fresh())
    await grant(store, kept)
    const key = fresh()
    proxy.stall('replies')
    const lost = ask(store, claim(key))
    await until('it is carried out', async () => (await direct.inspect?.(key))?.holders.length === 1)
    expect((await lost).granted).toBe('unknown')
    await proxy.heal()
    await until('it is removed', async () => (await direct.inspect?.(key))?.holders.length === 0)
    expect(await store.renew([{ key: kept.key, owner: kept.owner, ttlMs: 20_000 }])).toMatchObject([
      { outcome: 'ours' },
    ])
    expect((await direct.inspect?.(kept.key))?.holders).toHaveLength(1)
    await store.close()
  })

  test('a waiter whose events were compacted away while it was cut off still gets the lock', async () => {
    const locks = createLocks(etcd([`127.0.0.1:${proxy.port}`]), { wait: '30s' })
    const name = `compacted:${names++}`
    const held = await grant(direct, claim(`lock:${name}`))
    const waiting = locks.acquire(name)
    await until('it waits', async () => (await direct.inspect?.(`lock:${name}`))?.waiters.length === 1)
    await proxy.refuse()
    await direct.release([{ key: `lock:${name}`, owner: held.owner }])
    const filler = await grant(direct, claim(fresh()))
    const status = JSON.parse(await cluster.ctl('endpoint', 'status', '-w', 'json')) as [
      { Status: { header: { revision: number } } },
    ]
    await cluster.ctl('compact', String(status[0].Status.header.revision))
    await proxy.heal()
    const lock = await waiting
    expect(lock.fencingToken > filler.token || lock.fencingToken > held.token).toBe(true)
    await lock.release()
    await locks.close()
  })

  test('a release whose answer was lost leaves nothing behind', async () => {
    const store = etcd([`127.0.0.1:${proxy.port}`])
    const key = fresh()
    const lease = await grant(store, claim(key))
    proxy.stall('requests')
    const released = store.release([{ key, ...lease }])
    expect(await released).toMatchObject([{ outcome: 'unknown' }])
    proxy.cut()
    await proxy.heal()
    await until('it is removed', async () => (await direct.inspect?.(key))?.holders.length === 0)
    await store.close()
  })

  test('a cluster that lost its data grants larger tokens than before', async () => {
    const before = await grant(direct, claim(fresh()))
    await cluster.restart({ keepData: false })
    await sleep(5)
    const after = await grant(direct, claim(fresh()))
    expect(after.token > before.token).toBe(true)
  })

  test('subscriptions that were open when a cluster lost its data hear what happens after that', async () => {
    const key = fresh()
    const mine = etcd([cluster.nodes[0]?.host as string])
    let changes = 0
    const observed = mine.watch?.(key, ({ type }) => void (type === 'changed' && changes++))
    const revoked: string[] = []
    const watching = mine.watchRevoked?.(({ owner }) => void revoked.push(owner))
    expect(await observed?.ready).toBe(true)
    expect(await watching?.ready).toBe(true)
    // Each write is a revision: the new cluster begins below what the subscriptions have seen.
    for (let i = 0; i < 20; i++) await direct.release([claim(fresh())].map(({ owner }) => ({ key, owner })))
    const many = Array.from({ length: 40 }, () => claim(fresh()))
    for (const each of many) await grant(direct, each)
    const seen = claim(key, { announce: true })
    await grant(direct, seen)
    await until('it is heard', () => changes > 0)
    await cluster.restart({ keepData: false })
    await until('both are live', () => observed?.live() === true && watching?.live() === true)
    changes = 0
    const again = claim(key, { announce: true })
    await grant(mine, again)
    await until('it is heard again', () => changes > 0)
    await direct.revoke?.(key)
    await until('the revocation is heard', () => revoked.includes(again.owner))
    await mine.close()
  })
})
