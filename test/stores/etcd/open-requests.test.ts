import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { ALL, type Answer, type Claim, type Released, type Store } from '../../../src/store.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'
import { disturb, isTxn, noAnswerAtAll, type Request } from './requests.js'

let cluster: EtcdCluster
let store: Store
let direct: Store
let names = 0

beforeAll(async () => {
  cluster = await startEtcd()
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
  const key = `lock:open:${names++}`
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 20_000, renewed: true, ...more }
}
const view = async (key: string): Promise<{ holders: string[]; waiters: string[] }> => {
  const { holders, waiters } = (await direct.inspect?.(key)) ?? { holders: [], waiters: [] }
  return { holders: holders.map(({ owner }) => owner), waiters: waiters.map(({ owner }) => owner) }
}
const release = async ({ key, owner }: Claim): Promise<Released> =>
  (await store.release([{ key, owner }]))[0] as Released

interface Gate {
  /** Settles when the request has reached the gate. */
  reached: Promise<void>
  open: () => void
}

/** The first transaction that writes for this owner waits at a gate: before it is sent, or with its answer. */
function gateFor({ owner }: Claim, where: 'request' | 'answer'): Gate {
  let open = (): void => {}
  let arrive = (): void => {}
  const opened = new Promise<void>((resolve) => (open = resolve))
  const reached = new Promise<void>((resolve) => (arrive = resolve))
  let isFirst = true
  disturb((request: Request) => {
    if (!isFirst || !isTxn(request) || !request.message.includes(owner) || !request.message.includes('"s":'))
      return undefined
    isFirst = false
    const pass = async (): Promise<Buffer> => {
      const answer = where === 'answer' ? await request.send() : undefined
      arrive()
      await opened
      return answer ?? request.send()
    }
    return pass()
  })
  return { reached, open }
}

/** What became of a claim that its owner releases while the request is at the gate. */
async function releasedAtGate(wanted: Claim, where: 'request' | 'answer'): Promise<[Answer, Released]> {
  const gate = gateFor(wanted, where)
  const asked = Promise.resolve(store.acquire([wanted]))
  await gate.reached
  const released = release(wanted)
  // A release that does not wait has its answer after one request of its own.
  await Promise.race([released, direct.inspect?.(wanted.key)])
  await direct.inspect?.(wanted.key)
  gate.open()
  const [answers, outcome] = await Promise.all([asked, released])
  return [answers[0] as Answer, outcome]
}

for (const where of ['request', 'answer'] as const) {
  test(`a release without a token ends the acquire that is under way (${where} delayed), which grants nothing`, async () => {
    const wanted = claim()
    const [answer, released] = await releasedAtGate(wanted, where)
    expect(answer.granted).not.toBe(true)
    expect(released.outcome).toBe('released')
    expect(await view(wanted.key)).toEqual({ holders: [], waiters: [] })
  })

  test(`a release without a token removes the queue entry that is under way (${where} delayed)`, async () => {
    const held = claim()
    expect(await direct.acquire([held])).toMatchObject([{ granted: true }])
    const wanted = claim({ key: held.key, queueMs: 15_000 })
    const [answer] = await releasedAtGate(wanted, where)
    expect(answer).toMatchObject({ granted: false })
    expect(await view(held.key)).toEqual({ holders: [held.owner], waiters: [] })
  })
}

test('a release without a token of one of several names that are acquired in one step leaves none of them granted', async () => {
  const [one, two] = [claim(), claim()] as const
  const gate = gateFor(one, 'request')
  const asked = Promise.resolve(store.acquire([one, two], { atomic: true }))
  await gate.reached
  const released = release(one)
  await direct.inspect?.(one.key)
  gate.open()
  for (const answer of await asked) expect(answer).toMatchObject({ granted: 'unknown' })
  expect(await released).toMatchObject({ outcome: 'released' })
  expect(await view(one.key)).toMatchObject({ holders: [] })
})

test('the locks that are released beside an acquire under way are free before it is answered', async () => {
  const [held, wanted] = [claim(), claim()] as const
  expect(await store.acquire([held])).toMatchObject([{ granted: true }])
  const gate = gateFor(wanted, 'request')
  const asked = store.acquire([wanted])
  await gate.reached
  const released = store.release([held, wanted].map(({ key, owner }) => ({ key, owner })))
  await expect.poll(() => view(held.key)).toEqual({ holders: [], waiters: [] })
  gate.open()
  expect(await asked).not.toMatchObject([{ granted: true }])
  expect(await released).toMatchObject([{ outcome: 'released' }, { outcome: 'released' }])
})

test('a release without a token behind an acquire that fails is answered, and what the acquire left is removed', async () => {
  const wanted = claim()
  let isFirst = true
  let fail = (): void => {}
  let arrive = (): void => {}
  const reached = new Promise<void>((resolve) => (arrive = resolve))
  disturb((request) => {
    if (!isFirst || !isTxn(request) || !request.message.includes(wanted.owner)) return undefined
    isFirst = false
    const failing = new Promise<void>((resolve) => (fail = resolve))
    return request.send().then(async () => {
      arrive()
      await failing
      throw noAnswerAtAll()
    })
  })
  const asked = store.acquire([wanted])
  await reached
  const released = release(wanted)
  fail()
  expect(await asked).toMatchObject([{ granted: 'unknown' }])
  expect(await released).toMatchObject({ outcome: 'released' })
  expect(await view(wanted.key)).toEqual({ holders: [], waiters: [] })
})

test('an owner whose acquire was ended by a release is granted the key when it asks again', async () => {
  const wanted = claim()
  await releasedAtGate(wanted, 'request')
  expect(await store.acquire([wanted])).toMatchObject([{ granted: true }])
  expect(await view(wanted.key)).toEqual({ holders: [wanted.owner], waiters: [] })
})

test('the releases of a whole acquire call that is under way travel together', async () => {
  const many = Array.from({ length: 40 }, () => claim())
  const gate = gateFor(many[0] as Claim, 'request')
  const asked = store.acquire(many)
  await gate.reached
  const released = store.release(many.map(({ key, owner }) => ({ key, owner })))
  let sent = 0
  disturb(() => void sent++)
  gate.open()
  for (const answer of await asked) expect(answer.granted).toBe(false)
  for (const answer of await released) expect(answer).toEqual({ outcome: 'released' })
  // The grants themselves passed the gate, which is not counted.
  expect(sent).toBe(1)
})
