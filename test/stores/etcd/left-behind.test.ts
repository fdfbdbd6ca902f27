import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { ALL, type Claim, type Store } from '../../../src/store.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'
import { until } from '../../../testbed/servers/process.js'
import { disturb, isTxn, noAnswerAtAll } from './requests.js'

let cluster: EtcdCluster
let store: Store
let direct: Store
let names = 0

beforeAll(async () => {
  cluster = await startEtcd()
  const hosts = cluster.nodes.map(({ host }) => host)
  store = etcd(hosts)
  direct = etcd(hosts)
  expect(await store.watchGrants?.(() => {}).ready).toBe(true)
})
afterEach(() => disturb(undefined))
afterAll(async () => {
  await store.close()
  await direct.close()
  await cluster.stop()
})

const claim = (more: Partial<Claim> = {}): Claim => {
  const key = `lock:left:${names++}`
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 60_000, renewed: true, ...more }
}
/** Subscriptions that the server has. */
const watchers = async (): Promise<number> => {
  const metrics = await (await fetch(`${cluster.endpoints[0]}/metrics`)).text()
  return Number(/^etcd_debugging_mvcc_watcher_total (\d+)/m.exec(metrics)?.[1])
}
const waitersOf = async (key: string): Promise<number> => (await direct.inspect?.(key))?.waiters.length ?? 0

async function queueUp(count: number, queueMs: number): Promise<{ held: Claim; waiting: Claim[] }> {
  const held = claim()
  expect(await direct.acquire([held])).toMatchObject([{ granted: true }])
  const waiting = Array.from({ length: count }, () => claim({ key: held.key, queueMs }))
  for (const answer of await store.acquire(waiting)) expect(answer.granted).toBe(false)
  expect(await waitersOf(held.key)).toBe(count)
  return { held, waiting }
}

test.each([1, 5])('%i waiters that leave the queue by not asking again leave no subscription behind', async (count) => {
  const before = await watchers()
  const { held } = await queueUp(count, 2_000)
  expect(await watchers()).toBe(before + count)
  await until('their entries are removed', async () => (await waitersOf(held.key)) === 0)
  await until('no subscription is left', async () => (await watchers()) === before)
})

test.each([1, 5])('%i waiters whose release is not answered leave no subscription behind', async (count) => {
  const before = await watchers()
  const { held, waiting } = await queueUp(count, 50_000)
  disturb((request) => (isTxn(request) ? Promise.reject(noAnswerAtAll()) : undefined))
  for (const { outcome } of await store.release(waiting)) expect(outcome).toBe('unknown')
  disturb(undefined)
  await until('their entries are removed', async () => (await waitersOf(held.key)) === 0)
  await until('no subscription is left', async () => (await watchers()) === before)
})
