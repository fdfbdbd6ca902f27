import { strict as assert } from 'node:assert'
import { granted, letGo, refused, release, renew, tried } from '../ask.js'
import { type Alternative, type Case, needing } from '../case.js'

const unhanded: Alternative = {
  name: 'a release wakes the head of the line, which then gets what it asks for',
  needs: ['line', 'watch'],
  async run(t) {
    const [a, b] = await t.clients(2)
    const key = t.key()
    const held = await granted(a, t.claim(key))
    const waiting = t.claim(key, { placeMs: t.longMs })
    const ear = await t.ear(b, key)
    await refused(b, waiting)
    await letGo(a, held)
    const woken = await ear.event({ type: 'freed' })
    if (woken.owner !== undefined) assert.equal(woken.owner, waiting.owner)
    await t.until('it gets it', () => tried(b, waiting))
  },
}

const single: Case[] = [
  {
    name: 'a release hands the lease to the head of the line, and tells it the token',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const [first, second] = [t.claim(key, { placeMs: 30_000 }), t.claim(key, { placeMs: 30_000 })]
      const [ear, other] = [await t.ear(b, key), await t.ear(c, key)]
      await refused(b, first)
      await refused(c, second)
      await letGo(a, held)
      const told = await ear.event({ type: 'granted', owner: first.owner })
      assert.equal(typeof told.token, 'bigint')
      assert.ok(told.token > held.token, `token ${told.token} came after ${held.token}`)
      assert.ok(
        told.ttlMs > 0 && told.ttlMs <= 30_000,
        `for its place at most, not for its time to live: ${told.ttlMs} ms`,
      )
      assert.equal(await renew(b, first, t.longMs), 'ours', 'it holds without having asked again')
      await refused(c, second, 'it is held by the first')
      const again = await granted(b, first)
      assert.equal(again.token, told.token, 'the grant it was told of')
      const forSecond = [...ear.heard, ...other.heard].filter(
        (event) => event.type === 'granted' && event.owner === second.owner,
      )
      assert.deepEqual(forSecond, [], 'the second was handed nothing')
    },
  },
  {
    name: 'what was handed over is held for its place only, until it is renewed',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(300, async (placeMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const waiting = t.claim(key, { placeMs })
        const ear = await t.ear(b, key)
        const askedAt = t.now()
        await refused(b, waiting)
        const releasedAt = t.now()
        await letGo(a, held)
        t.mustBeBefore(askedAt + placeMs)
        const { token } = await ear.event({ type: 'granted', owner: waiting.owner })
        const outcome = await renew(b, waiting, t.longMs)
        t.mustBeBefore(releasedAt + placeMs)
        assert.equal(outcome, 'ours')
        await t.sleep(placeMs + 100)
        await refused(c, t.claim(key), 'renewed, it is held in full')
        assert.equal((await granted(b, waiting)).token, token)
      })
    },
  },
  {
    name: 'what was handed over and never renewed passes on',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(200, async (placeMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const silent = t.claim(key, { placeMs })
        const ear = await t.ear(b, key)
        const askedAt = t.now()
        await refused(b, silent)
        await letGo(a, held)
        t.mustBeBefore(askedAt + placeMs)
        await ear.event({ type: 'granted', owner: silent.owner })
        const heir = await t.until('another gets it', () => tried(c, t.claim(key)))
        assert.equal(await renew(b, silent, t.longMs), 'gone')
        assert.equal(await release(b, silent), 'gone')
        assert.equal(await renew(c, heir, t.longMs), 'ours')
      })
    },
  },
  {
    name: 'a hand-over lasts no longer than the time to live that was asked for',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const brief = t.claim(key, { placeMs: t.longMs, ttlMs: 200 })
      const ear = await t.ear(b, key)
      await refused(b, brief)
      await letGo(a, held)
      const told = await ear.event({ type: 'granted', owner: brief.owner })
      assert.ok(told.ttlMs <= 200, `${told.ttlMs} of 200 ms`)
      await t.until('it ends', () => tried(c, t.claim(key)))
    },
  },
  {
    name: 'nobody slips in between a release and its heir',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      let held = await granted(a, t.claim(key))
      let over = false
      const intruders = [a, c].map(async (client) => {
        while (!over) {
          assert.equal(await tried(client, t.claim(key)), undefined, 'somebody stands in line')
          await t.sleep(1)
        }
      })
      const handing = async (): Promise<void> => {
        for (let turn = 0; turn < 15; turn++) {
          const next = t.claim(key, { placeMs: t.longMs })
          await refused(b, next)
          await letGo(a, held)
          held = await granted(b, next, 'it is first in line')
        }
      }
      await Promise.all([handing().finally(() => (over = true)), ...intruders])
    },
  },
  {
    name: 'the release of a place that was handed the lease meanwhile lets go of the lease',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const leaving = t.claim(key, { placeMs: t.longMs })
      await refused(b, leaving)
      await letGo(a, held)
      assert.equal(await release(b, leaving), 'released')
      await granted(c, t.claim(key), 'nobody holds it and nobody waits')
    },
  },
]

const several: Case[] = [
  {
    name: 'a release hands the lease to all readers at the head of the line at once, and to nobody behind the next lock',
    otherwise: unhanded,
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const ear = await t.ear(b, key)
      const readers = [t.reader(key, { placeMs: t.longMs }), t.reader(key, { placeMs: t.longMs })] as const
      const writer = t.claim(key, { placeMs: t.longMs })
      const late = t.reader(key, { placeMs: t.longMs })
      for (const claim of [...readers, writer, late]) await refused(b, claim)
      await letGo(a, held)
      for (const reader of readers) {
        await ear.event({ type: 'granted', owner: reader.owner })
        assert.equal(await renew(b, reader, t.longMs), 'ours')
      }
      await refused(b, late, 'behind the writer')
      await refused(b, writer, 'beside readers')
      for (const reader of readers) await letGo(b, reader)
      await ear.event({ type: 'granted', owner: writer.owner })
      await letGo(b, writer)
      await ear.event({ type: 'granted', owner: late.owner })
    },
  },
  {
    name: 'whoever leaves the head of the line hands on what it was waiting for',
    otherwise: unhanded,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.reader(key))
      const writer = t.claim(key, { placeMs: t.longMs })
      const reader = t.reader(key, { placeMs: t.longMs })
      await refused(b, writer)
      const ear = await t.ear(c, key)
      await refused(c, reader)
      assert.equal(await release(b, writer), 'released')
      await ear.event({ type: 'granted', owner: reader.owner })
      assert.equal(await renew(c, reader, t.longMs), 'ours')
    },
  },
]

const looked: Case[] = [
  {
    name: 'whoever was handed a lease stands in line no longer',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const [first, second] = [t.claim(key, { placeMs: t.longMs }), t.claim(key, { placeMs: t.longMs })]
      const ear = await t.ear(b, key)
      await refused(b, first)
      await refused(c, second)
      await letGo(a, held)
      await ear.event({ type: 'granted', owner: first.owner })
      const seen = await c.inspect?.(key)
      assert.deepEqual(
        [seen?.holders.map(({ owner }) => owner), seen?.waiters.map(({ owner }) => owner)],
        [[first.owner], [second.owner]],
      )
    },
  },
  {
    name: 'whoever was handed a lease and is cut off is not handed it again',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const [first, second] = [t.claim(key, { placeMs: t.longMs }), t.claim(key, { placeMs: t.longMs })]
      const [ear, next] = [await t.ear(b, key), await t.ear(c, key)]
      await refused(b, first)
      await refused(c, second)
      await letGo(a, held)
      const told = await ear.event({ type: 'granted', owner: first.owner })
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
  ...needing(['line', 'watch', 'handoff', 'owners'], [...single, ...several]),
  ...needing(['line', 'watch', 'handoff', 'owners', 'inspect', 'revoke'], looked),
]
