import { strict as assert } from 'node:assert'
import type { Claim, Renewed, Store } from '../../store.js'
import { granted, letGo, refused, show, tried } from '../ask.js'
import { type Case, needing } from '../case.js'

/** Keeps a queue entry alive for so long. */
async function keep(store: Store, { key, owner }: Claim, ttlMs: number): Promise<Renewed> {
  const answers = await store.renew([{ key, owner, ttlMs, queued: true }])
  assert.equal(answers.length, 1, 'one renewal, one answer')
  return answers[0] as Renewed
}

function mustWait(answer: Renewed | undefined): Extract<Renewed, { outcome: 'waiting' }> {
  if (answer?.outcome !== 'waiting') assert.fail(`the entry waits; it was answered ${show(answer)}`)
  return answer
}

const kept: Case[] = [
  {
    name: 'a queue entry lives by renewal only: renewed past its first time it is still first, and is granted',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(400, async (placeMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const first = t.claim(key, { placeMs })
        const second = t.claim(key, { placeMs: t.longMs })
        let keptAt = t.now()
        await refused(b, first)
        await refused(c, second)
        for (let i = 0; i < 6; i++) {
          await t.sleep(placeMs / 4)
          const sentAt = t.now()
          const answer = await keep(b, first, placeMs)
          t.mustBeBefore(keptAt + placeMs)
          assert.equal(mustWait(answer).ahead, 0, 'it is still first')
          keptAt = sentAt
        }
        await letGo(a, held)
        const early = await tried(c, second)
        const heir = await tried(b, first)
        t.mustBeBefore(keptAt + placeMs)
        assert.equal(early, undefined, 'the second comes after the first')
        assert.ok(heir, 'the first is granted')
      })
    },
  },
  {
    name: 'a renewal may keep a queue entry for longer than the claim asked for',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(300, async (placeMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const waiting = t.claim(key, { placeMs })
        const sentAt = t.now()
        await refused(b, waiting)
        const answer = await keep(b, waiting, t.longMs)
        t.mustBeBefore(sentAt + placeMs)
        mustWait(answer)
        await t.sleep(placeMs + 100)
        assert.equal((await refused(c, t.claim(key))).ahead, 1, 'the entry is still there')
        mustWait(await keep(b, waiting, t.longMs))
        await letGo(a, held)
      })
    },
  },
  {
    name: 'renewing a queue entry that has ended or never was is gone, and creates none',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const silent = t.claim(key, { placeMs: 100 })
      await refused(b, silent)
      await t.sleep(300)
      assert.equal((await keep(b, silent, t.longMs)).outcome, 'gone', 'its time had passed')
      assert.equal((await keep(b, t.claim(key), t.longMs)).outcome, 'gone', 'it never asked')
      assert.equal((await keep(b, t.claim(t.key()), t.longMs)).outcome, 'gone', 'nobody ever asked')
      await letGo(a, held)
      await granted(c, t.claim(key), 'nobody is in line')
    },
  },
  {
    name: 'a waiter that becomes first because the one before it died learns it from its renewal',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(300, async (placeMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const alive = t.claim(key, { placeMs: t.longMs })
        const sentAt = t.now()
        await refused(b, t.claim(key, { placeMs }))
        await refused(c, alive)
        const answer = await keep(c, alive, t.longMs)
        t.mustBeBefore(sentAt + placeMs)
        assert.ok(mustWait(answer).ahead >= 1, 'somebody is before it')
        await t.until('it is first', async () => mustWait(await keep(c, alive, t.longMs)).ahead === 0)
        await letGo(a, held)
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
      const [leaves, stays] = [t.claim(key, { placeMs: t.longMs }), t.claim(key, { placeMs: t.longMs })]
      await refused(b, leaves)
      await refused(c, stays)
      assert.ok(mustWait(await keep(c, stays, t.longMs)).ahead >= 1)
      await letGo(b, leaves)
      assert.equal(mustWait(await keep(c, stays, t.longMs)).ahead, 0)
    },
  },
  {
    name: 'an entry that has ended has lost its turn: its owner comes after those who waited on',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const [first, last] = [t.claim(key, { placeMs: t.longMs }), t.claim(key, { placeMs: t.longMs })]
      const silent = t.claim(key, { placeMs: 100 })
      for (const claim of [first, silent, last]) await refused(b, claim)
      await t.sleep(300)
      const again = { ...silent, placeMs: t.longMs }
      await refused(c, again)
      await letGo(a, held)
      const next = await granted(b, first)
      await letGo(b, next)
      await refused(c, again, 'another waited all the time')
      await granted(b, last)
    },
  },
  {
    name: 'the renewal of the first entry tells when to ask: not before the next lease of the key ends',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      await t.unhurried(1_000, async (ttlMs) => {
        const sentAt = t.now()
        const [one, other] = [await granted(a, t.reader(key, { ttlMs })), await granted(a, t.reader(key))]
        const waiting = t.claim(key, { placeMs: t.longMs })
        await refused(b, waiting)
        const { ahead, blockedMs } = mustWait(await keep(b, waiting, t.longMs))
        t.mustBeBefore(sentAt + ttlMs)
        assert.equal(ahead, 0)
        // Stores that do not know it leave it out: the waiter then asks with every heartbeat.
        if (blockedMs !== undefined) assert.ok(blockedMs > 0 && blockedMs <= ttlMs, `${blockedMs} of ${ttlMs} ms`)
        await letGo(b, waiting)
        for (const lease of [one, other]) await letGo(a, lease)
      })
    },
  },
  {
    name: 'a waiter whose blocker expired is first or granted by its renewal, and gets what it asks for',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const brief = await granted(a, t.claim(key, { ttlMs: 200 }))
      const waiting = t.claim(key, { placeMs: t.longMs })
      // On a slow machine the lease may have ended before: then it is granted, and that is right too.
      if (await tried(b, waiting)) return
      await t.sleep(brief.ttlMs + 200)
      const answer = await keep(b, waiting, t.longMs)
      if (answer.outcome !== 'granted') {
        const { ahead, blockedMs = 0 } = mustWait(answer)
        assert.deepEqual([ahead, blockedMs], [0, 0], 'it would be granted now')
      }
      // A session ends with its connection, not by the clock.
      if (a.expiry === 'timed') await granted(b, waiting)
    },
  },
  {
    name: 'grants and queue entries renewed in one batch are answered singly and in order',
    async run(t) {
      const [a, b] = await t.clients(2)
      const [key, other] = t.keys(2) as [string, string]
      const held = await granted(a, t.claim(key))
      const mine = await granted(a, t.claim(other))
      const [first, second] = [t.claim(key, { placeMs: t.longMs }), t.claim(key, { placeMs: t.longMs })]
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
    name: 'five hundred queue entries of one key are renewed in batches, and only the first is first',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(b, t.claim(key))
      const claims = Array.from({ length: 500 }, () => t.claim(key, { placeMs: t.longMs }))
      const size = a.maxBatch ?? claims.length
      for (let at = 0; at < claims.length; at += size) await a.acquire(claims.slice(at, at + size))
      const answers: Renewed[] = []
      for (let at = 0; at < claims.length; at += size) {
        const part = claims.slice(at, at + size)
        answers.push(...(await a.renew(part.map(({ owner }) => ({ key, owner, ttlMs: t.longMs, queued: true })))))
      }
      assert.equal(answers.length, claims.length)
      assert.deepEqual(
        answers.flatMap((answer, i) => (mustWait(answer).ahead === 0 ? [i] : [])),
        [0],
      )
      // Backwards, so that nobody is handed the lock on the way.
      const leases = claims.map(({ owner }) => ({ key, owner })).toReversed()
      for (let at = 0; at < leases.length; at += size) await a.release(leases.slice(at, at + size))
      await letGo(b, held)
    },
  },
]

const handed: Case[] = [
  {
    name: 'the renewal of a queue entry that was granted meanwhile tells the token and what is left, and changes nothing',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { placeMs: 30_000 })
      await refused(b, waiting)
      await letGo(a, held)
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

/** Queue entries are kept alive by `renew` with `queued`, not by asking again. */
export const queueEntryCases: Case[] = [...needing(['line'], kept), ...needing(['line', 'handoff', 'owners'], handed)]
