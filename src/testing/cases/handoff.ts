import { strict as assert } from 'node:assert'
import { granted, mustRelease, refused, release, renew, tryAcquire } from '../store-calls.js'
import type { StoreEvent, Watch } from '../../store.js'
import { type Alternative, type Case, needing } from '../case.js'

const unhanded: Alternative = {
  name: 'a release wakes the head of the queue, whose next request is granted',
  needs: ['queue', 'watch'],
  async run(t) {
    const [a, b] = await t.clients(2)
    const key = t.key()
    const held = await granted(a, t.claim(key))
    const waiting = t.claim(key, { queueMs: t.longMs })
    const probe = await t.probe(b, key)
    await refused(b, waiting)
    await mustRelease(a, held)
    const woken = await probe.event({ type: 'freed' })
    if (woken.owner !== undefined) assert.equal(woken.owner, waiting.owner)
    await t.until('the waiter gets it', () => tryAcquire(b, waiting))
  },
}

const forAllKeys: Case[] = [
  {
    name: 'one subscription reports the grants of every key that its client waits for, and no others',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const received: { key: string | undefined; type: StoreEvent['type']; owner: string | undefined }[] = []
      const watch = b.watchGrants?.((key, event) =>
        received.push({ key, type: event.type, owner: event.type === 'changed' ? undefined : event.owner }),
      ) as Watch
      t.afterwards(() => watch.close())
      // It may decline, where its server or client cannot do it: waiters then call `watch`.
      if (!(await t.settled('the subscription', watch.ready))) return assert.equal(watch.live(), false)
      for (const key of [t.key(), t.key()]) {
        const held = await granted(a, t.claim(key))
        const [mine, other] = [t.claim(key, { queueMs: 30_000 }), t.claim(key, { queueMs: 30_000 })]
        await refused(b, mine)
        await refused(c, other)
        await mustRelease(a, held)
        const { type } = await t.until(`the grant of ${key}`, () =>
          received.find((each) => each.key === key && each.owner === mine.owner),
        )
        assert.ok(type === 'granted' || type === 'freed', `a grant, or a hint that its owner should ask: ${type}`)
        assert.equal((await granted(b, mine)).owner, mine.owner)
        await mustRelease(b, mine)
        await t.until('the other waiter has it', () => tryAcquire(c, other))
        assert.ok(!received.some(({ owner }) => owner === other.owner), 'the grant of another client is not reported')
      }
    },
  },
]

const single: Case[] = [
  {
    name: 'a release hands the lease off to the head of the queue and reports the token to it',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const [first, second] = [t.claim(key, { queueMs: 30_000 }), t.claim(key, { queueMs: 30_000 })]
      const [probe, other] = [await t.probe(b, key), await t.probe(c, key)]
      await refused(b, first)
      await refused(c, second)
      await mustRelease(a, held)
      const told = await probe.event({ type: 'granted', owner: first.owner })
      assert.equal(typeof told.token, 'bigint')
      assert.ok(told.token > held.token, `token ${told.token} came after ${held.token}`)
      assert.ok(told.ttlMs > 0 && told.ttlMs <= 30_000, `it lasts for queueMs at most, not for ttlMs: ${told.ttlMs} ms`)
      assert.equal(await renew(b, first, t.longMs), 'ours', 'the waiter holds it without another request')
      await refused(c, second, 'it is held by the first')
      const again = await granted(b, first)
      assert.equal(again.token, told.token, 'the grant that was reported')
      const forSecond = [...probe.received, ...other.received].filter(
        (event) => event.type === 'granted' && event.owner === second.owner,
      )
      assert.deepEqual(forSecond, [], 'the second waiter got nothing')
    },
  },
  {
    name: 'a lease that was handed off lasts for queueMs only, until it is renewed',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(300, async (queueMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const waiting = t.claim(key, { queueMs })
        const probe = await t.probe(b, key)
        const askedAt = t.now()
        await refused(b, waiting)
        const releasedAt = t.now()
        await mustRelease(a, held)
        t.mustBeBefore(askedAt + queueMs)
        const { token } = await probe.event({ type: 'granted', owner: waiting.owner })
        const outcome = await renew(b, waiting, t.longMs)
        t.mustBeBefore(releasedAt + queueMs)
        assert.equal(outcome, 'ours')
        await t.sleep(queueMs + 100)
        await refused(c, t.claim(key), 'once renewed, it lasts for ttlMs')
        assert.equal((await granted(b, waiting)).token, token)
      })
    },
  },
  {
    name: 'a lease that was handed off and never renewed passes to the next client',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(200, async (queueMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const silent = t.claim(key, { queueMs })
        const probe = await t.probe(b, key)
        const askedAt = t.now()
        await refused(b, silent)
        await mustRelease(a, held)
        t.mustBeBefore(askedAt + queueMs)
        await probe.event({ type: 'granted', owner: silent.owner })
        const successor = await t.until('another client gets it', () => tryAcquire(c, t.claim(key)))
        assert.equal(await renew(b, silent, t.longMs), 'gone')
        assert.equal(await release(b, silent), 'gone')
        assert.equal(await renew(c, successor, t.longMs), 'ours')
      })
    },
  },
  {
    name: 'a lease that was handed off lasts no longer than the ttlMs of its claim',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const brief = t.claim(key, { queueMs: t.longMs, ttlMs: 200 })
      const probe = await t.probe(b, key)
      await refused(b, brief)
      await mustRelease(a, held)
      const told = await probe.event({ type: 'granted', owner: brief.owner })
      assert.ok(told.ttlMs <= 200, `${told.ttlMs} of 200 ms`)
      await t.until('it ends', () => tryAcquire(c, t.claim(key)))
    },
  },
  {
    name: 'no other request is granted between a release and the hand-off to its successor',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      let held = await granted(a, t.claim(key))
      let over = false
      const intruders = [a, c].map(async (client) => {
        while (!over) {
          assert.equal(await tryAcquire(client, t.claim(key)), undefined, 'a waiter is queued')
          await t.sleep(1)
        }
      })
      const handing = async (): Promise<void> => {
        for (let turn = 0; turn < 15; turn++) {
          const next = t.claim(key, { queueMs: t.longMs })
          await refused(b, next)
          await mustRelease(a, held)
          held = await granted(b, next, 'it is first in the queue')
        }
      }
      await Promise.all([handing().finally(() => (over = true)), ...intruders])
    },
  },
  {
    name: 'a release by a waiter that was handed the lease meanwhile releases the lease',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const leaving = t.claim(key, { queueMs: t.longMs })
      await refused(b, leaving)
      await mustRelease(a, held)
      assert.equal(await release(b, leaving), 'released')
      await granted(c, t.claim(key), 'there is no holder and no waiter')
    },
  },
]

const several: Case[] = [
  {
    name: 'a release hands the lease off to all readers at the head of the queue at once, and to no reader behind the next lock',
    otherwise: unhanded,
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const probe = await t.probe(b, key)
      const readers = [t.reader(key, { queueMs: t.longMs }), t.reader(key, { queueMs: t.longMs })] as const
      const writer = t.claim(key, { queueMs: t.longMs })
      const late = t.reader(key, { queueMs: t.longMs })
      for (const claim of [...readers, writer, late]) await refused(b, claim)
      await mustRelease(a, held)
      for (const reader of readers) {
        await probe.event({ type: 'granted', owner: reader.owner })
        assert.equal(await renew(b, reader, t.longMs), 'ours')
      }
      await refused(b, late, 'behind the writer')
      await refused(b, writer, 'beside readers')
      for (const reader of readers) await mustRelease(b, reader)
      await probe.event({ type: 'granted', owner: writer.owner })
      await mustRelease(b, writer)
      await probe.event({ type: 'granted', owner: late.owner })
    },
  },
  {
    name: 'a waiter that leaves the head of the queue lets the next waiters in',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.reader(key))
      const writer = t.claim(key, { queueMs: t.longMs })
      const reader = t.reader(key, { queueMs: t.longMs })
      await refused(b, writer)
      const probe = await t.probe(c, key)
      await refused(c, reader)
      assert.equal(await release(b, writer), 'released')
      await probe.event({ type: 'granted', owner: reader.owner })
      assert.equal(await renew(c, reader, t.longMs), 'ours')
    },
  },
]

const looked: Case[] = [
  {
    name: 'a waiter that was handed the lease is in the queue no longer',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const [first, second] = [t.claim(key, { queueMs: t.longMs }), t.claim(key, { queueMs: t.longMs })]
      const probe = await t.probe(b, key)
      await refused(b, first)
      await refused(c, second)
      await mustRelease(a, held)
      await probe.event({ type: 'granted', owner: first.owner })
      const seen = await c.inspect?.(key)
      assert.deepEqual(
        [seen?.holders.map(({ owner }) => owner), seen?.waiters.map(({ owner }) => owner)],
        [[first.owner], [second.owner]],
      )
    },
  },
  {
    name: 'a waiter that was handed the lease and then revoked is not handed it again',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const [first, second] = [t.claim(key, { queueMs: t.longMs }), t.claim(key, { queueMs: t.longMs })]
      const [probe, next] = [await t.probe(b, key), await t.probe(c, key)]
      await refused(b, first)
      await refused(c, second)
      await mustRelease(a, held)
      const told = await probe.event({ type: 'granted', owner: first.owner })
      assert.deepEqual(
        (await a.revoke?.(key))?.map(({ owner }) => owner),
        [first.owner],
      )
      const after = await next.event({ type: 'granted', owner: second.owner })
      assert.ok(after.token > told.token, `token ${after.token} came after ${told.token}`)
      assert.equal(await renew(b, first, t.longMs), 'gone')
    },
  },
]

export const handoffCases: Case[] = [
  ...needing(['queue', 'watchGrants', 'handoff', 'owners'], forAllKeys),
  ...needing(['queue', 'watch', 'handoff', 'owners'], [...single, ...several]),
  ...needing(['queue', 'watch', 'handoff', 'owners', 'inspect', 'revoke'], looked),
]
