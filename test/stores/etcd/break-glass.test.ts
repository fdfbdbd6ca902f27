import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { ALL, type Claim, type Grant, type Store } from '../../../src/store.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'
import { disturb, isTxn, loseOneAnswer } from './requests.js'

let cluster: EtcdCluster
let store: Store
let other: Store
let names = 0

beforeAll(async () => {
  cluster = await startEtcd()
  const hosts = cluster.nodes.map(({ host }) => host)
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
  const key = `lock:glass:${names++}`
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 20_000, renewed: true, ...more }
}

test('a holder that writes its value between the look and the end of a revocation is ended all the same', async () => {
  const held = claim()
  const [grant] = (await store.acquire([held])) as Grant[]
  let writes = 0
  disturb((request) => {
    // The transaction that ends it: the first one of the revocation that names the owner.
    if (writes > 0 || !isTxn(request) || !request.message.includes('!revoked/')) return undefined
    writes++
    const { key, owner, ttlMs } = held
    return Promise.resolve(store.renew([{ key, owner, token: grant?.token, ttlMs, value: '"new"' }])).then(
      (renewed) => {
        expect(renewed).toMatchObject([{ outcome: 'ours' }])
        return request.send()
      },
    )
  })
  const ended = await other.revoke?.(held.key)
  expect(writes).toBe(1)
  expect(ended).toMatchObject([{ owner: held.owner }])
  expect(await other.inspect?.(held.key)).toMatchObject({ holders: [] })
})

test('a waiter that is granted the lock by a revocation is not ended by it', async () => {
  const held = claim()
  await store.acquire([held])
  const waiting = claim({ key: held.key, queueMs: 15_000 })
  expect(await store.acquire([waiting])).toMatchObject([{ granted: false }])
  let isFirst = true
  disturb((request) => {
    if (!isFirst || !isTxn(request) || !request.message.includes('!revoked/')) return undefined
    isFirst = false
    return request.send().then(async (answer) => {
      expect(await store.acquire([waiting])).toMatchObject([{ granted: true }])
      return answer
    })
  })
  expect(await other.revoke?.(held.key)).toMatchObject([{ owner: held.owner }])
  expect(await other.inspect?.(held.key)).toMatchObject({ holders: [{ owner: waiting.owner }] })
})

test('a revocation whose answer is lost once names the holders that it has ended', async () => {
  const held = claim()
  await store.acquire([held])
  loseOneAnswer((request) => isTxn(request) && request.message.includes('!revoked/'))
  expect(await other.revoke?.(held.key)).toMatchObject([{ owner: held.owner }])
  expect(await other.inspect?.(held.key)).toMatchObject({ holders: [] })
})
