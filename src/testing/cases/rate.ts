import { strict as assert } from 'node:assert'
import type { Limit } from '../../store.js'
import { mustBeDecided, take } from '../store-calls.js'
import type { TestContext } from '../test-context.js'
import { type Case, needing } from '../case.js'

export const HOUR: number = 3_600_000

export const bucket = (limit: number, perMs: number, burst: number = limit): Limit => ({
  algorithm: 'token-bucket',
  limit,
  perMs,
  burst,
})
export const window = (limit: number, perMs: number): Limit => ({
  algorithm: 'sliding-window',
  limit,
  perMs,
  burst: limit,
})

export const counter = (limit: number, perMs: number): Limit => ({
  algorithm: 'fixed-window',
  limit,
  perMs,
  burst: limit,
})

export const key = (t: TestContext): string => t.key(':user', 'limiter')

/** The limits refill so slowly that the counts of a case are exact. */
const exact: Case[] = [bucket(5, HOUR), window(5, HOUR)].flatMap((limit) => [
  {
    name: `${limit.algorithm}: exactly as many takes pass as the limit allows, over all clients`,
    async run(t: TestContext) {
      const clients = await t.clients(3)
      const request = { key: key(t), cost: 1, limits: [limit] }
      for (const [i, client] of [...clients.slice(0, 3), ...clients.slice(0, 2)].entries()) {
        const answer = await take(client, request)
        assert.deepEqual([answer.allowed, answer.remaining, answer.retryAfterMs], [true, 4 - i, 0])
        assert.ok(answer.resetMs > 0 && answer.resetMs <= HOUR, `${answer.resetMs} ms`)
      }
      for (const client of clients.slice(0, 3)) {
        const answer = await take(client, request)
        assert.deepEqual([answer.allowed, answer.remaining], [false, 0])
        assert.ok(answer.retryAfterMs > 0 && answer.retryAfterMs <= HOUR, `${answer.retryAfterMs} ms`)
      }
    },
  },
  {
    name: `${limit.algorithm}: exactly as many of many simultaneous takes pass as the limit allows`,
    async run(t: TestContext) {
      const clients = await t.clients(4)
      const request = { key: key(t), cost: 1, limits: [limit] }
      const answers = await Promise.all(clients.flatMap((client) => [1, 2, 3].map(() => take(client, request))))
      assert.equal(answers.filter((answer) => answer.allowed).length, 5)
    },
  },
  {
    name: `${limit.algorithm}: a cost is charged in full or not at all, and fractions count`,
    async run(t: TestContext) {
      const [a, b] = await t.clients(2)
      const limits = [limit]
      const name = key(t)
      assert.equal((await take(a, { key: name, cost: 4, limits })).allowed, true)
      assert.equal((await take(b, { key: name, cost: 2, limits })).allowed, false)
      assert.equal((await take(b, { key: name, cost: 0.5, limits })).allowed, true)
      assert.equal((await take(a, { key: name, cost: 0.5, limits })).allowed, true)
      assert.equal((await take(b, { key: name, cost: 0.5, limits })).allowed, false)
    },
  },
  {
    name: `${limit.algorithm}: a cost of 0 reads the limit without charging it`,
    async run(t: TestContext) {
      const [a] = await t.clients(1)
      const limits = [limit]
      const name = key(t)
      for (let i = 0; i < 3; i++) {
        const answer = await take(a, { key: name, cost: 0, limits })
        assert.deepEqual([answer.allowed, answer.remaining], [true, 5])
      }
      assert.equal((await take(a, { key: name, cost: 5, limits })).allowed, true)
      assert.equal((await take(a, { key: name, cost: 0, limits })).remaining, 0)
    },
  },
  {
    name: `${limit.algorithm}: a cost above the limit never passes and charges nothing`,
    async run(t: TestContext) {
      const [a] = await t.clients(1)
      const limits = [limit]
      const name = key(t)
      for (let i = 0; i < 3; i++) {
        const answer = await take(a, { key: name, cost: 6, limits })
        assert.deepEqual([answer.allowed, answer.retryAfterMs], [false, Number.POSITIVE_INFINITY])
      }
      assert.equal((await take(a, { key: name, cost: 5, limits })).allowed, true)
    },
  },
  {
    name: `${limit.algorithm}: a limit of 0 never lets anything pass`,
    async run(t: TestContext) {
      const [a] = await t.clients(1)
      const answer = await take(a, { key: key(t), cost: 1, limits: [{ ...limit, limit: 0, burst: 0 }] })
      assert.deepEqual([answer.allowed, answer.remaining, answer.retryAfterMs], [false, 0, Number.POSITIVE_INFINITY])
    },
  },
  {
    name: `${limit.algorithm}: a refused take is not charged, and passes after retryAfterMs`,
    async run(t: TestContext) {
      const [a] = await t.clients(1)
      const request = { key: key(t), cost: 1, limits: [{ ...limit, limit: 1, burst: 1, perMs: 250 }] }
      await take(a, request)
      for (let turn = 0; turn < 2; turn++) {
        let answer = await take(a, request)
        for (let i = 0; i < 5 && !answer.allowed; i++) answer = await take(a, request)
        assert.ok(answer.retryAfterMs <= 250, `${answer.retryAfterMs} of 250 ms`)
        if (answer.allowed) continue
        await t.sleep(Math.ceil(answer.retryAfterMs) + 3)
        assert.equal((await take(a, request)).allowed, true, `after ${answer.retryAfterMs} ms`)
      }
    },
  },
  {
    name: `${limit.algorithm}: a period of a fraction of a second counts exactly`,
    async run(t: TestContext) {
      const [a] = await t.clients(1)
      await t.unhurried(500, async (perMs) => {
        const request = { key: key(t), cost: 1, limits: [{ ...limit, limit: 1, burst: 1, perMs }] }
        const sentAt = t.now()
        assert.equal((await take(a, request)).allowed, true)
        const answer = await take(a, request)
        t.mustBeBefore(sentAt + perMs)
        assert.equal(answer.allowed, false)
        assert.ok(answer.retryAfterMs > 0 && answer.retryAfterMs <= perMs, `${answer.retryAfterMs} of ${perMs} ms`)
      })
    },
  },
  {
    name: `${limit.algorithm}: every item of a batch has its own answer, in order, even if one key appears several times`,
    async run(t: TestContext) {
      const [a] = await t.clients(1)
      const [one, other] = t.keys(2, 'limiter') as [string, string]
      const request = (name: string) => ({ key: name, cost: 2, limits: [limit] })
      const answers = (await a.take?.([request(one), request(other), request(one), request(one)])) ?? []
      assert.deepEqual(
        answers.map((answer) => mustBeDecided(answer).allowed),
        [true, true, true, false],
      )
      assert.deepEqual(
        answers.map((answer) => mustBeDecided(answer).remaining),
        [3, 3, 1, 1],
      )
    },
  },
])

/** Takes continuously, and records when each take that passed was sent and answered: the store decided in between. */
async function hammer(t: TestContext, limit: Limit, forMs: number): Promise<{ sentAt: number; receivedAt: number }[]> {
  const clients = await t.clients(2)
  const request = { key: key(t), cost: 1, limits: [limit] }
  const passed: { sentAt: number; receivedAt: number }[] = []
  const over = t.now() + forMs
  // A slow machine continues until the limit has refilled, or there would be nothing to judge.
  for (let i = 0; t.now() < over || (passed.length <= limit.burst && t.now() < over + t.patienceMs); i++) {
    const sentAt = t.now()
    const answer = await take(clients[i % 2] as (typeof clients)[0], request)
    if (answer.allowed) passed.push({ sentAt, receivedAt: t.now() })
    else await t.sleep(Math.min(answer.retryAfterMs, 5))
  }
  return passed
}

const flow: Case[] = [
  {
    name: 'sliding-window: no interval of the length of the window ever has more takes than the limit',
    async run(t) {
      const limit = window(5, 300)
      const passed = await hammer(t, limit, 1_000)
      assert.ok(passed.length > limit.limit, 'the window moves on')
      for (const [i, { sentAt }] of passed.entries()) {
        const beyond = passed[i + limit.limit]
        if (!beyond) break
        const apart = beyond.receivedAt - sentAt
        assert.ok(apart >= limit.perMs - 3, `${limit.limit + 1} passed within ${apart} ms`)
      }
    },
  },
  {
    name: 'token-bucket: no interval has more takes than the burst and what has refilled since',
    async run(t) {
      const limit = bucket(10, 500, 4)
      const passed = await hammer(t, limit, 800)
      assert.ok(passed.length > limit.burst, 'the bucket refills')
      for (const [i, { sentAt }] of passed.entries()) {
        for (const [more, { receivedAt }] of passed.slice(i).entries()) {
          const most = limit.burst + ((receivedAt - sentAt + 3) * limit.limit) / limit.perMs
          assert.ok(more + 1 <= most + 1e-3, `${more + 1} passed within ${receivedAt - sentAt} ms, where ${most} may`)
        }
      }
    },
  },
  {
    name: 'token-bucket: a burst above the limit passes at once, and afterwards the limit applies',
    async run(t) {
      const [a] = await t.clients(1)
      const request = { key: key(t), cost: 8, limits: [bucket(1, HOUR, 10)] }
      assert.equal((await take(a, request)).allowed, true)
      const answer = await take(a, request)
      assert.equal(answer.allowed, false)
      assert.ok(
        answer.retryAfterMs > 5 * HOUR && answer.retryAfterMs <= 6 * HOUR,
        `${answer.retryAfterMs / HOUR} of 6 hours`,
      )
    },
  },
]

const several: Case[] = [bucket, window].map((shape) => ({
  name: `several limits (${shape(1, 1).algorithm}) are charged together or not at all`,
  async run(t: TestContext) {
    const [a] = await t.clients(1)
    const request = { key: key(t), cost: 1, limits: [shape(2, 100), shape(5, HOUR)] }
    let allowed = 0
    let refusals = 0
    // The fast limit refuses many takes meanwhile. If they were charged to the slow limit, fewer than five would pass.
    await t.until('the slow limit is used up', async () => {
      // Four in one call, so that the fast limit refuses some on a slow machine too.
      const answers = ((await a.take?.([request, request, request, request])) ?? []).map(mustBeDecided)
      for (const answer of answers) {
        if (answer.allowed) allowed++
        else refusals++
      }
      return answers.some(({ retryAfterMs }) => retryAfterMs > 10_000)
    })
    assert.equal(allowed, 5)
    assert.ok(refusals > 1, 'some takes were refused by the fast limit')
  },
}))

export const rateCases: Case[] = needing(['take'], [...exact, ...flow, ...several])
