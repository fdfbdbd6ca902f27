import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import { ALL, type Claim, type Store, type Watch } from '../../../src/store.js'
import { EtcdConnection } from '../../../src/stores/etcd/connection.js'
import { endpointsFrom } from '../../../src/stores/etcd/create.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { EtcdStore } from '../../../src/stores/etcd/store.js'
import { realWorld } from '../../../src/util/world.js'
import { type EtcdCluster, type Proxy, startEtcd, startProxy } from '../../../testbed/servers/index.js'
import { until } from '../../../testbed/servers/process.js'

let cluster: EtcdCluster
let proxy: Proxy
let store: Store
let direct: Store
let names = 0
let probes = 0
const { probe, open } = EtcdConnection.prototype

beforeAll(async () => {
  cluster = await startEtcd()
  proxy = await startProxy(cluster.port)
  direct = etcd([cluster.nodes[0]?.host as string])
})
beforeEach(() => {
  // The first endpoint is used until it fails: the same server by way of a proxy, which falls silent.
  const endpoints = endpointsFrom([`127.0.0.1:${proxy.port}`, cluster.nodes[0]?.host as string], undefined)
  const world = { ...realWorld, random: () => 0 }
  store = new EtcdStore({ endpoints, credentials: undefined, prefix: 'leasehold/', world })
  probes = 0
  EtcdConnection.prototype.probe = function counted(this: EtcdConnection) {
    probes++
    return probe.call(this)
  }
})
afterEach(async () => {
  EtcdConnection.prototype.probe = probe
  EtcdConnection.prototype.open = open
  await store.close()
  await proxy.heal()
})
afterAll(async () => {
  await direct.close()
  await proxy.stop()
  await cluster.stop()
})

const claim = (more: Partial<Claim> = {}): Claim => {
  const key = `lock:silence:${names++}`
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 60_000, renewed: true, ...more }
}
const hold = async (at: Store, more: Partial<Claim> = {}): Promise<Claim> => {
  const held = claim(more)
  expect(await at.acquire([held])).toMatchObject([{ granted: true }])
  return held
}
/** As the core does with its first lock. */
const revocations = async (): Promise<string[]> => {
  const owners: string[] = []
  expect(await store.watchRevoked?.(({ owner }) => void owners.push(owner)).ready).toBe(true)
  return owners
}

test('a holder that asks its server for nothing hears of a revocation, although the server fell silent before it', async () => {
  const revoked = await revocations()
  const held = await hold(store)
  proxy.stall('both')
  await direct.revoke?.(held.key)
  await until('it is told', () => revoked.includes(held.owner))
  expect(probes).toBeGreaterThan(0)
})

test('a waiter is told that the lock is free, although its server fell silent before it was released', async () => {
  const held = await hold(direct)
  const freed: (string | undefined)[] = []
  const watch = store.watchGrants?.((_, event) => void (event.type === 'freed' && freed.push(event.owner))) as Watch
  expect(await watch.ready).toBe(true)
  const waiting = claim({ key: held.key, queueMs: 50_000 })
  expect(await store.acquire([waiting])).toMatchObject([{ granted: false }])
  proxy.stall('both')
  await direct.release([held])
  await until('it is told', () => freed.includes(waiting.owner))
})

test('a server that answers is not asked for a sign of life', async () => {
  await revocations()
  const held = await hold(store)
  const began = performance.now()
  let longestMs = 0
  for (let last = began; last - began < 4_500; ) {
    await store.renew([held])
    await sleep(100)
    const now = performance.now()
    longestMs = Math.max(longestMs, now - last)
    last = now
  }
  // On a machine that stood still for so long nothing was heard.
  if (longestMs < 2_500) expect(probes).toBe(0)
})

test('a silent server is asked every three seconds for revocations alone, and each second while somebody waits', async () => {
  await revocations()
  await hold(store)
  const heardAt = performance.now()
  await until('it is asked', () => probes > 0)
  expect(performance.now() - heardAt).toBeGreaterThan(2_500)
  const watch = store.watch?.('lock:silence:observed', () => {}) as Watch
  expect(await watch.ready).toBe(true)
  const [before, watchedAt] = [probes, performance.now()]
  await until('it is asked twice more', () => probes >= before + 2)
  expect(performance.now() - watchedAt).toBeLessThan(5_500)
  watch.close()
})

test('a server that is asked for signs of life again and again keeps the connection open', async () => {
  const watch = store.watch?.('lock:silence:observed', () => {}) as Watch
  expect(await watch.ready).toBe(true)
  let opened = 0
  EtcdConnection.prototype.open = function counted(this: EtcdConnection, ...rest) {
    opened++
    return open.apply(this, rest)
  }
  await until('it is asked ten times', () => probes >= 10)
  expect(opened).toBe(0)
  expect(watch.live()).toBe(true)
  watch.close()
})
