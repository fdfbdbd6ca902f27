import { strict as assert } from 'node:assert'
import type { Claim, Renewed, Store } from '../../store.js'
import { granted, inBatches, mustRelease, refused, release, show, tryAcquire } from '../store-calls.js'
import { type Case, needing } from '../case.js'

/** Renews a queue entry for this long. */
async function keep(store: Store, { key, owner }: Claim, ttlMs: number): Promise<Renewed> {
  const answers = await store.renew([{ key, owner, ttlMs, queued: true }])
  assert.equal(answers.length, 1, 'one renewal has one answer')
  return answers[0] as Renewed
}

function mustWait(answer: Renewed | undefined): Extract<Renewed, { outcome: 'waiting' }> {
  if (answer?.outcome !== 'waiting') assert.fail(`the entry waits; it was answered ${show(answer)}`)
  return answer
}

const kept: Case[] = [
  {
    name: 'a queue entry that is renewed beyond its first time is still first, and is granted',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(400, async (queueMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const first = t.claim(key, { queueMs })
        const second = t.claim(key, { queueMs: t.longMs })
        let keptAt = t.now()
        await refused(b, first)
        await refused(c, second)
        for (let i = 0; i < 6; i++) {
          await t.sleep(queueMs / 4)
          const sentAt = t.now()
          const answer = await keep(b, first, queueMs)
          t.mustBeBefore(keptAt + queueMs)
          assert.equal(mustWait(answer).ahead, 0, 'it is still first')
          keptAt = sentAt
        }
        await mustRelease(a, held)
        const early = await tryAcquire(c, second)
        const successor = await tryAcquire(b, first)
        t.mustBeBefore(keptAt + queueMs)
        assert.equal(early, undefined, 'the second waiter comes after the first')
        assert.ok(successor, 'the first waiter is granted')
      })
    },
  },
  {
    name: 'a renewal may keep a queue entry for longer than the claim asked for',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(300, async (queueMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const waiting = t.claim(key, { queueMs })
        const sentAt = t.now()
        await refused(b, waiting)
        const answer = await keep(b, waiting, t.longMs)
        t.mustBeBefore(sentAt + queueMs)
        mustWait(answer)
        await t.sleep(queueMs + 100)
        assert.equal((await refused(c, t.claim(key))).ahead, 1, 'the entry is still in the queue')
        mustWait(await keep(b, waiting, t.longMs))
        await mustRelease(a, held)
      })
    },
  },
  {
    name: 'the renewal of a queue entry that has expired or never existed is answered gone and creates none',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const silent = t.claim(key, { queueMs: 100 })
      await refused(b, silent)
      await t.elapse(300)
      assert.equal((await keep(b, silent, t.longMs)).outcome, 'gone', 'its time had passed')
      assert.equal((await keep(b, t.claim(key), t.longMs)).outcome, 'gone', 'it never asked')
      assert.equal((await keep(b, t.claim(t.key()), t.longMs)).outcome, 'gone', 'no waiter ever asked')
      await mustRelease(a, held)
      await granted(c, t.claim(key), 'the queue is empty')
    },
  },
  {
    name: 'a waiter that becomes first because the one before it died learns it from its renewal',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(300, async (queueMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const alive = t.claim(key, { queueMs: t.longMs })
        const sentAt = t.now()
        await refused(b, t.claim(key, { queueMs }))
        await refused(c, alive)
        const answer = await keep(c, alive, t.longMs)
        t.mustBeBefore(sentAt + queueMs)
        assert.ok(mustWait(answer).ahead >= 1, 'another waiter is ahead')
        await t.until('it is first', async () => mustWait(await keep(c, alive, t.longMs)).ahead === 0)
        await mustRelease(a, held)
        await granted(c, alive)
      })
    },
  },
  {
    name: 'a waiter that becomes first because the one before it left learns it from its renewal',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.claim(key))
      const [leaves, stays] = [t.claim(key, { queueMs: t.longMs }), t.claim(key, { queueMs: t.longMs })]
      await refused(b, leaves)
      await refused(c, stays)
      assert.ok(mustWait(await keep(c, stays, t.longMs)).ahead >= 1)
      await mustRelease(b, leaves)
      assert.equal(mustWait(await keep(c, stays, t.longMs)).ahead, 0)
    },
  },
  {
    name: 'a queue entry that has expired loses its turn: its owner comes after the waiters that stayed',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const [first, last] = [t.claim(key, { queueMs: t.longMs }), t.claim(key, { queueMs: t.longMs })]
      const silent = t.claim(key, { queueMs: 100 })
      for (const claim of [first, silent, last]) await refused(b, claim)
      await t.elapse(300)
      const again = { ...silent, queueMs: t.longMs }
      await refused(c, again)
      await mustRelease(a, held)
      const next = await granted(b, first)
      await mustRelease(b, next)
      await refused(c, again, 'another waiter stayed all the time')
      await granted(b, last)
    },
  },
  {
    name: 'the renewal of the first queue entry reports when to ask again: not before the next lease of the key ends',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      await t.unhurried(1_000, async (ttlMs) => {
        const sentAt = t.now()
        const [one, other] = [await granted(a, t.reader(key, { ttlMs })), await granted(a, t.reader(key))]
        const waiting = t.claim(key, { queueMs: t.longMs })
        await refused(b, waiting)
        const { ahead, blockedMs } = mustWait(await keep(b, waiting, t.longMs))
        t.mustBeBefore(sentAt + ttlMs)
        assert.equal(ahead, 0)
        // A store that does not know the time leaves it out. The waiter then asks with every heartbeat.
        if (blockedMs !== undefined) assert.ok(blockedMs > 0 && blockedMs <= ttlMs, `${blockedMs} of ${ttlMs} ms`)
        await mustRelease(b, waiting)
        // Its time may have passed by now.
        await release(a, one)
        await mustRelease(a, other)
      })
    },
  },
  {
    name: 'a waiter whose blocker has expired learns by its renewal that it is first or granted, and its request is granted',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const brief = await granted(a, t.claim(key, { ttlMs: 200 }))
      const waiting = t.claim(key, { queueMs: t.longMs })
      // On a slow machine the lease may end before. Then the grant is correct as well.
      if (await tryAcquire(b, waiting)) return
      await t.elapse(brief.ttlMs + 200)
      const answer = await keep(b, waiting, t.longMs)
      if (answer.outcome !== 'granted') {
        const { ahead, blockedMs = 0 } = mustWait(answer)
        assert.deepEqual([ahead, blockedMs], [0, 0], 'its request would be granted now')
      }
      // A session ends with its connection, not by time.
      if (a.expiry === 'timed') await granted(b, waiting)
    },
  },
  {
    name: 'grants and queue entries renewed in one batch have their own answers, in order',
    async run(t) {
      const [a, b] = await t.clients(2)
      const [key, other] = t.keys(2) as [string, string]
      const held = await granted(a, t.claim(key))
      const mine = await granted(a, t.claim(other))
      const [first, second] = [t.claim(key, { queueMs: t.longMs }), t.claim(key, { queueMs: t.longMs })]
      await refused(a, first)
      await refused(b, second)
      const lease = ({ key, owner }: { key: string; owner: string }) => ({ key, owner, ttlMs: t.longMs })
      const renewals = [
        { ...lease(second), queued: true },
        lease(held),
        { ...lease(t.claim(key)), queued: true },
        lease(first),
        lease(mine),
        { ...lease(first), queued: true },
      ]
      const answers = await a.renew(renewals)
      assert.deepEqual(
        answers.map(({ outcome }) => outcome),
        ['waiting', 'ours', 'gone', 'gone', 'ours', 'waiting'],
      )
      assert.ok(mustWait(answers[0]).ahead >= 1)
      assert.equal(mustWait(answers[5]).ahead, 0)
    },
  },
  {
    name: 'five hundred queue entries of one key are renewed in batches, and only the first is reported as first',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(b, t.claim(key))
      const claims = Array.from({ length: 500 }, () => t.claim(key, { queueMs: t.longMs }))
      await inBatches(a, 'acquire', claims, (part) => a.acquire(part))
      const entries = claims.map(({ owner }) => ({ key, owner, ttlMs: t.longMs, queued: true }))
      const answers = await inBatches(a, 'renew', entries, (part) => a.renew(part))
      assert.deepEqual(
        answers.flatMap((answer, i) => (mustWait(answer).ahead === 0 ? [i] : [])),
        [0],
      )
      // In reverse order, so that no waiter is handed the lock while the case cleans up.
      const leases = claims.map(({ owner }) => ({ key, owner })).toReversed()
      await inBatches(a, 'release', leases, (part) => a.release(part))
      await mustRelease(b, held)
    },
  },
]

const handed: Case[] = [
  {
    name: 'the renewal of a queue entry that was granted meanwhile reports the token and the remaining time, and changes nothing',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { queueMs: 30_000 })
      await refused(b, waiting)
      await mustRelease(a, held)
      let left = 30_000
      for (let i = 0; i < 2; i++) {
        const answer = await keep(b, waiting, t.longMs)
        if (answer.outcome !== 'granted') assert.fail(`it was granted meanwhile; it was answered ${show(answer)}`)
        assert.ok(answer.token > held.token, `token ${answer.token} came after ${held.token}`)
        assert.ok(answer.ttlMs > 0 && answer.ttlMs <= left, `${answer.ttlMs} ms are left, of ${left}`)
        left = answer.ttlMs
        await t.sleep(20)
      }
      const again = await granted(b, waiting)
      const answer = await keep(b, waiting, t.longMs)
      assert.equal(answer.outcome === 'granted' && answer.token, again.token)
    },
  },
]

/** Queue entries are kept alive by `renew` with `queued`, not by further requests. */
export const queueEntryCases: Case[] = [...needing(['queue'], kept), ...needing(['queue', 'handoff', 'owners'], handed)]
