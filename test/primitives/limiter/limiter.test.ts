import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createLocks, InvalidOptionError, type Locks } from '../../../src/index.js'
import { faulty } from '../../../src/testing/index.js'
import { STORE_KINDS, openStoreFixture, type StoreFixture, until } from '../../../testbed/store-fixtures.js'

/** Repeats an attempt that returns false, because the machine was too slow to tell, with three times as long. */
async function unhurried(shortestMs: number, attempt: (ms: number) => Promise<boolean>): Promise<void> {
  for (let ms = shortestMs; !(await attempt(ms)); ms *= 3) expect(ms).toBeLessThan(shortestMs * 100)
}

let unique = 0
const fresh = (): string => `limit-${process.pid}-${++unique}`

describe.each(STORE_KINDS)('a limiter on %s', (kind) => {
  let fixture: StoreFixture
  let one: Locks
  let two: Locks

  beforeAll(async () => {
    fixture = await openStoreFixture(kind)
    one = createLocks(fixture.store())
    two = createLocks(fixture.store())
  })

  afterAll(async () => {
    await one.close()
    await two.close()
    await fixture.close()
  })

  test('lets as many takes pass as the limit allows, over all instances, and reports when to retry', async () => {
    const name = fresh()
    const options = { limit: 3, per: '1h' } as const
    const [a, b] = [one.limiter(name, options), two.limiter(name, options)]
    expect(await a.take('user')).toMatchObject({ allowed: true, remaining: 2, retryAfterMs: 0 })
    expect(await b.take('user')).toMatchObject({ allowed: true, remaining: 1 })
    expect(await a.take('user')).toMatchObject({ allowed: true, remaining: 0 })
    const refused = await b.take('user')
    expect(refused).toMatchObject({ allowed: false, remaining: 0 })
    expect(refused.retryAfterMs).toBeGreaterThan(1_190_000)
    expect(refused.retryAfterMs).toBeLessThanOrEqual(1_200_000)
    expect(refused.resetMs).toBeGreaterThan(3_590_000)
    expect(await b.take('another')).toMatchObject({ allowed: true, remaining: 2 })
  })

  test('passes a take that is retried after the reported time, with half a second as well as with an hour', async () => {
    await unhurried(500, async (per) => {
      const limiter = one.limiter(fresh(), { limit: 2, per })
      const began = performance.now()
      await limiter.take('user', 2)
      const { allowed, retryAfterMs } = await limiter.take('user')
      if (performance.now() - began > per / 2 - 5) return false
      expect(allowed).toBe(false)
      expect(retryAfterMs).toBeGreaterThan(0)
      expect(retryAfterMs).toBeLessThanOrEqual(per / 2)
      await new Promise((resolve) => setTimeout(resolve, retryAfterMs + 2))
      expect((await limiter.take('user')).allowed).toBe(true)
      return true
    })
  })

  test('never lets more pass in any interval of the length of a sliding window', async () => {
    await unhurried(600, async (per) => {
      const limiter = one.limiter(fresh(), { limit: 3, per, algorithm: 'sliding-window' })
      const began = performance.now()
      expect((await limiter.take('user', 3)).allowed).toBe(true)
      // A token bucket would let one pass after a third of the time.
      let askedAt = 0
      await until('the limiter lets one pass again', async () => {
        askedAt = performance.now()
        return (await limiter.take('user')).allowed
      })
      expect(performance.now() - began).toBeGreaterThanOrEqual(per - 2)
      const rest = await limiter.take('user', 2)
      if (performance.now() - askedAt > per - 5) return false
      expect(rest).toMatchObject({ allowed: true, remaining: 0 })
      return true
    })
  })

  test('lets exactly the limit of many simultaneous takes pass, and tells each what was left after it', async () => {
    const name = fresh()
    const limiters = [one, two].map((locks) => locks.limiter(name, { limit: 50, per: '1h' }))
    const answers = await Promise.all(
      limiters.flatMap((limiter) => Array.from({ length: 40 }, () => limiter.take('u'))),
    )
    const allowed = answers.filter((answer) => answer.allowed)
    expect(allowed).toHaveLength(50)
    expect(allowed.map((answer) => answer.remaining).sort((a, b) => a - b)).toEqual([...Array(50).keys()])
  })

  test('charges several limits together or not at all', async () => {
    const name = fresh()
    const both = one.limiter(name, {
      limits: [
        { limit: 3, per: '1h' },
        { limit: 5, per: '1d', algorithm: 'sliding-window' },
      ],
    })
    expect(await both.take('user', 3)).toMatchObject({ allowed: true, remaining: 0 })
    expect((await both.take('user', 2)).allowed).toBe(false)
    const other = await Promise.all([both.take('other', 2), both.take('other', 2), both.take('other', 1)])
    // The second take is refused by the first limit, and does not charge the other one.
    expect(other.map((answer) => answer.allowed)).toEqual([true, false, true])
    expect(await both.take('other', 0)).toMatchObject({ remaining: 0 })
    expect((await both.take('user', 2)).retryAfterMs).toBeGreaterThan(1_000_000)
  })

  test('reports that a take can never pass, and charges nothing', async () => {
    const limiter = one.limiter(fresh(), { limit: 10, per: '1h', burst: 4 })
    expect(await limiter.take('user', 5)).toMatchObject({
      allowed: false,
      remaining: 4,
      retryAfterMs: Number.POSITIVE_INFINITY,
    })
    expect(await limiter.take('user', 4)).toMatchObject({ allowed: true, remaining: 0 })
    const nothing = one.limiter(fresh(), { limit: 0, per: '1s' })
    expect(await nothing.take('user')).toMatchObject({ allowed: false, retryAfterMs: Number.POSITIVE_INFINITY })
    await expect(limiter.wait('user', { cost: 5 })).rejects.toThrow(/cost takes at most 4/)
    await expect(nothing.wait('user')).rejects.toThrow(InvalidOptionError)
  })

  test('serves waiting takes in order, and asks the store no more often than the limit allows', async () => {
    const store = faulty(fixture.store())
    const locks = createLocks(store)
    const limiter = locks.limiter(fresh(), { limit: 20, per: '1s', burst: 2 })
    const order: number[] = []
    const began = performance.now()
    await Promise.all(
      Array.from({ length: 8 }, async (_, i) => {
        await limiter.wait('user', { cost: i === 3 ? 2 : 1 })
        order.push(i)
      }),
    )
    expect(order).toEqual([0, 1, 2, 3, 4, 5, 6, 7])
    // Nine takes: two at once, then one every 50 ms.
    expect(performance.now() - began).toBeGreaterThanOrEqual(345)
    expect(store.calls.filter(({ call }) => call === 'take').length).toBeLessThan(40)
    await locks.close()
  })

  test('refuses a key that cannot pass yet without asking the store', async () => {
    const store = faulty(fixture.store())
    const locks = createLocks(store)
    const limiter = locks.limiter(fresh(), { limit: 4, per: '1h' })
    await limiter.take('user', 3)
    expect((await limiter.take('user', 2)).allowed).toBe(false)
    const asked = store.calls.length
    for (let i = 0; i < 100; i++) {
      const { allowed, retryAfterMs } = await limiter.take('user', 2)
      expect(allowed).toBe(false)
      expect(retryAfterMs).toBeLessThanOrEqual(900_000)
    }
    expect(store.calls.length).toBe(asked)
    // A smaller cost may pass.
    expect((await limiter.take('user', 1)).allowed).toBe(true)
    await locks.close()
  })
})
