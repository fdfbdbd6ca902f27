/** What a limiter keeps: permits that are given back, counts above the limit, blocks, and what each limit reports. */
import { strict as assert } from 'node:assert'
import { take } from '../store-calls.js'
import type { TestContext } from '../test-context.js'
import { type Case, needing } from '../case.js'
import { bucket, counter, HOUR, key, window } from './rate.js'

/**
 * SLACK_MS: how far two answers may differ that were requested at different moments. Longer than a slow machine needs
 * for them, and far shorter than the periods of a tenth of an hour and more that the cases tell apart.
 */
const SLACK_MS = 60_000

function near(actual: number, expected: number): void {
  assert.ok(actual <= expected && actual > expected - SLACK_MS, `${actual} ms, expected ${expected}`)
}

const givingBack: Case[] = [bucket(5, HOUR), window(5, HOUR), counter(5, HOUR)].flatMap((limit) => [
  {
    name: `${limit.algorithm}: a negative cost returns permits, and never more than were taken`,
    async run(t: TestContext) {
      const [a, b] = await t.clients(2)
      const limits = [limit]
      const name = key(t)
      assert.equal((await take(a, { key: name, cost: -3, limits })).remaining, 5)
      await take(a, { key: name, cost: 2, limits })
      await take(a, { key: name, cost: 2, limits })
      const answer = await take(b, { key: name, cost: -3, limits })
      assert.deepEqual([answer.allowed, answer.remaining, answer.retryAfterMs], [true, 4, 0])
      assert.equal((await take(a, { key: name, cost: -9, limits })).remaining, 5)
      assert.equal((await take(b, { key: name, cost: 5, limits })).allowed, true)
      assert.equal((await take(b, { key: name, cost: 1, limits })).allowed, false)
    },
  },
  {
    name: `${limit.algorithm}: a reset makes everything available again, for this key only`,
    async run(t: TestContext) {
      const [a, b] = await t.clients(2)
      const limits = [limit]
      const [one, other] = t.keys(2, 'limiter') as [string, string]
      for (const name of [one, other]) await take(a, { key: name, cost: 5, limits })
      const answer = await take(b, { key: one, cost: 3, limits, reset: true })
      assert.deepEqual([answer.allowed, answer.remaining, answer.resetMs], [true, 5, 0])
      assert.equal((await take(a, { key: one, cost: 5, limits })).allowed, true)
      assert.equal((await take(a, { key: other, cost: 1, limits })).allowed, false)
    },
  },
])

const counting: Case[] = [
  {
    name: 'fixed-window: every take counts, also above the limit, and the window ends a fixed time after its first take',
    async run(t) {
      const clients = await t.clients(3)
      const request = { key: key(t), cost: 1, limits: [counter(2, HOUR)] }
      assert.deepEqual((await take(clients[0], { ...request, cost: 0 })).remaining, 2)
      const answers = []
      for (const client of [...clients.slice(0, 3), clients[0]]) answers.push(await take(client, request))
      assert.deepEqual(
        answers.map(({ allowed, remaining }) => [allowed, remaining]),
        [
          [true, 1],
          [true, 0],
          [false, -1],
          [false, -2],
        ],
      )
      for (const { resetMs } of answers) near(resetMs, HOUR)
      near(answers[3]?.retryAfterMs ?? 0, HOUR)
      assert.equal((await take(clients[1], { ...request, cost: 0 })).remaining, -2)
    },
  },
  {
    name: 'fixed-window: a window that has ended begins again with the next take',
    async run(t) {
      const [a] = await t.clients(1)
      const request = { key: key(t), cost: 1, limits: [counter(1, 200)] }
      for (let i = 0; i < 3; i++) await take(a, request)
      await t.elapse(210)
      const answer = await take(a, request)
      assert.deepEqual([answer.allowed, answer.remaining], [true, 0])
    },
  },
  {
    name: 'fixed-window: a block begins with the first refusal, and starts anew with each further refusal if it grows',
    async run(t) {
      const [a] = await t.clients(1)
      const [once, again, doubled] = t.keys(3, 'limiter') as [string, string, string]
      const ask = async (name: string, more: object): Promise<number> => {
        const limits = [{ ...counter(1, HOUR), blockMs: 2 * HOUR, ...more }]
        return (await take(a, { key: name, cost: 1, limits })).resetMs
      }
      near(await ask(once, {}), HOUR)
      for (let i = 0; i < 2; i++) near(await ask(once, {}), 2 * HOUR)
      for (const expected of [HOUR, 2 * HOUR, 2 * HOUR]) near(await ask(again, { blockGrowth: 1 }), expected)
      for (const expected of [1, 2, 4, 8]) near(await ask(doubled, { blockGrowth: 2 }), expected * HOUR)
    },
  },
  {
    name: 'sliding-window: a refusal blocks for blockMs, is not prolonged, and everything is available after it',
    async run(t) {
      const [a, b] = await t.clients(2)
      await t.unhurried(300, async (blockMs) => {
        const request = { key: t.key(`:user${blockMs}`, 'limiter'), cost: 1, limits: [{ ...window(2, HOUR), blockMs }] }
        for (const client of [a, b]) assert.equal((await take(client, request)).allowed, true)
        const sentAt = t.now()
        const refused = await take(a, request)
        const receivedAt = t.now()
        assert.deepEqual([refused.allowed, refused.remaining], [false, 0])
        assert.ok(refused.retryAfterMs > blockMs - 5 && refused.retryAfterMs <= blockMs, `${refused.retryAfterMs} ms`)
        await t.sleep(blockMs / 3)
        const later = await take(b, request)
        t.mustBeBefore(sentAt + blockMs)
        assert.equal(later.allowed, false)
        assert.ok(later.retryAfterMs <= (blockMs * 2) / 3 + 5, `${later.retryAfterMs} ms`)
        await t.sleep(receivedAt + blockMs - t.now() + 5)
        const answer = await take(b, request)
        assert.deepEqual([answer.allowed, answer.remaining], [true, 1])
      })
    },
  },
]

const states: Case[] = [
  {
    name: 'each of several limits reports what remains and when one more is available',
    async run(t) {
      const [a] = await t.clients(1)
      const limits = [bucket(10, HOUR), window(4, 2 * HOUR)]
      const name = key(t)
      await take(a, { key: name, cost: 1, limits })
      const { limits: told = [] } = await take(a, { key: name, cost: 2, limits })
      assert.deepEqual(
        told.map(({ remaining }) => remaining),
        [7, 1],
      )
      near(told[0]?.nextMs ?? 0, HOUR / 10)
      near(told[1]?.nextMs ?? 0, 2 * HOUR)
      const refused = await take(a, { key: name, cost: 2, limits })
      assert.deepEqual([refused.allowed, ...(refused.limits ?? []).map(({ remaining }) => remaining)], [false, 7, 1])
    },
  },
  {
    name: 'sliding-window: one more is available when the oldest take no longer counts',
    async run(t) {
      const [a] = await t.clients(1)
      const limits = [window(5, HOUR)]
      const name = key(t)
      assert.deepEqual((await take(a, { key: name, cost: 0, limits })).limits, [{ remaining: 5, nextMs: 0 }])
      await take(a, { key: name, cost: 1, limits })
      await t.sleep(200)
      const { limits: told = [], resetMs } = await take(a, { key: name, cost: 1, limits })
      assert.equal(told[0]?.remaining, 3)
      assert.ok((told[0]?.nextMs ?? 0) <= resetMs - 190, `${told[0]?.nextMs} of ${resetMs} ms`)
    },
  },
]

export const rateStateCases: Case[] = needing(['take'], [...givingBack, ...counting, ...states])
