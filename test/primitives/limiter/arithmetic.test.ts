import fc from 'fast-check'
import { expect, test } from 'vitest'
import type { Limit } from '../../../src/store.js'
import { emptyMeter, takeFrom, takeFromAll } from '../../../src/util/rate.js'

const bucket: fc.Arbitrary<Limit> = fc.record({
  algorithm: fc.constant('token-bucket' as const),
  limit: fc.oneof(fc.nat(5), fc.integer({ min: 1, max: 1_000_000 })),
  perMs: fc.integer({ min: 1, max: 100_000 }),
  burst: fc.integer({ min: 0, max: 20 }),
})

const step = fc.record({
  passMs: fc.oneof(fc.constant(0), fc.double({ min: 0, max: 5_000, noNaN: true })),
  cost: fc.oneof(fc.nat(25), fc.double({ min: 0, max: 5, noNaN: true })),
})

test('the short way for one token bucket says what the way for any limits says', () => {
  fc.assert(
    fc.property(bucket, fc.array(step, { maxLength: 30 }), (limit, steps) => {
      const [quick, slow] = [[emptyMeter()], [emptyMeter()]]
      let now = 1_000
      for (const { passMs, cost } of steps) {
        now += passMs
        const request = { limits: [limit], cost }
        expect(takeFrom(quick, request, now)).toEqual(takeFromAll(slow, request, now))
        expect(quick).toEqual(slow)
      }
    }),
    { numRuns: 2_000 },
  )
})
