import fc from 'fast-check'
import { expect, test } from 'vitest'
import { realWorld } from '../../../src/util/world.js'
import { Locks } from '../../../src/locks.js'
import { memory } from '../../../src/index.js'
import { faulty } from '../../../src/testing/index.js'

/** A limiter whose clock stands still, so that nothing refills. */
function frozen(burst: number): { limiter: ReturnType<Locks['limiter']>; asked: () => number } {
  const world = { ...realWorld, now: () => 1_000_000, date: () => 1_000_000 }
  const store = faulty(memory({ world }))
  const limiter = new Locks(store, {}, world).limiter('api', { limit: burst, per: '1h' })
  return { limiter, asked: () => store.calls.flatMap(({ items }) => items).length }
}

test('takes of one turn have the same result as takes one after the other', async () => {
  const costs = fc.array(fc.oneof(fc.integer({ min: 0, max: 6 }), fc.constant(1)), { minLength: 1, maxLength: 40 })
  await fc.assert(
    fc.asyncProperty(costs, fc.integer({ min: 1, max: 30 }), fc.nat(30), async (all, burst, before) => {
      const { limiter } = frozen(burst)
      const spent = (await limiter.take('user', Math.min(before, burst))).allowed ? Math.min(before, burst) : 0
      const answers = await Promise.all(all.map((cost) => limiter.take('user', cost)))
      const taken = answers.reduce((sum, { allowed }, i) => sum + (allowed ? (all[i] as number) : 0), spent)
      const { remaining } = await limiter.take('user', 0)
      expect(remaining).toBe(burst - taken)
      // A refused take would not have fitted at any earlier time either, because nothing is returned.
      for (const [i, { allowed }] of answers.entries()) if (!allowed) expect(all[i]).toBeGreaterThan(remaining)
    }),
    { numRuns: 300 },
  )
})

test('many takes of one key in one turn cost the store one request, or three where the limit is reached', async () => {
  const { limiter, asked } = frozen(100)
  await Promise.all(Array.from({ length: 64 }, () => limiter.take('user')))
  expect(asked()).toBe(1)
  const answers = await Promise.all(Array.from({ length: 64 }, () => limiter.take('user')))
  expect(answers.filter(({ allowed }) => allowed)).toHaveLength(36)
  expect(asked()).toBe(4)
})
