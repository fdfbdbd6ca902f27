import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { ALL, type Claim, type Grant, type Renewal, type Store } from '../../../src/store.js'
import { EtcdConnection } from '../../../src/stores/etcd/connection.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, type Proxy, startEtcd, startProxy } from '../../../testbed/servers/index.js'
import { until } from '../../../testbed/servers/process.js'
import { disturb, noAnswerAtAll } from './requests.js'

let cluster: EtcdCluster
let proxy: Proxy
let store: Store
let other: Store
let names = 0

beforeAll(async () => {
  cluster = await startEtcd()
  proxy = await startProxy(cluster.port)
  store = etcd([`127.0.0.1:${proxy.port}`])
  other = etcd(cluster.nodes.map(({ host }) => host))
})
afterEach(() => disturb(undefined))
afterAll(async () => {
  await store.close()
  await other.close()
  await proxy.stop()
  await cluster.stop()
})

/** A heartbeat as the core sends it: the same objects each time. */
async function hold(count: number, ttlMs: number): Promise<Renewal[]> {
  const claims = Array.from({ length: count }, (): Claim => {
    return { key: `lock:heart:${names++}`, owner: `owner:${names}`, weight: ALL, capacity: ALL, ttlMs, renewed: true }
  })
  const answers = (await store.acquire(claims)) as Grant[]
  return claims.map(({ key, owner }, i): Renewal => ({ key, owner, ttlMs, token: answers[i]?.token }))
}
const outcomes = async (renewals: readonly Renewal[]): Promise<string[]> =>
  (await store.renew(renewals)).map(({ outcome }) => outcome)
const all = (renewals: readonly Renewal[], outcome: string): string[] => renewals.map(() => outcome)
const without = (gone: number, renewals: readonly Renewal[]): string[] =>
  renewals.map((_, i) => (i === gone ? 'gone' : 'ours'))
const withoutThird = (renewals: readonly Renewal[]): string[] => without(2, renewals)

/** What is sent meanwhile: requests by kind, and streams that are opened. */
async function sentDuring(work: () => Promise<unknown>): Promise<Record<string, number>> {
  const counts: Record<string, number> = {}
  const count = (kind: string): void => void (counts[kind] = (counts[kind] ?? 0) + 1)
  disturb(({ kind }) => void count(kind))
  const { open } = EtcdConnection.prototype
  EtcdConnection.prototype.open = function opened(this: EtcdConnection, path, ...rest) {
    count(path.slice(path.lastIndexOf('/') + 1))
    return open.call(this, path, ...rest)
  }
  try {
    await work()
  } finally {
    EtcdConnection.prototype.open = open
    disturb(undefined)
  }
  return counts
}

test('a heartbeat of five hundred locks is a keep-alive over the stream that is open, and two checks', async () => {
  const renewals = await hold(500, 2_000)
  let answers: string[] = []
  for (let heartbeat = 0; heartbeat < 3; heartbeat++) {
    // The lease has less than most of its time left by then, so that it is kept alive.
    await sleep(500)
    const sent = await sentDuring(async () => (answers = await outcomes(renewals)))
    expect(sent).toEqual(heartbeat === 0 ? { LeaseKeepAlive: 1, Txn: 2 } : { Txn: 2 })
    expect(answers).toEqual(all(renewals, 'ours'))
  }
  expect((await other.inspect?.(renewals[0]?.key as string))?.holders[0]?.ttlMs).toBeGreaterThanOrEqual(1_000)
  await store.release(renewals)
})

test('a key that is deleted by hand is noticed by the next heartbeat, and the others stay', async () => {
  const renewals = await hold(200, 20_000)
  for (let i = 0; i < 2; i++) expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
  await cluster.ctl('del', '--prefix', `leasehold/${renewals[2]?.key}/`)
  expect(await outcomes(renewals)).toEqual(withoutThird(renewals))
  expect(await outcomes(renewals)).toEqual(withoutThird(renewals))
  await store.release(renewals)
})

test.each([0, 124, 125, 126, 249, 250, 251, 399])(
  'lock %i of four hundred is noticed by the next heartbeat if its key is deleted or put anew by hand',
  async (at) => {
    const renewals = await hold(400, 20_000)
    for (let i = 0; i < 2; i++) expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
    const [etcdKey] = (await cluster.ctl('get', '--prefix', `leasehold/${renewals[at]?.key}/`, '--keys-only')).split(
      '\n',
    )
    await cluster.ctl('del', etcdKey as string)
    // There again, with the same name: not the lock that was granted.
    if (at % 2 === 0) await cluster.ctl('put', etcdKey as string, 'x')
    expect(await outcomes(renewals)).toEqual(without(at, renewals))
    expect(await outcomes(renewals)).toEqual(without(at, renewals))
    await store.release(renewals)
  },
)

test('locks of several ttls that are renewed together are each renewed for their own', async () => {
  const renewals = [...(await hold(130, 9_000)), ...(await hold(2, 20_000)), ...(await hold(130, 9_000))]
  for (let i = 0; i < 3; i++) {
    const answers = await store.renew(renewals)
    for (const [at, answer] of answers.entries()) {
      const { ttlMs } = renewals[at] as Renewal
      expect(answer).toMatchObject({ outcome: 'ours' })
      const given = (answer as { ttlMs: number }).ttlMs
      expect(given).toBeLessThanOrEqual(ttlMs)
      expect(given).toBeGreaterThan(ttlMs / 2)
    }
  }
  await store.release(renewals)
})

test('a heartbeat that no server answers leaves the locks as they are, and the next one renews them', async () => {
  const renewals = await hold(300, 20_000)
  for (let i = 0; i < 2; i++) expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
  disturb(({ kind }) => (kind === 'Txn' ? Promise.reject(noAnswerAtAll()) : undefined))
  expect(await outcomes(renewals)).toEqual(all(renewals, 'unknown'))
  disturb(undefined)
  expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
  await store.release(renewals)
})

test('locks that are not renewed any more end, although a heartbeat of others on the same lease goes on', async () => {
  const renewals = await hold(3, 3_000)
  for (let i = 0; i < 2; i++) expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
  const [kept, ...left] = renewals as [Renewal, Renewal, Renewal]
  const views = async (): Promise<number[]> =>
    Promise.all(left.map(async ({ key }) => (await other.inspect?.(key))?.holders.length ?? 0))
  await until('they are removed', async () => {
    expect(await outcomes([kept])).toEqual(['ours'])
    return (await views()).every((holders) => holders === 0)
  })
  expect(await outcomes(renewals)).toEqual(['ours', 'gone', 'gone'])
  await store.release(renewals)
})

test('a key that is deleted while the connection is cut is noticed by the first heartbeat that is answered', async () => {
  const renewals = await hold(200, 20_000)
  expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
  await proxy.refuse()
  await cluster.ctl('del', '--prefix', `leasehold/${renewals[2]?.key}/`)
  expect(await outcomes(renewals)).toEqual(all(renewals, 'unknown'))
  await proxy.heal()
  await until(
    'the connection is back',
    async () => (await store.renew([renewals[0] as Renewal]))[0]?.outcome === 'ours',
  )
  expect(await outcomes(renewals)).toEqual(withoutThird(renewals))
  await store.release(renewals)
})

test('a lock that another client of the same owner prolonged is not counted as ours by what was true before', async () => {
  const renewals = await hold(3, 20_000)
  for (let i = 0; i < 2; i++) expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
  // Bound to a lease of the other client from here on.
  expect(await other.renew([renewals[2] as Renewal])).toMatchObject([{ outcome: 'ours' }])
  expect(await sentDuring(() => outcomes(renewals))).toMatchObject({ Txn: 3 })
  const stored = await cluster.ctl('get', '--prefix', `leasehold/${renewals[2]?.key}/`, '-w', 'json')
  const kept = await cluster.ctl('get', '--prefix', `leasehold/${renewals[0]?.key}/`, '-w', 'json')
  const leaseOf = (text: string): string | undefined => /"lease":(\d+)/.exec(text)?.[1]
  expect(leaseOf(stored)).toBe(leaseOf(kept))
  await store.release(renewals)
})

test('a lock that was released and taken again under the same name is not renewed for the owner before', async () => {
  const renewals = await hold(3, 20_000)
  for (let i = 0; i < 2; i++) expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
  const { key, owner } = renewals[2] as Renewal
  await store.release([{ key, owner }])
  const again: Claim = { key, owner, weight: ALL, capacity: ALL, ttlMs: 20_000, renewed: true }
  expect(await store.acquire([again])).toMatchObject([{ granted: true }])
  expect(await outcomes(renewals)).toEqual(withoutThird(renewals))
  await store.release([again, ...renewals])
})

test('two heartbeats of the same locks at the same time are both answered', async () => {
  const renewals = await hold(300, 20_000)
  expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
  const [one, two] = await Promise.all([outcomes(renewals), outcomes(renewals)])
  expect(one).toEqual(all(renewals, 'ours'))
  expect(two).toEqual(all(renewals, 'ours'))
  await store.release(renewals)
})

test('heartbeats go on after the server was restarted, over another stream', async () => {
  const renewals = await hold(300, 20_000)
  expect(await outcomes(renewals)).toEqual(all(renewals, 'ours'))
  await cluster.restart({ mode: 'immediate' })
  await until('they are answered', async () => (await outcomes(renewals)).every((outcome) => outcome === 'ours'))
  await store.release(renewals)
})

test('a keep-alive that is not answered in time is given up, and its late answer is not taken for that of the next', async () => {
  const renewals = await hold(1, 2_000)
  expect(await outcomes(renewals)).toEqual(['ours'])
  const view = async (): Promise<number> => (await other.inspect?.(renewals[0]?.key as string))?.holders.length ?? 0
  await sleep(700)
  proxy.stall('replies')
  const renewed = store.renew(renewals)
  // The server carries out what it was sent: the lease goes on there for two seconds, and then ends.
  await until('the lock has ended in etcd', async () => (await view()) === 0)
  await proxy.heal()
  expect((await renewed)[0]?.outcome).not.toBe('ours')
  expect((await outcomes(renewals))[0]).not.toBe('ours')
})

test('a lock whose release is not answered is removed soon, although a heartbeat of it was under way', async () => {
  const renewals = await hold(1, 60_000)
  const [{ key, owner }] = renewals as [Renewal]
  let arrive = (): void => {}
  let pass = (): void => {}
  const reached = new Promise<void>((resolve) => (arrive = resolve))
  const passed = new Promise<void>((resolve) => (pass = resolve))
  disturb((request) => {
    disturb(() => Promise.reject(noAnswerAtAll()))
    return request.send().then(async (answer) => {
      arrive()
      await passed
      return answer
    })
  })
  const renewed = outcomes(renewals)
  await reached
  expect(await store.release([{ key, owner }])).toMatchObject([{ outcome: 'unknown' }])
  disturb(undefined)
  const releasedAt = performance.now()
  pass()
  await renewed
  await until('it is removed', async () => (await other.inspect?.(key))?.holders.length === 0)
  // Long before its ttl has passed.
  expect(performance.now() - releasedAt).toBeLessThan(20_000)
})
