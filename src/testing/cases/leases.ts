import { strict as assert } from 'node:assert'
import {
  granted,
  grantedBriefly,
  mustRelease,
  refused,
  release,
  renew,
  tryAcquire,
  tryBriefly,
} from '../store-calls.js'
import { type Case, needing } from '../case.js'

/**
 * SHORT_MS: a time to live that ends during a case. Long enough for several servers on a busy machine to grant it in
 * time. Never used to show that something is still held.
 */
export const SHORT_MS = 400

const expiry: Case[] = [
  {
    name: 'a lease that is not renewed ends by itself, and not before its time',
    async run(t) {
      const [a, b] = await t.clients(2)
      await t.unhurried(SHORT_MS, async (ttlMs) => {
        const key = t.key()
        const sentAt = t.now()
        const lease = (await tryBriefly(t, a, t.claim(key, { ttlMs }))) ?? t.tooSlow()
        let lookedAt = sentAt
        const successor = await t.until('it ends', async () => {
          const now = t.now()
          const grant = await tryAcquire(b, t.claim(key))
          if (!grant) lookedAt = now
          return grant
        })
        const endedBy = t.now()
        const lasted = endedBy - sentAt
        assert.ok(lasted >= lease.ttlMs - 5, `it was granted for ${lease.ttlMs} ms and given away after ${lasted} ms`)
        assert.ok(successor.token > lease.token)
        // Looks that are far apart do not show a lease that ended too early.
        if (endedBy - lookedAt > ttlMs / 4) t.tooSlow()
      })
    },
  },
  {
    name: 'every reader expires by itself: a dead reader is not kept alive by the others',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await grantedBriefly(t, a, t.reader(key, { ttlMs: SHORT_MS }))
      const alive = await granted(b, t.reader(key))
      assert.equal(await renew(b, alive, t.longMs), 'ours')
      await t.sleep(SHORT_MS * 2)
      await refused(c, t.claim(key), 'one reader is alive')
      await mustRelease(b, alive)
      await t.until('the lock is free, the dead reader notwithstanding', () => tryAcquire(c, t.claim(key)))
    },
  },
  {
    name: 'a short-lived reader that comes or goes does not shorten the leases of the others',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.reader(key))
      const brief = await grantedBriefly(t, b, t.reader(key, { ttlMs: SHORT_MS }))
      await grantedBriefly(t, c, t.reader(key, { ttlMs: SHORT_MS }))
      await release(b, brief)
      await t.sleep(SHORT_MS * 2)
      await refused(c, t.claim(key), 'the first reader still holds')
    },
  },
  {
    name: 'a lease of forty days is held and does not expire at once',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const ttlMs = Math.min(40 * 86_400_000, a.maxTtlMs ?? Number.POSITIVE_INFINITY)
      const lease = await granted(a, t.claim(key, { ttlMs }))
      await t.sleep(20)
      await refused(b, t.claim(key))
      assert.equal(await renew(a, lease, ttlMs), 'ours')
      await t.sleep(20)
      await refused(b, t.claim(key))
      await mustRelease(a, lease)
    },
  },
]

const again: Case[] = [
  {
    name: 'an owner that acquires again gets its own grant, with the same token',
    async run(t) {
      const [a, b] = await t.clients(2)
      const claim = t.claim(t.key())
      const first = await granted(a, claim)
      assert.equal(first.owner, claim.owner)
      const second = await granted(a, claim, "the owner's own grant does not block it")
      assert.equal(second.token, first.token)
      const elsewhere = await granted(b, claim, 'the owner counts, not the connection')
      assert.equal(elsewhere.token, first.token)
      await mustRelease(a, first)
      assert.equal(await release(a, second), 'gone', 'it was one grant')
      await granted(b, t.claim(claim.key), 'one release was enough')
    },
    otherwise: {
      name: 'an owner that acquires again does not hold the key twice',
      async run(t) {
        const [a, b] = await t.clients(2)
        const claim = t.claim(t.key())
        const first = await granted(a, claim)
        const second = await tryAcquire(b, claim)
        if (second) assert.equal(second.token, first.token)
        await mustRelease(a, first)
      },
    },
  },
  {
    name: 'acquiring again prolongs the lease',
    async run(t) {
      const [a, b] = await t.clients(2)
      await t.unhurried(200, async (ttlMs) => {
        const claim = t.claim(t.key(), { ttlMs })
        const sentAt = t.now()
        if (!(await tryBriefly(t, a, claim))) t.tooSlow()
        await granted(a, { ...claim, ttlMs: t.longMs })
        t.mustBeBefore(sentAt + ttlMs)
        await t.sleep(ttlMs + 50)
        await refused(b, t.claim(claim.key), 'it was acquired again, for longer')
      })
    },
  },
  {
    name: 'acquiring again never shortens the lease',
    async run(t) {
      const [a, b] = await t.clients(2)
      const claim = t.claim(t.key())
      await granted(a, claim)
      await granted(a, { ...claim, ttlMs: 50 })
      await t.sleep(200)
      await refused(b, t.claim(claim.key))
    },
  },
]

const renewal: Case[] = [
  {
    name: 'a renewal keeps a lease beyond its first time to live',
    async run(t) {
      const [a, b] = await t.clients(2)
      await t.unhurried(200, async (ttlMs) => {
        const sentAt = t.now()
        const lease = (await tryBriefly(t, a, t.claim(t.key(), { ttlMs }))) ?? t.tooSlow()
        const outcome = await renew(a, lease, t.longMs)
        t.mustBeBefore(sentAt + lease.ttlMs)
        assert.equal(outcome, 'ours')
        await t.sleep(ttlMs + 50)
        await refused(b, t.claim(lease.key), 'it was renewed')
        assert.equal(await renew(a, lease, t.longMs), 'ours')
      })
    },
  },
  {
    name: 'a renewal never shortens a lease, even if it arrives late',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await granted(a, t.claim(t.key()))
      await t.unhurried(50, async (ttlMs) => {
        const sentAt = t.now()
        const outcome = await renew(a, lease, ttlMs)
        // A store on several servers is right not to confirm a time that has passed before the answers came.
        if (outcome === 'unknown') t.mustBeBefore(sentAt + ttlMs / 2)
        assert.equal(outcome, 'ours')
        await t.sleep(ttlMs + 150)
        await refused(b, t.claim(lease.key))
        assert.equal(await renew(a, lease, t.longMs), 'ours')
      })
    },
  },
  {
    name: 'a renewed lease ends by itself as well',
    async run(t) {
      const [a, b] = await t.clients(2)
      await t.unhurried(200, async (ttlMs) => {
        const sentAt = t.now()
        const lease = (await tryBriefly(t, a, t.claim(t.key(), { ttlMs }))) ?? t.tooSlow()
        const outcome = await renew(a, lease, ttlMs * 2)
        t.mustBeBefore(sentAt + lease.ttlMs)
        assert.equal(outcome, 'ours')
        await t.until('it ends', () => tryAcquire(b, t.claim(lease.key)))
      })
    },
  },
  {
    name: 'the renewal of an expired lease is answered gone and creates nothing',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const lease = await grantedBriefly(t, a, t.claim(key, { ttlMs: SHORT_MS }))
      const other = await t.until('it ends', () => tryAcquire(b, t.claim(key)))
      assert.equal(await renew(a, lease, t.longMs), 'gone', 'another owner holds it')
      await mustRelease(b, other)
      assert.equal(await renew(a, lease, t.longMs), 'gone', 'it is free')
      await granted(b, t.claim(key), 'the renewals created nothing')
    },
  },
  {
    name: 'a lease whose time has passed cannot be renewed, even if no other client acquired the key',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await grantedBriefly(t, a, t.claim(t.key(), { ttlMs: SHORT_MS }))
      await t.elapse(SHORT_MS + 200)
      assert.equal(await renew(a, lease, t.longMs), 'gone')
      await granted(b, t.claim(lease.key))
    },
  },
  {
    name: 'the renewal of a released lease is answered gone and creates nothing',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await granted(a, t.claim(t.key()))
      await mustRelease(a, lease)
      assert.equal(await renew(a, lease, t.longMs), 'gone')
      await granted(b, t.claim(lease.key))
    },
  },
  {
    name: 'the renewal of a key that was never held is answered gone and creates nothing',
    async run(t) {
      const [a] = await t.clients(1)
      const key = t.key()
      assert.equal(await renew(a, { key, owner: t.owner() }, t.longMs), 'gone')
      await granted(a, t.claim(key))
    },
  },
  {
    name: 'a renewal by another owner is answered gone and prolongs nothing',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      await grantedBriefly(t, a, t.claim(key, { ttlMs: SHORT_MS }))
      assert.equal(await renew(b, { key, owner: t.owner() }, t.longMs), 'gone')
      await t.until('it ends', () => tryAcquire(b, t.claim(key)))
    },
  },
  {
    name: 'the renewal of a reader prolongs that reader only',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const brief = await grantedBriefly(t, a, t.reader(key, { ttlMs: SHORT_MS }))
      const lasting = await granted(b, t.reader(key))
      assert.equal(await renew(b, lasting, t.longMs), 'ours')
      await t.elapse(SHORT_MS + 200)
      assert.equal(await renew(a, brief, t.longMs), 'gone', 'its time has passed')
      await mustRelease(b, lasting)
      await granted(c, t.claim(key))
    },
  },
]

export const leaseCases: Case[] = [...expiry, ...needing(['owners'], again), ...renewal]
