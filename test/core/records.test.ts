import { expect, test } from 'vitest'
import { RemoteMemory } from './remote-memory.js'

const runOnce = (locks: ReturnType<RemoteMemory['locks']>, key: string, fn: () => unknown): Promise<unknown> => {
  const call = (
    locks as unknown as Record<string, (key: string, fn: () => unknown, options: object) => Promise<unknown>>
  )['runOnce' in locks ? 'runOnce' : 'once']
  return (call as (key: string, fn: () => unknown, options: object) => Promise<unknown>).call(locks, key, fn, {
    ttl: 20_000,
    wait: '1m',
  })
}

test('a reply that arrives after the result was recorded does not erase the record', async () => {
  const remote = new RemoteMemory()
  // The caller is granted the lease without learning it, asks again as the same owner and runs. Then the first reply
  // arrives.
  remote.fate = (method, n) => (method === 'acquire' && n === 1 ? { replyMs: 5_000 } : undefined)
  let runs = 0
  const first = runOnce(remote.locks(), 'charge', () => ++runs)
  await remote.pass(10_000)
  expect(await first).toBe(1)
  const second = runOnce(remote.locks(), 'charge', () => ++runs)
  await remote.pass(1_000)
  expect(await second).toBe(1)
  expect(runs).toBe(1)
})

test('a request that times out after its lease was pushed and its result recorded erases nothing', async () => {
  const remote = new RemoteMemory()
  const blocker = remote.locks()
  const failing = runOnce(blocker, 'charge', async () => {
    await new Promise<void>((resolve) => remote.world.after(500, resolve))
    throw new Error('failed')
  })
  failing.catch(() => {})
  await remote.pass(100)
  // The waiter is in the queue. Its next request is lost, and the lease is pushed to it meanwhile.
  let runs = 0
  const waiting = runOnce(remote.locks(), 'charge', () => ++runs)
  await remote.pass(100)
  remote.fate = (method) => (method === 'acquire' ? 'lose' : undefined)
  const [owner] = [...remote.real.holders('')].map((holder) => holder.key)
  remote.push(owner as string, { type: 'changed' })
  await remote.pass(10_000)
  expect(await waiting).toBe(1)
  remote.fate = () => undefined
  const later = runOnce(remote.locks(), 'charge', () => ++runs)
  await remote.pass(1_000)
  expect(await later).toBe(1)
  expect(runs).toBe(1)
})

for (const end of ['releaseAll', 'close'] as const) {
  test(`${end}() while the result is being recorded does not erase it`, async () => {
    const remote = new RemoteMemory()
    remote.fate = (method) => (method === 'renew' ? { replyMs: 300 } : undefined)
    let runs = 0
    const locks = remote.locks()
    const first = runOnce(locks, 'charge', () => ++runs)
    first.catch(() => {})
    await remote.pass(100)
    const ending = end === 'close' ? locks.close({ grace: 0 }) : locks.releaseAll()
    await remote.pass(2_000)
    await ending
    remote.fate = () => undefined
    const second = runOnce(remote.locks(), 'charge', () => ++runs)
    await remote.pass(1_000)
    expect(await second).toBe(1)
    expect(runs).toBe(1)
  })
}

for (const [how, fate, emittedAfterMs] of [
  ['fails', 'break', 1],
  ['is not answered', 'lose', 1_100],
] as const) {
  test(`a run whose record ${how} is at risk, although its lease was never renewed`, async () => {
    const remote = new RemoteMemory()
    remote.fate = (method) => (method === 'renew' ? fate : undefined)
    const locks = remote.locks()
    const risks: number[] = []
    const since = remote.world.now()
    locks.on('atRisk', ({ remainingMs }) => risks.push(remainingMs, remote.world.now() - since))
    const running = locks.runOnce('charge', () => 'paid', { ttl: 6_000, wait: 0 }).catch((error: unknown) => error)
    await remote.pass(1)
    await remote.pass(emittedAfterMs)
    expect(risks).toHaveLength(2)
    expect(risks[0]).toBeGreaterThan(4_000)
    expect(risks[1]).toBeLessThanOrEqual(emittedAfterMs)
    // Once for each time of trouble.
    await remote.pass(2_500)
    expect(risks).toHaveLength(2)
    remote.fate = () => undefined
    await remote.pass(3_000)
    expect(await running).toBe('paid')
  })
}

test('a run whose lease ends while its record cannot be written is told why, with the attempts to write it', async () => {
  const remote = new RemoteMemory()
  remote.fate = (method) => (method === 'renew' ? 'break' : undefined)
  const locks = remote.locks()
  const losses: unknown[] = []
  locks.on('lost', ({ why, attempts }) => losses.push({ why, failed: attempts.length > 0 }))
  const running = locks.runOnce('charge', () => 'paid', { ttl: 1_000, wait: 0 }).catch((error: unknown) => error)
  await remote.pass(3_000)
  // Not LOCK_LOST, which would say that nothing was recorded.
  expect(await running).toMatchObject({ code: 'STORE_UNAVAILABLE' })
  expect(losses).toEqual([{ why: 'unreachable', failed: true }])
})

/** The run ends after half a second, and no renewal is answered before `healedAt`. */
async function recordWithoutAnswer(fate: 'lose' | 'loseReply', healedAt: number): Promise<[unknown, unknown]> {
  const remote = new RemoteMemory()
  remote.fate = (method) => (method === 'renew' ? fate : undefined)
  const charge = async (): Promise<string> => {
    await new Promise<void>((resolve) => remote.world.after(500, resolve))
    return 'receipt'
  }
  const first = remote.locks().runOnce('charge', charge, { ttl: '3s' })
  const told = first.catch((error: unknown) => error)
  await remote.pass(healedAt)
  remote.fate = () => undefined
  await remote.pass(20_000)
  const later = remote.locks().runOnce('charge', () => 'another receipt', { wait: '1s' })
  await remote.pass(5_000)
  return [await told, await later]
}

test('a run whose record was written without an answer returns its result, although its lease has ended here meanwhile', async () => {
  expect(await recordWithoutAnswer('loseReply', 4_000)).toEqual(['receipt', 'receipt'])
})

test('a run whose record was never written is told of the loss, and the next caller runs', async () => {
  const [told, later] = await recordWithoutAnswer('lose', 4_000)
  expect(told).toMatchObject({ code: 'LOCK_LOST' })
  expect(later).toBe('another receipt')
})

test('a run that cannot learn whether its record was written says so', async () => {
  const [told, later] = await recordWithoutAnswer('loseReply', 20_000)
  expect(told).toMatchObject({ code: 'STORE_UNAVAILABLE' })
  expect(String(told)).toContain('may or may not have been recorded')
  expect(later).toBe('receipt')
})
