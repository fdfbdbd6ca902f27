import { strict as assert } from 'node:assert'
import { granted, inBatches, mustRelease, mustBeGrant, mustBeRefusal, refused, release, show } from '../store-calls.js'
import { type Case, needing } from '../case.js'

const plain: Case[] = [
  {
    name: 'every item of a batch has its own answer, in the order of the items',
    async run(t) {
      const [a, b] = await t.clients(2)
      const [busy, free, also] = t.keys(3) as [string, string, string]
      const held = await granted(b, t.claim(busy))
      const claims = [t.claim(free), t.claim(busy), t.claim(also)] as const
      const answers = await inBatches(a, 'acquire', claims, (part) => a.acquire(part))
      const first = mustBeGrant(answers[0], claims[0])
      mustBeRefusal(answers[1], claims[1])
      const third = mustBeGrant(answers[2], claims[2])
      const leases = [first, { key: busy, owner: claims[1].owner }, third].map(({ key, owner }) => ({ key, owner }))
      const renewals = leases.map((lease) => ({ ...lease, ttlMs: t.longMs }))
      const renewed = await inBatches(a, 'renew', renewals, (part) => a.renew(part))
      assert.deepEqual(
        renewed.map((answer) => answer.outcome),
        ['ours', 'gone', 'ours'],
      )
      const released = await inBatches(a, 'release', leases, (part) => a.release(part))
      assert.deepEqual(
        released.map((answer) => answer.outcome),
        ['released', 'gone', 'released'],
      )
      await mustRelease(b, held)
    },
  },
  {
    name: 'two locks of one key in a batch: the first is granted, the second is refused',
    async run(t) {
      const [a] = await t.clients(1)
      const key = t.key()
      const claims = [t.claim(key), t.claim(key)] as const
      const answers = await inBatches(a, 'acquire', claims, (part) => a.acquire(part))
      const lease = mustBeGrant(answers[0], claims[0])
      mustBeRefusal(answers[1], claims[1])
      const twice = [lease, lease].map(({ owner }) => ({ key, owner }))
      const renewed = await inBatches(a, 'renew', twice, (part) =>
        a.renew(part.map((item) => ({ ...item, ttlMs: t.longMs }))),
      )
      assert.deepEqual(
        renewed.map((answer) => answer.outcome),
        ['ours', 'ours'],
      )
      const released = await inBatches(a, 'release', twice, (part) => a.release(part))
      assert.deepEqual(
        released.map((answer) => answer.outcome),
        ['released', 'gone'],
      )
    },
  },
  {
    name: 'several claims of one key in a batch: all readers are granted, the lock behind them is refused',
    async run(t) {
      const [a] = await t.clients(1)
      const key = t.key()
      const claims = [t.reader(key), t.reader(key), t.claim(key), t.reader(key)] as const
      const answers = await inBatches(a, 'acquire', claims, (part) => a.acquire(part))
      assert.deepEqual(
        answers.map((answer) => answer.granted),
        [true, true, false, true],
      )
    },
  },
  {
    name: 'an empty batch has an empty answer',
    async run(t) {
      const [a] = await t.clients(1)
      assert.deepEqual(await a.acquire([]), [])
      assert.deepEqual(await a.renew([]), [])
      assert.deepEqual(await a.release([]), [])
    },
  },
  {
    name: 'a batch of a thousand items is acquired, renewed and released, with an answer for each item',
    async run(t) {
      const [a, b] = await t.clients(2)
      const keys = t.keys(1_000)
      const claims = keys.map((key) => t.claim(key))
      const answers = await inBatches(a, 'acquire', claims, (part) => a.acquire(part))
      const leases = answers.map((answer, i) => mustBeGrant(answer, claims[i] as (typeof claims)[0]))
      const items = leases.map(({ key, owner }) => ({ key, owner, ttlMs: t.longMs }))
      const renewed = await inBatches(a, 'renew', items, (part) => a.renew(part))
      assert.ok(
        renewed.every((answer) => answer.outcome === 'ours'),
        'all were renewed',
      )
      await refused(b, t.claim(keys[500] as string))
      const released = await inBatches(a, 'release', items, (part) => a.release(part))
      assert.ok(
        released.every((answer) => answer.outcome === 'released'),
        'all were released',
      )
      await granted(b, t.claim(keys[500] as string))
    },
  },
  {
    name: 'concurrent batches that name the same keys in opposite order are all answered',
    async run(t) {
      const clients = await t.clients(4)
      const keys = t.keys(8)
      const rounds = clients.map(async (client, i) => {
        for (let round = 0; round < 8; round++) {
          const claims = keys.map((key) => t.claim(key))
          if (i % 2 === 1) claims.reverse()
          const answers = await t.settled(
            'the batch is answered',
            inBatches(client, 'acquire', claims, (part) => client.acquire(part)),
          )
          const failed = answers.find((answer) => answer.granted === 'unknown')
          assert.equal(failed, undefined, `every item is decided: ${show(failed)}`)
          const leases = answers.flatMap((answer, at) =>
            answer.granted === true ? [{ key: (claims[at] as { key: string }).key, owner: answer.owner }] : [],
          )
          const released = await t.settled(
            'the releases are answered',
            inBatches(client, 'release', leases, (part) => client.release(part)),
          )
          assert.ok(
            released.every((answer) => answer.outcome === 'released'),
            show(released),
          )
        }
      })
      await Promise.all(rounds)
    },
  },
]

const queued: Case[] = [
  {
    name: 'a holder and the head of the queue that leave in one batch make the second waiter the next holder',
    async run(t) {
      const [a, b] = await t.clients(2)
      for (const turned of [false, true]) {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const head = t.claim(key, { queueMs: t.longMs })
        const second = t.claim(key, { queueMs: t.longMs })
        await refused(a, head)
        await refused(b, second)
        const leases = [held, head].map(({ owner }) => ({ key, owner }))
        if (turned) leases.reverse()
        const released = await inBatches(a, 'release', leases, (part) => a.release(part))
        assert.deepEqual(
          released.map((answer) => answer.outcome),
          ['released', 'released'],
        )
        await granted(b, second)
      }
    },
  },
  {
    name: 'queue entries created in one batch keep the order of the batch',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      let held = await granted(b, t.claim(key))
      const claims = Array.from({ length: 4 }, () => t.claim(key, { queueMs: t.longMs }))
      const answers = await inBatches(a, 'acquire', claims, (part) => a.acquire(part))
      assert.deepEqual(
        answers.map((answer) => answer.granted === false && answer.ahead),
        [0, 1, 2, 3],
      )
      for (const claim of claims) {
        assert.equal(await release(a, held), 'released')
        held = await granted(a, claim)
      }
    },
  },
]

export const batchCases: Case[] = [...plain, ...needing(['queue'], queued)]
