/** An expired lease sends no event: the next request grants the lease to all waiters that fit. */
import { strict as assert } from 'node:assert'
import type { Case, TestContext } from '../../../src/testing/index.js'
import type { Answer, Claim, Store } from '../../../src/store.js'

async function ask(store: Store, claim: Claim): Promise<Answer> {
  return (await store.acquire([claim]))[0] as Answer
}

async function renewed(store: Store, { key, owner }: Claim): Promise<string | undefined> {
  return (await store.renew([{ key, owner, ttlMs: 60_000 }]))[0]?.outcome
}

const NEEDS = ['queue', 'watch', 'handoff', 'owners'] as const

/**
 * These wait behind a holder that dies at `endsAt`. Abandons the attempt if the machine took so long that its lease may have
 * ended meanwhile.
 */
async function enqueue(t: TestContext, store: Store, claims: readonly Claim[], endsAt: number): Promise<void> {
  const answers: Answer[] = []
  for (const claim of claims) answers.push(await ask(store, claim))
  t.mustBeBefore(endsAt)
  for (const { granted } of answers) assert.equal(granted, false)
}

export const afterADeath: Case[] = [
  {
    name: 'after an expiry, a request of the first waiter grants all waiters behind it that fit, and they are told',
    needs: NEEDS,
    run: (t) =>
      t.unhurried(1_000, async (ttlMs) => {
        const [a, b] = await t.clients(2)
        const key = t.key()
        const readers = [0, 1, 2].map(() => t.reader(key, { queueMs: t.longMs }))
        const writer = t.claim(key, { queueMs: t.longMs })
        const late = t.reader(key, { queueMs: t.longMs })
        const probe = await t.probe(b, key)
        const endsAt = t.now() + ttlMs
        await ask(a, t.claim(key, { ttlMs }))
        await enqueue(t, b, [...readers, writer, late], endsAt)
        const [first, ...others] = readers as [Claim, Claim, Claim]
        const own = await t.until('the dead holder is gone', async () => {
          const answer = await ask(b, first)
          return answer.granted === true && answer
        })
        assert.ok(own.ttlMs > 30_000, 'the requesting waiter gets it for its whole ttl')
        for (const { owner } of others) {
          const told = await probe.event({ type: 'granted', owner })
          assert.ok(told.token >= own.token, `token ${told.token} after ${own.token}`)
        }
        for (const claim of readers) assert.equal(await renewed(b, claim), 'ours')
        for (const claim of [writer, late]) assert.equal((await ask(b, claim)).granted, false, 'not beside the writer')
      }),
  },
  {
    name: 'after an expiry, a request of a later waiter is granted together with those before it',
    needs: NEEDS,
    run: (t) =>
      t.unhurried(1_000, async (ttlMs) => {
        const [a, b] = await t.clients(2)
        const key = t.key()
        const readers = [0, 1, 2].map(() => t.reader(key, { queueMs: t.longMs }))
        const endsAt = t.now() + ttlMs
        await ask(a, t.claim(key, { ttlMs }))
        await enqueue(t, b, readers, endsAt)
        await t.until('the last waiter is granted', async () => (await ask(b, readers[2] as Claim)).granted === true)
        for (const claim of readers) assert.equal(await renewed(b, claim), 'ours')
      }),
  },
  {
    name: 'after an expiry, a new request is refused, and the head of the queue is granted',
    needs: NEEDS,
    run: (t) =>
      t.unhurried(500, async (ttlMs) => {
        const [a, b, c] = await t.clients(3)
        const key = t.key()
        const successor = t.claim(key, { queueMs: t.longMs })
        const probe = await t.probe(b, key)
        const endsAt = t.now() + ttlMs
        await ask(a, t.claim(key, { ttlMs }))
        await enqueue(t, b, [successor], endsAt)
        await t.until('it is handed off', async () => {
          assert.equal((await ask(c, t.claim(key))).granted, false, 'a new request')
          return probe.received.some((event) => event.type === 'granted' && event.owner === successor.owner)
        })
        assert.equal(await renewed(b, successor), 'ours')
      }),
  },
  {
    name: 'expired permits are handed off to as many waiters as fit, whichever waiter asks',
    needs: [...NEEDS, 'counting'],
    run: (t) =>
      t.unhurried(1_000, async (ttlMs) => {
        const [a, b, c] = await t.clients(3)
        const key = t.key('', 'semaphore')
        const of5 = (weight: number, over: Partial<Claim> = {}): Claim => t.claim(key, { weight, capacity: 5, ...over })
        const probe = await t.probe(b, key)
        await ask(a, of5(1))
        const endsAt = t.now() + ttlMs
        await ask(a, of5(4, { ttlMs }))
        const waiting = [2, 1, 2, 1].map((weight) => of5(weight, { queueMs: t.longMs }))
        await enqueue(t, b, waiting, endsAt)
        const [two, one, tooMuch, behind] = waiting as [Claim, Claim, Claim, Claim]
        await t.until('the first is granted', async () => (await ask(b, two)).granted === true)
        await probe.event({ type: 'granted', owner: one.owner })
        assert.equal(await renewed(b, one), 'ours')
        assert.equal((await ask(c, tooMuch)).granted, false, 'four of five are taken')
        assert.equal((await ask(c, behind)).granted, false, 'another waiter arrived earlier')
      }),
  },
  {
    name: 'an atomic request for several names grants those that wait for one of them, and takes nothing itself',
    needs: [...NEEDS, 'atomic'],
    run: (t) =>
      t.unhurried(500, async (ttlMs) => {
        const [a, b, c] = await t.clients(3)
        const [free, dead] = t.keys(2) as [string, string]
        const reader = t.reader(dead, { queueMs: t.longMs })
        const endsAt = t.now() + ttlMs
        await ask(a, t.claim(dead, { ttlMs }))
        await enqueue(t, b, [reader], endsAt)
        await t.until('the reader has it', async () => {
          const answers = await c.acquire([t.claim(free), t.claim(dead)], { atomic: true })
          assert.ok(answers.every((answer) => answer.granted === false))
          return (await renewed(b, reader)) === 'ours'
        })
        assert.equal((await ask(a, t.claim(free))).granted, true)
      }),
  },
]
