import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { ALL, type Answer, type Claim, type Grant, type Store } from '../../../src/store.js'
import { Servers } from './servers.js'

// One batch may contain any mixture. Each item is answered as if it had come alone, in order.

let servers: Servers
let store: Store
let names = 0
const fresh = (): string => `lock:batch:${names++}`

const claim = (key: string, owner: string, more: Partial<Claim> = {}): Claim => {
  return { key, owner, weight: ALL, capacity: ALL, ttlMs: 20_000, ...more }
}
const reader = (key: string, owner: string, more: Partial<Claim> = {}): Claim =>
  claim(key, owner, { weight: 1, ...more })

/** Grants, or the test fails. */
async function granted(claims: Claim[]): Promise<Grant[]> {
  const answers = await store.acquire(claims)
  for (const answer of answers) if (answer.granted === 'unknown') throw answer.error
  expect(answers.map((answer) => answer.granted)).toEqual(claims.map(() => true))
  return answers as Grant[]
}

beforeAll(async () => {
  servers = await Servers.start(3)
  store = servers.store()
  // A new cluster's counters begin a second ahead of its clocks. Until then no guess is good, and nothing takes one round.
  const taken = async (): Promise<bigint> => (await granted([claim(fresh(), 'warm')]))[0]?.token as bigint
  while ((await taken()) > BigInt(Date.now()) * 1_000n) await sleep(50)
})
afterAll(() => servers.stop())

/**
 * Batches in which the first item is stolen from by the second. Where the guess of its token was too small, the victim had
 * lost its vote before the second round, and was refused: only the others tell something.
 */
async function stolenFrom(times: number, rest: (key: string) => Claim[]): Promise<Grant[][]> {
  const found: Grant[][] = []
  for (let i = 0; found.length < times; i++) {
    expect(i, 'batches in which the victim was granted too').toBeLessThan(20 * times)
    const key = fresh()
    const [victim, ...others] = await store.acquire([claim(key, 'victim'), ...rest(key)])
    for (const other of others) expect(other).toMatchObject({ granted: true })
    const { holders = [] } = (await store.inspect?.(key)) ?? {}
    expect(holders.map(({ owner }) => owner).sort()).toEqual(others.map((other) => (other as Grant).owner).sort())
    if (victim?.granted === true) found.push([victim, ...(others as Grant[])])
  }
  return found
}

test('a steal in one batch with its victim gets the larger token', async () => {
  for (const [victim, stealing] of await stolenFrom(50, (key) => [claim(key, 'stealer', { steal: true })])) {
    expect(stealing?.token).toBeGreaterThan(victim?.token as bigint)
  }
})

test('a reader that joins a stealing reader in one batch gets a larger token than the victim', async () => {
  const readers = (key: string): Claim[] => [reader(key, 'stealer', { steal: true }), reader(key, 'beside')]
  for (const [victim, stealing, beside] of await stolenFrom(20, readers)) {
    expect(stealing?.token).toBeGreaterThan(victim?.token as bigint)
    expect(beside?.token).toBeGreaterThan(victim?.token as bigint)
  }
})

test('of two steals in one batch, only the last one holds', async () => {
  const key = fresh()
  const answers = await store.acquire([
    claim(key, 'victim'),
    claim(key, 'one', { steal: true }),
    claim(key, 'two', { steal: true }),
  ])
  const tokens = answers.filter((answer) => answer.granted === true).map(({ token }) => token)
  expect(answers[2]).toMatchObject({ granted: true })
  expect(new Set(tokens).size).toBe(tokens.length)
  expect(tokens).toEqual([...tokens].sort((a, b) => (a < b ? -1 : 1)))
  const { holders = [] } = (await store.inspect?.(key)) ?? {}
  expect(holders).toMatchObject([{ owner: (answers[2] as Grant).owner }])
})

test('an owner that asks twice in one batch gets one grant as both answers', async () => {
  const key = fresh()
  const [first, other, second] = await granted([claim(key, 'o'), claim(fresh(), 'o'), claim(key, 'o')])
  expect(second).toMatchObject({ owner: first?.owner, token: first?.token })
  expect(other?.token).toBeDefined()
})

test('an item that cannot be served does not fail the others of its batch', async () => {
  const [busy, list] = [fresh(), fresh()]
  await granted([claim(busy, 'holder')])
  await servers.all[0]?.command('RPUSH', list, 'x')
  await servers.all[1]?.command('RPUSH', list, 'x')
  const answers = await store.acquire([
    claim(fresh(), 'a'),
    claim(fresh(), 'b', { ttlMs: 3_600_000 }),
    claim(fresh(), 'c', { capacity: 3, weight: 1 }),
    claim(busy, 'd'),
    claim(list, 'e'),
    reader(fresh(), 'f'),
    claim(fresh(), 'g', { value: 'kept' }),
  ])
  const told = answers.map((answer: Answer) => (answer.granted === 'unknown' ? String(answer.error) : answer.granted))
  expect(told).toEqual([
    true,
    expect.stringContaining('maxTtl'),
    expect.stringContaining('any number of readers'),
    false,
    false,
    true,
    true,
  ])
})

test('two releases or renewals of one key in a batch are answered each on its own', async () => {
  const key = fresh()
  const [a, b] = await granted([reader(key, 'a'), reader(key, 'b')])
  const lease = (grant: Grant | undefined) => ({ key, owner: grant?.owner as string })
  const renewals = [a, b, { owner: 'nobody' } as Grant, a].map((grant) => ({ ...lease(grant), ttlMs: 20_000 }))
  expect((await store.renew(renewals)).map(({ outcome }) => outcome)).toEqual(['ours', 'ours', 'gone', 'ours'])
  const released = await store.release([lease(a), lease(a), lease(b), { key, owner: 'nobody' }])
  expect(released.map(({ outcome }) => outcome)).toEqual(['released', 'gone', 'released', 'gone'])
  await granted([claim(key, 'next')])
})
