import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { ALL, type Answer, type Claim, type Grant, type Renewed, type Store } from '../../../src/store.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'
import { until } from '../../../testbed/servers/process.js'
import { tooSlow, unhurried } from '../../../src/testing/unhurried.js'
import { disturb, isTxn, loseOneAnswer, noAnswerAtAll } from './requests.js'

let cluster: EtcdCluster
let store: Store
let direct: Store
let names = 0

beforeAll(async () => {
  cluster = await startEtcd({ nodes: 3 })
  const hosts = cluster.nodes.map(({ host }) => host)
  store = etcd(hosts)
  direct = etcd(hosts)
})
afterEach(() => disturb(undefined))
afterAll(async () => {
  await store.close()
  await direct.close()
  await cluster.stop()
})

const claim = (more: Partial<Claim> = {}): Claim => {
  const key = `lock:lost:${names++}`
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 20_000, renewed: true, ...more }
}
const ask = async (at: Store, wanted: Claim): Promise<Answer> => (await at.acquire([wanted]))[0] as Answer
const grant = async (at: Store, wanted: Claim): Promise<Grant> => {
  const answer = await ask(at, wanted)
  if (answer.granted !== true) throw answer.granted === 'unknown' ? answer.error : new Error(`refused: ${wanted.key}`)
  return answer
}
const renew = async (wanted: Claim, token: bigint | undefined, more: object = {}): Promise<Renewed> => {
  const { key, owner, ttlMs } = wanted
  return (await store.renew([{ key, owner, token, ttlMs, ...more }]))[0] as Renewed
}
const view = async (key: string): Promise<{ holders: string[]; waiters: string[] }> => {
  const seen = await direct.inspect?.(key)
  const { holders, waiters } = seen ?? { holders: [], waiters: [] }
  return { holders: holders.map(({ owner }) => owner), waiters: waiters.map(({ owner }) => owner) }
}

test('an extension whose answer is lost once leaves the lock held', async () => {
  const wanted = claim({ renewed: false })
  const { token } = await grant(store, wanted)
  loseOneAnswer(isTxn)
  expect(await renew(wanted, token, { ttlMs: 60_000 })).toMatchObject({ outcome: 'ours' })
  await sleep(200)
  expect(await view(wanted.key)).toMatchObject({ holders: [wanted.owner] })
  expect(await ask(direct, claim({ key: wanted.key }))).toMatchObject({ granted: false })
})

test('a result that a renewal leaves stays, although its answer is lost once', async () => {
  const wanted = claim({ value: 'running' })
  const { token } = await grant(store, wanted)
  loseOneAnswer(isTxn)
  const renewed = await renew(wanted, token, { ttlMs: 86_400_000, value: 'done' })
  expect(renewed).toMatchObject({ outcome: 'ours' })
  await sleep(200)
  expect((await direct.inspect?.(wanted.key))?.holders).toMatchObject([{ value: 'done' }])
})

test('a lock whose first grant was answered late keeps its key while a value is written', async () => {
  const wanted = claim({ value: 'a' })
  loseOneAnswer(isTxn)
  const { token } = await grant(store, wanted)
  disturb((request) => {
    if (!isTxn(request) || !request.message.includes('"v":"b"')) return undefined
    disturb(undefined)
    return request.send().then((answer) => sleep(900, answer))
  })
  expect(await renew(wanted, token, { value: 'b' })).toMatchObject({ outcome: 'ours' })
  expect(await view(wanted.key)).toMatchObject({ holders: [wanted.owner] })
})

test('a grant in the second round of a call keeps its key, although the first round was answered late', async () => {
  const wanted = claim({ weight: 1, capacity: 2 })
  await grant(direct, claim({ key: wanted.key, weight: 1, capacity: 2 }))
  let count = 0
  disturb((request) => {
    if (!isTxn(request) || !request.message.includes(wanted.owner) || !request.message.includes('"s":'))
      return undefined
    count++
    if (count === 1) return request.loseAnswer()
    return count === 3 ? request.send().then((answer) => sleep(900, answer)) : undefined
  })
  await grant(store, wanted)
  expect((await view(wanted.key)).holders).toContain(wanted.owner)
  expect(count).toBe(3)
})

/** While another ttl's lease is asked for, the chosen one is given up because of another call. */
async function givenUpMeanwhile(acquire: (a: Claim, b: Claim) => Promise<Answer[]>): Promise<void> {
  const ttlMs = 19_000 + 1_000 * ++names
  const warm = claim({ ttlMs })
  await grant(store, warm)
  await store.release([{ key: warm.key, owner: warm.owner }])
  const [a, b, x] = [claim({ ttlMs }), claim({ ttlMs: 200_000 + ttlMs }), claim({ ttlMs })] as const
  let lost = false
  let revoked: Promise<Buffer> | undefined
  disturb((request) => {
    if (request.kind === 'LeaseGrant') return sleep(300).then(() => request.send())
    if (request.kind === 'LeaseRevoke') return (revoked = sleep(700).then(() => request.send()))
    if (lost || !isTxn(request) || !request.message.includes(x.key)) return undefined
    lost = true
    return request.loseAnswer()
  })
  const both = acquire(a, b)
  await sleep(20)
  const other = store.acquire([x])
  expect(await both).toMatchObject([{ granted: true }, { granted: true }])
  await other
  await until('the lease is revoked', async () => revoked !== undefined)
  await revoked
  expect(await view(a.key)).toMatchObject({ holders: [a.owner] })
}

test('a lease that is given up between its choice and its use carries no grant', async () => {
  await givenUpMeanwhile(async (a, b) => store.acquire([a, b]))
})

test('a lease that is given up between its choice and its use carries no grant of several names in one step', async () => {
  await givenUpMeanwhile(async (a, b) => store.acquire([a, b], { atomic: true }))
})

test('after a write that was not answered a lock counts as renewed only once it is bound to a lease that is kept alive', async () => {
  const wanted = claim({ ttlMs: 18_000 })
  const { token } = await grant(store, wanted)
  let count = 0
  disturb((request) => {
    if (!isTxn(request) || !(request.message.includes(wanted.key) && request.message.includes('"s":"h"')))
      return undefined
    count++
    const carriedOut = count === 1 ? request.send() : Promise.resolve()
    return carriedOut.then(() => Promise.reject(noAnswerAtAll()))
  })
  expect(await renew(wanted, token, { ttlMs: 25_000 })).toMatchObject({ outcome: 'unknown' })
  expect(await renew(wanted, token)).toMatchObject({ outcome: 'unknown' })
  expect(await renew(wanted, token)).toMatchObject({ outcome: 'unknown' })
  expect(count).toBe(3)
  disturb(undefined)
  expect(await renew(wanted, token)).toMatchObject({ outcome: 'ours' })
  expect(await view(wanted.key)).toMatchObject({ holders: [wanted.owner] })
})

test('a queue entry whose answer is lost once keeps its place', async () => {
  const { key } = await busy()
  // The lease of queue entries is known from here on, so that the entry is written with the first request.
  const before = claim({ queueMs: 15_000 })
  await grant(direct, claim({ key: before.key }))
  await ask(store, before)
  await store.release([{ key: before.key, owner: before.owner }])
  loseOneAnswer(isTxn)
  const first = claim({ key, queueMs: 15_000 })
  const second = claim({ key, queueMs: 15_000 })
  expect(await ask(store, first)).toMatchObject({ granted: false, ahead: 0 })
  expect(await ask(direct, second)).toMatchObject({ granted: false, ahead: 1 })
  await sleep(300)
  expect((await view(key)).waiters).toEqual([first.owner, second.owner])
})

/** The longest time for which no timer was called. */
function longestPause(): () => number {
  let longest = 0
  let last = performance.now()
  const timer = setInterval(() => {
    longest = Math.max(longest, performance.now() - last)
    last = performance.now()
  }, 5)
  return () => {
    clearInterval(timer)
    return Math.max(longest, performance.now() - last)
  }
}

test('a claim that was tried twice and refused enters the queue, and holds up no timer', async () => {
  const { key } = await busy()
  await grant(store, claim())
  // No lease for queue entries of this length is known: the entry is written with the second round.
  const wanted = claim({ key, queueMs: 40_000 + 1_000 * ++names })
  const pause = longestPause()
  loseOneAnswer(isTxn)
  expect(await ask(store, wanted)).toMatchObject({ granted: false, ahead: 0 })
  expect(pause()).toBeLessThan(1_000)
  expect((await view(key)).waiters).toEqual([wanted.owner])
})

test('a claim with a lease of its own that was tried twice and refused enters the queue', async () => {
  const wanted = claim({ renewed: false, queueMs: 15_000 })
  const other = claim({ key: wanted.key })
  const pause = longestPause()
  disturb((request) => {
    if (!isTxn(request) || !request.message.includes('"s":"h"')) return undefined
    disturb(undefined)
    return grant(direct, other).then(() => request.loseAnswer())
  })
  expect(await ask(store, wanted)).toMatchObject({ granted: false, ahead: 0, blocker: { owner: other.owner } })
  expect(pause()).toBeLessThan(1_000)
  expect((await view(wanted.key)).waiters).toEqual([wanted.owner])
})

test('a lock that nobody renews ends, although the write before was not answered and others keep its lease alive', async () => {
  const left = claim({ ttlMs: 4_000 })
  const kept = claim({ ttlMs: 4_000 })
  const { token } = await grant(store, left)
  const other = await grant(store, kept)
  disturb((request) => {
    if (!isTxn(request) || !request.message.includes('"v":"new"')) return undefined
    return request.send().then(() => Promise.reject(noAnswerAtAll()))
  })
  expect(await renew(left, token, { value: 'new' })).toMatchObject({ outcome: 'unknown' })
  disturb(undefined)
  await until('it is removed', async () => {
    expect(await renew(kept, other.token)).toMatchObject({ outcome: 'ours' })
    return (await view(left.key)).holders.length === 0
  })
})

test('a notice that is no JSON is ignored, and the next one is heard', async () => {
  const mine = etcd(cluster.nodes.map(({ host }) => host))
  const wanted = claim()
  const heard = new Promise((resolve) => {
    mine.watchRevoked?.(resolve)
  })
  const { token } = await grant(mine, wanted)
  const stored = await cluster.ctl('get', '--prefix', `leasehold/${wanted.key}/`, '--print-value-only')
  const { i: session } = JSON.parse(stored) as { i: string }
  for (const text of ['hello', '7', '{"key":1}']) await cluster.ctl('put', `leasehold/!revoked/${session}/x`, text)
  await direct.revoke?.(wanted.key)
  expect(await heard).toEqual({ key: wanted.key, owner: wanted.owner, token })
  await mine.close()
})

test('a closed store refuses every call, and connects to nothing', async () => {
  const closed = etcd(cluster.nodes.map(({ host }) => host))
  await grant(closed, claim())
  await closed.close()
  let sent = 0
  disturb(() => void sent++)
  expect(await ask(closed, claim())).toMatchObject({
    granted: 'unknown',
    error: { message: 'etcd: the store was closed' },
  })
  await expect(closed.inspect?.('lock:x')).rejects.toThrow('etcd: the store was closed')
  expect(await closed.watch?.('lock:x', () => {}).ready).toBe(false)
  expect(await closed.watchGrants?.(() => {}).ready).toBe(false)
  expect(sent).toBe(0)
})

test('the first call of a process to a busy key enters the queue within two requests in a row', async () => {
  const { key } = await busy()
  const first = etcd(cluster.nodes.map(({ host }) => host))
  const inARow = countRequestsInARow()
  expect(await ask(first, claim({ key, queueMs: 3_000 }))).toMatchObject({ granted: false })
  expect(inARow()).toBeLessThanOrEqual(2)
  disturb(undefined)
  expect((await view(key)).waiters).toHaveLength(1)
  await first.close()
})

test('a wait that begins two seconds after another one enters the queue with its first request', async () => {
  await unhurried(3_000, async (queueMs) => {
    const [one, two] = [await busy(), await busy()]
    const first = etcd(cluster.nodes.map(({ host }) => host))
    const began = performance.now()
    expect(await ask(first, claim({ key: one.key, queueMs }))).toMatchObject({ granted: false })
    // The lease of queue entries is not fresh any more, and not over yet.
    await sleep(queueMs / 2)
    const inARow = countRequestsInARow()
    const isInTime = performance.now() - began < queueMs * 0.6
    expect(await ask(first, claim({ key: two.key, queueMs }))).toMatchObject({ granted: false })
    disturb(undefined)
    const { waiters } = await view(two.key)
    await first.close()
    if (!isInTime) tooSlow()
    expect(inARow()).toBe(1)
    expect(waiters).toHaveLength(1)
  })
})

test('several names in one step take a key by force from more holders than one transaction can end', async () => {
  const { key } = claim()
  const many = Array.from({ length: 60 }, () => claim({ key, weight: 1, capacity: 60 }))
  for (const answer of await direct.acquire(many)) expect(answer).toMatchObject({ granted: true })
  const taken = claim({ key, steal: true })
  const beside = claim()
  const answers = await store.acquire([taken, beside], { atomic: true })
  expect(answers).toMatchObject([{ granted: true }, { granted: true }])
  expect((await view(key)).holders).toEqual([taken.owner])
  expect((await view(beside.key)).holders).toEqual([beside.owner])
})

/**
 * How many requests were waited for one after the other so far: a request comes after all that were answered before it
 * was sent. The answers are delayed, so that requests which are sent together are not counted one after the other.
 */
function countRequestsInARow(): () => number {
  let answered = 0
  disturb((request) => {
    const place = answered + 1
    return request.send().then(async (answer) => {
      await sleep(200)
      answered = Math.max(answered, place)
      return answer
    })
  })
  return () => answered
}

async function busy(): Promise<Claim> {
  const held = claim()
  await grant(direct, held)
  return held
}
