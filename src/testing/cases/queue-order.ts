import { strict as assert } from 'node:assert'
import { granted, mustRelease, refused, release, renew, tryAcquire } from '../store-calls.js'
import { type Alternative, type Case, needing } from '../case.js'

const withoutQueue: Alternative = {
  name: 'a store without a queue ignores queueMs: a claim is refused while the key is held and granted when it is free',
  async run(t) {
    const [a, b] = await t.clients(2)
    const key = t.key()
    const held = await granted(a, t.claim(key))
    const waiting = t.claim(key, { queueMs: t.longMs })
    await refused(b, waiting)
    await mustRelease(a, held)
    await t.until('the next request gets it', () => tryAcquire(a, t.claim(key)))
  },
}

const order: Case[] = [
  {
    name: 'waiters are granted the lock in the order of their arrival',
    otherwise: withoutQueue,
    async run(t) {
      const clients = await t.clients(3)
      const key = t.key()
      let held = await granted(clients[0], t.claim(key))
      let holder = clients[0]
      const waiting = Array.from({ length: 5 }, (_, i) => ({
        client: clients[i % 3] as typeof holder,
        claim: t.claim(key, { queueMs: t.longMs }),
      }))
      for (const { client, claim } of waiting) await refused(client, claim)
      for (const [turn, { client, claim }] of waiting.entries()) {
        await mustRelease(holder, held)
        // The last waiter asks first: it must not matter which one is quickest.
        for (const later of waiting.slice(turn + 1).toReversed())
          await refused(later.client, later.claim, 'others arrived earlier')
        held = await granted(client, claim, 'it is first in the queue')
        holder = client
      }
      await mustRelease(holder, held)
      await granted(holder, t.claim(key), 'the queue is empty')
    },
  },
  {
    name: 'a waiter that asks again keeps its queue entry',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const first = t.claim(key, { queueMs: t.longMs })
      const second = t.claim(key, { queueMs: t.longMs })
      await refused(b, first)
      await refused(c, second)
      for (let i = 0; i < 3; i++) await refused(b, first)
      await mustRelease(a, held)
      await refused(c, second, 'it arrived second')
      await granted(b, first)
    },
  },
  {
    name: 'a refusal reports how many waiters are ahead',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.claim(key))
      const first = t.claim(key, { queueMs: t.longMs })
      const second = t.claim(key, { queueMs: t.longMs })
      assert.equal((await refused(b, first)).ahead, 0)
      assert.equal((await refused(c, second)).ahead, 1)
      assert.equal((await refused(a, t.claim(key))).ahead, 2, 'ahead of any new waiter')
      assert.equal((await refused(b, first)).ahead, 0, 'the same waiter asks again')
    },
  },
  {
    name: 'a new request does not overtake the queue when the lease has just expired',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const sentAt = t.now()
      const brief = await granted(a, t.claim(key, { ttlMs: 150 }))
      const first = t.claim(key, { queueMs: t.longMs })
      const second = t.claim(key, { queueMs: t.longMs })
      // On a slow machine the lease may end before the first waiter asks. Then the grant is correct as well.
      const early = await tryAcquire(b, first)
      if (early) return assert.ok(t.now() - sentAt >= brief.ttlMs - 5, 'the lease had ended')
      await refused(c, second)
      await t.elapse(400)
      await refused(c, t.claim(key), 'a new request')
      await refused(c, second, 'second in the queue')
      await granted(b, first, 'first in the queue')
    },
  },
  {
    name: 'a release skips an expired queue entry, even if the queue has no other',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const later = t.claim(key, { queueMs: t.longMs })
      await refused(b, t.claim(key, { queueMs: 200 }))
      await refused(c, later)
      await mustRelease(c, { key, owner: later.owner })
      await t.elapse(400)
      await mustRelease(a, held)
      await granted(c, t.claim(key), 'no living waiter arrived before')
    },
  },
  {
    name: 'a steady flow of readers does not starve a waiting writer',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const reading = await granted(a, t.reader(key))
      const writer = t.claim(key, { queueMs: t.longMs })
      await refused(b, writer)
      await refused(c, t.reader(key), 'a reader that arrived after the writer')
      const later = t.reader(key, { queueMs: t.longMs })
      assert.equal((await refused(c, later)).ahead, 1)
      await mustRelease(a, reading)
      await refused(c, later, 'the writer is first')
      const writing = await granted(b, writer)
      await mustRelease(b, writing)
      await granted(c, later)
    },
  },
  {
    name: 'a steady flow of writers does not starve a waiting reader',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const writing = await granted(a, t.claim(key))
      const reader = t.reader(key, { queueMs: t.longMs })
      await refused(b, reader)
      const writer = t.claim(key, { queueMs: t.longMs })
      await refused(c, writer)
      await mustRelease(a, writing)
      await refused(c, writer, 'the reader is first')
      const reading = await granted(b, reader)
      await mustRelease(b, reading)
      await granted(c, writer)
    },
  },
]

const weights: Case[] = [
  {
    name: 'small claims do not overtake a big one that waits for capacity',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key('', 'semaphore')
      const of3 = (weight: number, queueMs?: number) => t.claim(key, { weight, capacity: 3, queueMs })
      const held = await granted(a, of3(1))
      const big = of3(3, t.longMs)
      await refused(b, big)
      await refused(c, of3(1), 'there is capacity, but another waiter is ahead')
      await mustRelease(a, held)
      await refused(c, of3(1), 'the big claim is first')
      await granted(b, big)
    },
  },
]

const leaving: Case[] = [
  {
    name: 'the release of a queue entry is answered released once, and no lease is handed off to it afterwards',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { queueMs: t.longMs })
      await refused(b, waiting)
      assert.equal(await release(b, waiting), 'released')
      assert.equal(await release(b, waiting), 'gone')
      await mustRelease(a, held)
      await granted(c, t.claim(key), 'the queue is empty')
    },
  },
  {
    name: 'a release by another owner does not remove a queue entry',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { queueMs: t.longMs })
      await refused(b, waiting)
      assert.equal(await release(c, { key, owner: t.owner() }), 'gone')
      await mustRelease(a, held)
      await refused(c, t.claim(key), 'the entry is still in the queue')
      await granted(b, waiting)
    },
  },
  {
    name: 'a waiter that leaves the queue lets the waiters behind it pass',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.reader(key))
      const writer = t.claim(key, { queueMs: t.longMs })
      await refused(b, writer)
      const reader = t.reader(key, { queueMs: t.longMs })
      await refused(c, reader, 'behind a writer')
      assert.equal(await release(b, writer), 'released')
      await granted(c, reader, 'beside the first reader')
    },
  },
  {
    name: 'a claim without queueMs leaves no queue entry',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      await refused(b, t.claim(key))
      await mustRelease(a, held)
      await granted(c, t.claim(key))
    },
  },
  {
    name: 'a renewal of a queue entry without queued is answered gone, and neither grants nor removes the entry',
    otherwise: withoutQueue,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { queueMs: t.longMs })
      await refused(b, waiting)
      assert.equal(await renew(b, waiting, t.longMs), 'gone', 'a queue entry is not a lease')
      assert.equal(await renew(a, held, t.longMs), 'ours', 'its holder still holds it')
      await mustRelease(a, held)
      await refused(c, t.claim(key))
      await granted(b, waiting)
    },
  },
]

export const queueOrderCases: Case[] = [
  ...needing(['queue'], [...order, ...leaving]),
  ...needing(['queue', 'counting'], weights),
]
