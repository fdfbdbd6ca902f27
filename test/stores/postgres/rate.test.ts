import * as fc from 'fast-check'
import { Pool } from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { emptyMeter, takeFrom } from '../../../src/util/rate.js'
import type { Limit, TakeAnswer } from '../../../src/store.js'
import { migrate } from '../../../src/stores/postgres/index.js'

let server: PostgresServer
let pool: Pool

beforeAll(async () => {
  server = await startPostgres({ settings: { synchronous_commit: 'off' } })
  pool = new Pool({ connectionString: server.url })
  await migrate(pool)
})

afterAll(async () => {
  await pool.end()
  await server.stop()
})

let counter = 0

/** All questions to one key in one call per instant, judged at the instants given. */
async function ask(limits: readonly Limit[], steps: readonly { at: number; cost: number }[]): Promise<TakeAnswer[]> {
  const key = `limiter:rate:${++counter}`
  const answers: TakeAnswer[] = []
  for (const { at, cost } of steps) {
    const { rows } = await pool.query('select leasehold_take($1, $2) as said', [
      JSON.stringify([{ key, cost, limits }]),
      at,
    ])
    const [allowed, remaining, retryAfterMs, resetMs, states] = rows[0].said[0]
    const retry = retryAfterMs ?? Number.POSITIVE_INFINITY
    const eachLimit = (states as [number, number][]).map(([left, nextMs]) => ({ remaining: left, nextMs }))
    answers.push({ allowed: allowed === 1, remaining, retryAfterMs: retry, resetMs, limits: eachLimit })
  }
  return answers
}

function reference(limits: readonly Limit[], steps: readonly { at: number; cost: number }[]): TakeAnswer[] {
  const meters = limits.map(emptyMeter)
  return steps.map(({ at, cost }) => takeFrom(meters, { limits, cost }, at))
}

const limitArbitrary: fc.Arbitrary<Limit> = fc.oneof(
  fc.record({
    algorithm: fc.constant('token-bucket' as const),
    limit: fc.integer({ min: 0, max: 20 }),
    perMs: fc.constantFrom(1, 100, 333, 1_000),
    burst: fc.integer({ min: 0, max: 30 }),
  }),
  fc
    .record({ limit: fc.integer({ min: 0, max: 12 }), perMs: fc.constantFrom(1, 100, 333, 1_000) })
    .map(({ limit, perMs }) => ({ algorithm: 'sliding-window' as const, limit, perMs, burst: limit })),
  fc
    .record({
      limit: fc.integer({ min: 0, max: 6 }),
      perMs: fc.constantFrom(100, 1_000),
      blockMs: fc.constantFrom(50, 2_000),
    })
    .map((limit) => ({ algorithm: 'sliding-window' as const, burst: limit.limit, ...limit })),
)

const counterArbitrary: fc.Arbitrary<Limit> = fc
  .record({
    limit: fc.integer({ min: 0, max: 6 }),
    perMs: fc.constantFrom(1, 100, 1_000),
    blockMs: fc.constantFrom(undefined, 50, 2_000),
    blockGrowth: fc.constantFrom(undefined, 1, 2),
  })
  .map((limit) => ({ algorithm: 'fixed-window' as const, burst: limit.limit, ...limit }))

const stepsArbitrary = fc
  .array(
    fc.record({
      after: fc.constantFrom(0, 0.25, 1, 7, 50, 100, 333.3, 2_000),
      cost: fc.constantFrom(0, 0.5, 1, 1, 2, 5, 40, -1, -3),
    }),
    {
      minLength: 1,
      maxLength: 15,
    },
  )
  .map((list) => {
    let at = 1_700_000_000_000
    return list.map(({ after, cost }) => ({ at: (at += after), cost }))
  })

test('every sequence of requests is answered as the reference answers it', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.oneof(
        { weight: 3, arbitrary: fc.array(limitArbitrary, { minLength: 1, maxLength: 3 }) },
        { weight: 1, arbitrary: counterArbitrary.map((limit) => [limit]) },
      ),
      stepsArbitrary,
      async (limits, steps) => {
        const [said, expected] = [await ask(limits, steps), reference(limits, steps)]
        for (const [i, answer] of said.entries()) {
          const right = expected[i] as TakeAnswer
          expect(answer.allowed).toBe(right.allowed)
          expect(answer.remaining).toBe(right.remaining)
          for (const [n, state] of (right.limits ?? []).entries()) {
            expect(answer.limits?.[n]?.remaining).toBe(state.remaining)
            expect(Math.abs((answer.limits?.[n]?.nextMs ?? -1) - state.nextMs)).toBeLessThan(0.01)
          }
          for (const field of ['retryAfterMs', 'resetMs'] as const) {
            if (right[field] === Number.POSITIVE_INFINITY) expect(answer[field]).toBe(right[field])
            else expect(Math.abs(answer[field] - right[field])).toBeLessThan(0.01)
          }
        }
      },
    ),
    { numRuns: 150 },
  )
})

test('a limit that is configured anew begins anew', async () => {
  const window: Limit = { algorithm: 'sliding-window', limit: 2, perMs: 1_000, burst: 2 }
  const key = 'limiter:rate:anew'
  const take = async (limits: Limit[]) =>
    (await pool.query('select leasehold_take($1, 5000) as said', [JSON.stringify([{ key, cost: 2, limits }])])).rows[0]
      .said[0][0]
  expect(await take([window])).toBe(1)
  expect(await take([window])).toBe(0)
  expect(await take([{ ...window, perMs: 2_000 }])).toBe(1)
})

test('later calls delete limits that are whole again', async () => {
  const limits: Limit[] = [{ algorithm: 'sliding-window', limit: 5, perMs: 1, burst: 5 }]
  const requests = Array.from({ length: 80 }, (_, i) => ({ key: `limiter:idle:${i}`, cost: 1, limits }))
  const take = () => pool.query('select leasehold_take($1, null)', [JSON.stringify(requests.splice(0, 40))])
  await take()
  await pool.query(`update leasehold_meters set sweep_at = now() - interval '1 second' where key like 'limiter:idle:%'`)
  await take()
  const { rows } = await pool.query(
    `select count(*)::int as meters, (select count(*)::int from leasehold_takes t where t.key like 'limiter:idle:%') as takes from leasehold_meters where key like 'limiter:idle:%'`,
  )
  expect(rows).toEqual([{ meters: 40, takes: 40 }])
})
