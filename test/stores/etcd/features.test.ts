import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createLocks, InvalidOptionError, type Locks, UnsupportedError } from '../../../src/index.js'
import { ALL, type Claim } from '../../../src/store.js'
import { etcd, guard } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'
import { serverBinary } from '../../../testbed/servers/binaries.js'
import { until } from '../../../testbed/servers/process.js'

let cluster: EtcdCluster
let hosts: string[]
let locks: Locks
let other: Locks

beforeAll(async () => {
  cluster = await startEtcd()
  hosts = cluster.nodes.map(({ host }) => host)
  locks = createLocks(etcd(hosts), { wait: '20s' })
  other = createLocks(etcd(hosts), { wait: '20s' })
})
afterAll(async () => {
  await locks.close({ grace: 0 })
  await other.close({ grace: 0 })
  await cluster.stop()
})

const leases = async (): Promise<number> => Number(/\d+/.exec(await cluster.ctl('lease', 'list'))?.[0])

/** The leases that the keys of these locks are bound to. As text: they are larger than a number can be. */
const leasesOf = async (name: string): Promise<string[]> => {
  const answer = await cluster.ctl('get', '--prefix', `leasehold/${name}`, '-w', 'json')
  return [...answer.matchAll(/"lease":(\d+)/g)].map(([, id]) => id as string)
}

describe('what etcd has no clock for', () => {
  test('limiter throws UnsupportedError', () => {
    expect(() => locks.limiter('api', { limit: 1, per: '1s' })).toThrow(UnsupportedError)
  })

  test('schedule throws UnsupportedError that names clock: local', () => {
    expect(() => locks.schedule('job', '* * * * * *', () => {})).toThrow(UnsupportedError)
    expect(() => locks.schedule('job', '* * * * * *', () => {})).toThrow("{ clock: 'local' }")
  })

  test("schedule with { clock: 'local' } starts each tick once", async () => {
    const ticks: number[] = []
    const both = [locks, other].map((each) =>
      each.schedule('each-second', '* * * * * *', ({ tick }) => void ticks.push(tick.getTime()), { clock: 'local' }),
    )
    await until('it ran', () => ticks.length >= 3)
    await Promise.all(both.map((schedule) => schedule.stop()))
    expect(new Set(ticks).size).toBe(ticks.length)
  })
})

describe('leases', () => {
  test('locks that are renewed share one lease per ttl, and one that is not has its own', async () => {
    const store = etcd(hosts)
    const own = createLocks(store, { ttl: '17s' })
    const before = await leases()
    const held = await Promise.all(Array.from({ length: 20 }, (_, i) => own.acquire(`shared-lease:${i}`)))
    const shared = await leasesOf('lock:shared-lease:')
    expect(shared.length).toBe(20)
    expect(new Set(shared).size).toBe(1)
    const single = await own.acquire('own-lease', { autoRenew: false })
    expect(shared).not.toContain((await leasesOf('lock:own-lease'))[0])
    await single.release()
    await Promise.all(held.map((lock) => lock.release()))
    await own.close()
    await store.close()
    await until('none is left', async () => (await leases()) === before)
  })

  test('a refusal costs no lease', async () => {
    const held = await locks.acquire('no-lease')
    const before = await leases()
    expect(await other.tryAcquire('no-lease', { autoRenew: false, ttl: '23s' })).toBe(null)
    expect(await leases()).toBe(before)
    await held.release()
  })

  test('the result of runOnce outlives its process', async () => {
    const store = etcd(hosts)
    const brief = createLocks(store, { ttl: '2s' })
    expect(await brief.runOnce('charge:7', async () => 'charged', { retain: '1m' })).toBe('charged')
    await brief.close()
    await store.close()
    // Longer than the lease that its lock shared with others could last.
    await sleep(3_500)
    const again = await locks.runOnce('charge:7', async () => 'charged twice')
    expect(again).toBe('charged')
  })
})

describe('the queue', () => {
  test('of two waiters that entered it in one transaction only the first is granted the lock, however both ask', async () => {
    const [one, two] = [etcd(hosts), etcd(hosts)]
    const key = 'lock:tied'
    const claim = (owner: string): Claim => ({ key, owner, weight: ALL, capacity: ALL, ttlMs: 20_000, renewed: true })
    await one.acquire([claim('holder')])
    const waiting = ['z', 'a', 'm'].map((owner): Claim => ({ ...claim(owner), queueMs: 20_000 }))
    await two.acquire(waiting)
    const created = (await cluster.ctl('get', 'leasehold/lock:tied/', '--prefix', '-w', 'json')).matchAll(
      /"create_revision":(\d+)/g,
    )
    expect(new Set([...created].map(([, revision]) => revision)).size, 'the last two came together').toBe(3)
    await one.release([{ key, owner: 'holder' }])
    for (const first of ['z', 'a', 'm']) {
      const answers = await Promise.all(
        waiting.map(async (each) => [each.owner, (await two.acquire([each]))[0]?.granted]),
      )
      expect(answers.filter(([, granted]) => granted === true)).toEqual([[first, true]])
      expect(await two.release([{ key, owner: first }])).toEqual([{ outcome: 'released' }])
      waiting.shift()
    }
    await one.close()
    await two.close()
  })
})

describe('a hand-off', () => {
  const HOLD_MS = 5

  /** Milliseconds per lock, of `count` that are taken in turn. */
  async function pace(count: number, lockers: readonly Locks[], holdMs: number): Promise<number> {
    let left = count
    const began = performance.now()
    const takeTurns = async (each: Locks): Promise<void> => {
      while (left-- > 0) {
        const lock = await each.acquire('in-turn')
        await sleep(holdMs)
        await lock.release()
      }
    }
    await Promise.all(lockers.map(takeTurns))
    return (performance.now() - began) / count
  }

  test('does not wait for the next look of etcd after its watches while others write to the cluster', async () => {
    const others = Array.from({ length: 5 }, () => createLocks(etcd(hosts), { wait: '20s' }))
    let writing = true
    const writers = others.map(async (each, n) => {
      while (writing) await (await each.acquire(`others:${n}`)).release()
    })
    await pace(10, [locks, other], HOLD_MS)
    // etcd looks every 100 ms after watches that begin in the past, which would be 50 ms for each hand-off, in every
    // round. A machine that stands still for a moment during the second measure of a round spoils that round only.
    const tooSlow: string[] = []
    for (let round = 0; round < 4 && tooSlow.length === round; round++) {
      const alone = await pace(20, [locks], HOLD_MS)
      const handoff = await pace(30, [locks, other], HOLD_MS)
      if (handoff >= 2 * alone + 20) tooSlow.push(`${handoff} ms, beside ${alone} ms alone`)
    }
    writing = false
    await Promise.all(writers)
    for (const each of others) await each.close()
    expect(tooSlow.length, tooSlow.join('; ')).toBeLessThan(4)
  })
})

describe('guard()', () => {
  interface Txn {
    compare: object[]
    success: object[]
  }
  const transact = async (txn: Txn): Promise<boolean> => {
    const response = await fetch(`${cluster.endpoints[0]}/v3/kv/txn`, { method: 'POST', body: JSON.stringify(txn) })
    return ((await response.json()) as { succeeded?: boolean }).succeeded === true
  }
  const base64 = (text: string): string => Buffer.from(text).toString('base64')
  const success = [{ requestPut: { key: base64('balance:7'), value: base64('90') } }]

  test('a write with it is carried out while the lock is held, and refused once it is gone', async () => {
    const lock = await locks.acquire('guarded')
    const { compare } = guard(lock)
    expect(await transact({ compare: [compare], success })).toBe(true)
    await lock.extend('40s')
    expect(await transact({ compare: [compare], success }), 'renewals do not change it').toBe(true)
    await other.forceRelease('guarded')
    expect(await transact({ compare: [compare], success })).toBe(false)
    const next = await other.acquire('guarded')
    expect(await transact({ compare: [compare], success }), 'another holder').toBe(false)
    expect(await transact({ compare: [guard(next).compare], success })).toBe(true)
    await next.release()
  })

  test('etcdctl txn takes it as a line', async () => {
    const lock = await locks.acquire('guarded-ctl')
    const write = (): Promise<string> =>
      new Promise((resolve, reject) => {
        const env = { ...process.env, ETCDCTL_API: '3' }
        const child = execFile(
          serverBinary('etcdctl'),
          ['--endpoints', cluster.endpoints.join(), 'txn'],
          { env },
          (error, out) => (error ? reject(error) : resolve(out)),
        )
        child.stdin?.end(`${guard(lock).etcdctl}\n\nput k v\n\n\n`)
      })
    const line = guard(lock).etcdctl
    expect(await write()).toContain('SUCCESS')
    expect(line).toContain('create("leasehold/lock:guarded-ctl/')
    await lock.release()
    expect(() => guard(lock)).toThrow(InvalidOptionError)
  })
})

describe('etcdctl lock', () => {
  const ctl = (name: string): { held: Promise<void>; end: () => Promise<void> } => {
    const env = { ...process.env, ETCDCTL_API: '3' }
    const child = spawn(
      serverBinary('etcdctl'),
      ['--endpoints', cluster.endpoints.join(), 'lock', `leasehold/lock:${name}`],
      { env },
    )
    const held = once(child.stdout, 'data').then(() => {})
    const end = async (): Promise<void> => {
      const gone = once(child, 'exit')
      child.kill('SIGINT')
      await gone
    }
    return { held, end }
  }

  test('excludes us, is seen as a foreign holder, and its release wakes our waiter', async () => {
    const foreign = ctl('theirs')
    await foreign.held
    expect(await locks.tryAcquire('theirs')).toBe(null)
    expect(await locks.holders('theirs')).toMatchObject([{ foreign: true }])
    const waiting = locks.acquire('theirs')
    await until('it waits', async () => (await locks.waiters('theirs')).length === 1)
    await foreign.end()
    const lock = await waiting
    expect(lock.isHeld).toBe(true)
    await lock.release()
  })

  test('waits for us, in the order of the queue', async () => {
    const held = await locks.acquire('ours')
    const foreign = ctl('ours')
    let isHeld = false
    void foreign.held.then(() => {
      isHeld = true
    })
    await until('it waits', async () => (await locks.waiters('ours')).length === 1)
    const behind = other.acquire('ours')
    await until('ours waits behind it', async () => (await locks.waiters('ours')).length === 2)
    expect(isHeld).toBe(false)
    await held.release()
    await foreign.held
    expect(await locks.tryAcquire('ours')).toBe(null)
    await foreign.end()
    await (await behind).release()
  })

  test('a waiter of ours that is granted the lock keeps an etcdctl that came later out', async () => {
    const held = await locks.acquire('chain')
    const ours = other.acquire('chain')
    await until('ours waits', async () => (await locks.waiters('chain')).length === 1)
    const foreign = ctl('chain')
    let isHeld = false
    void foreign.held.then(() => {
      isHeld = true
    })
    await until('both wait', async () => (await locks.waiters('chain')).length === 2)
    await held.release()
    const lock = await ours
    await sleep(300)
    expect(isHeld).toBe(false)
    await lock.release()
    await foreign.held
    await foreign.end()
  })
})
