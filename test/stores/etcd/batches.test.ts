import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { createLocks, InvalidOptionError } from '../../../src/index.js'
import { ALL, type Answer, type Claim, type Renewal, type Store } from '../../../src/store.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'
import { until } from '../../../testbed/servers/process.js'
import { disturb, isTxn, noAnswerAtAll } from './requests.js'

let cluster: EtcdCluster
let hosts: string[]
let store: Store
let other: Store
let names = 0

beforeAll(async () => {
  cluster = await startEtcd({ nodes: 3 })
  hosts = cluster.nodes.map(({ host }) => host)
  store = etcd(hosts)
  other = etcd(hosts)
})
afterEach(() => disturb(undefined))
afterAll(async () => {
  await store.close()
  await other.close()
  await cluster.stop()
})

const claim = (more: Partial<Claim> = {}): Claim => {
  const key = `lock:batch:${names++}`
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 30_000, renewed: true, ...more }
}
const claims = (count: number, more: Partial<Claim> = {}): Claim[] => Array.from({ length: count }, () => claim(more))
const granted = (answers: readonly Answer[]): boolean[] => answers.map((answer) => answer.granted === true)
/** JSON text that takes twice as much room inside of the JSON that surrounds it. */
const text = (bytes: number): string => JSON.stringify('"'.repeat(Math.floor((bytes - 2) / 2)))

/** How many requests of a kind are sent meanwhile. */
async function requestsDuring(work: () => Promise<unknown>, kind = 'Txn'): Promise<number> {
  let count = 0
  disturb((request) => void (request.kind === kind && count++))
  await work()
  disturb(undefined)
  return count
}

test('a batch of more operations and bytes than etcd takes in one request is split, and each claim answered singly', async () => {
  const busy = claims(3)
  expect(granted(await other.acquire(busy))).toEqual([true, true, true])
  // Each doubled in JSON: forty of them, which would fit by their number, are more bytes than etcd takes; and 130 more operations.
  const many = claims(130, { value: text(20_000), queueMs: 20_000 })
  for (const [i, { key }] of busy.entries()) (many[i * 50] as Claim).key = key
  const answers = await store.acquire(many)
  expect(answers.map(({ granted: given }) => given)).toEqual(many.map((_, i) => i % 50 !== 0))
  const renewed = await store.renew(
    many.map(({ key, owner }): Renewal => ({ key, owner, ttlMs: 30_000, queued: false })),
  )
  expect(renewed.map(({ outcome }) => outcome)).toEqual(many.map((_, i) => (i % 50 === 0 ? 'gone' : 'ours')))
  const released = await store.release(many)
  expect(released.every(({ outcome }) => outcome === 'released')).toBe(true)
  await other.release(busy)
})

test('waiters of one key with more bytes than etcd takes in one request all enter its queue, in order', async () => {
  const held = claim()
  await other.acquire([held])
  const waiting = claims(60, { key: held.key, value: text(16_000), queueMs: 20_000 })
  const answers = await store.acquire(waiting)
  expect(answers.map((answer) => (answer as { ahead?: number }).ahead)).toEqual(waiting.map((_, i) => i))
  await store.release(waiting)
  await other.release([held])
})

test('a claim that etcd cannot carry is refused without a request, and those beside it are granted', async () => {
  const large = claim({ value: text(1_000_000) })
  const beside = claims(2)
  const answers = await store.acquire([beside[0] as Claim, large, beside[1] as Claim])
  expect(granted(answers)).toEqual([true, false, true])
  const { error } = answers[1] as { error: unknown }
  expect(error).toBeInstanceOf(InvalidOptionError)
  expect((error as Error).message).toMatch(/^metadata takes at most 1560000 bytes, .*; it was 2000/)
  expect(await other.inspect?.(large.key)).toEqual({ holders: [], waiters: [] })
})

test('several names of more bytes than etcd takes in one request are refused before anything is touched', async () => {
  const many = claims(50, { value: text(40_000) })
  let answers: Answer[] = []
  expect(
    await requestsDuring(async () => {
      answers = await store.acquire(many, { atomic: true })
    }),
  ).toBe(0)
  expect(answers).toHaveLength(50)
  for (const answer of answers) expect(answer).toMatchObject({ granted: 'unknown', error: { code: 'INVALID_OPTION' } })
})

test('more names than fit into one transaction are acquired all or none', async () => {
  const locks = createLocks(store, { wait: '3s' })
  const rest = createLocks(other)
  const wanted = Array.from({ length: 130 }, (_, i) => `many:${String(i).padStart(3, '0')}`)
  const one = await rest.acquire('many:060')
  await expect(locks.acquireAll(wanted)).rejects.toMatchObject({ code: 'LOCK_TIMEOUT', lock: 'many:060' })
  expect(await rest.holders('many:')).toHaveLength(1)
  await one.release()
  const all = await locks.acquireAll(wanted, { wait: '20s' })
  expect(all.isHeld).toBe(true)
  expect(all.names).toEqual(wanted)
  expect(await all.release()).toBe(true)
  await locks.close()
  await rest.close()
})

test('claims by force end more holders of several keys than fit into one transaction, beside other claims', async () => {
  const keys = claims(2).map(({ key }) => key)
  for (const key of keys) await other.acquire(claims(45, { key, weight: 1, capacity: 45 }))
  const steals = keys.map((key) => claim({ key, steal: true }))
  expect(granted(await store.acquire([...claims(40), ...steals])).every(Boolean)).toBe(true)
  for (const key of keys) await other.acquire(claims(45, { key, weight: 1, capacity: 45 }))
  const again = keys.map((key) => claim({ key, steal: true }))
  expect(granted(await store.acquire([...again, claim()], { atomic: true }))).toEqual([true, true, true])
})

test('a result that etcd cannot carry rejects runOnce, and the next caller may run', async () => {
  const locks = createLocks(store)
  const huge = '"'.repeat(700_000)
  await expect(locks.runOnce('huge', async () => huge)).rejects.toBeInstanceOf(InvalidOptionError)
  expect(await locks.runOnce('huge', async () => 'small')).toBe('small')
  await locks.close()
})

test('after its lease is given up, a thousand locks move to another one in few transactions', async () => {
  const many = claims(1_000, { ttlMs: 41_000 })
  for (let at = 0; at < many.length; at += 500) await store.acquire(many.slice(at, at + 500))
  const renewals = many.map(({ key, owner, ttlMs }): Renewal => ({ key, owner, ttlMs }))
  // No answer at all to a write with the shared lease, so that the lease is given up.
  const lost = claim({ ttlMs: 41_000 })
  disturb((request) => (isTxn(request) ? Promise.reject(noAnswerAtAll()) : undefined))
  expect(await store.acquire([lost])).toMatchObject([{ granted: 'unknown' }])
  let outcomes: string[] = []
  const moves = await requestsDuring(async () => {
    outcomes = (await store.renew(renewals)).map(({ outcome }) => outcome)
  })
  expect(outcomes.every((outcome) => outcome === 'ours')).toBe(true)
  expect(moves).toBeLessThanOrEqual(30)
  const checks = await requestsDuring(() => Promise.resolve(store.renew(renewals)))
  expect(checks).toBeLessThanOrEqual(10)
  await store.release(many)
})

test('after a new leader was elected, the heartbeats of five hundred locks need few transactions', async () => {
  const many = claims(500, { ttlMs: 25_000 })
  await store.acquire(many)
  const renewals = many.map(({ key, owner, ttlMs }): Renewal => ({ key, owner, ttlMs }))
  const leader = await cluster.leader()
  await leader.kill()
  // How long an election takes is no matter here. Requests that are sent meanwhile are repeated until it is over.
  await until('another node leads', () =>
    cluster.leader().then(
      () => true,
      () => false,
    ),
  )
  let held = true
  const sent = await requestsDuring(async () => {
    for (let heartbeat = 0; heartbeat < 4; heartbeat++) {
      const answers = await store.renew(renewals)
      held &&= answers.every(({ outcome }) => outcome === 'ours')
    }
  })
  expect(held).toBe(true)
  // Five checks or thirteen moves each, and as many again for each endpoint that had to be tried.
  expect(sent).toBeLessThanOrEqual(150)
  await leader.restart()
  await store.release(many)
})
