import { strict as assert } from 'node:assert'
import { granted, letGo } from '../ask.js'
import { type Case, needing } from '../case.js'

const telling: Case[] = [
  {
    name: 'a holder is told when its lease is revoked, by the one subscription of its client',
    async run(t) {
      const [a, b] = await t.clients(2)
      const revocations = await t.revocations(a)
      const leases = [await granted(a, t.claim(t.key())), await granted(a, t.claim(t.key()))]
      for (const lease of leases) {
        await b.revoke?.(lease.key)
        const { token } = await revocations.of(lease)
        if (token !== undefined) assert.equal(token, lease.token)
      }
    },
  },
  {
    name: 'every reader is told when the key is revoked',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const [at, bt] = [await t.revocations(a), await t.revocations(b)]
      const key = t.key()
      const [one, other] = [await granted(a, t.reader(key)), await granted(b, t.reader(key))]
      await c.revoke?.(key)
      await at.of(one)
      await bt.of(other)
    },
  },
  {
    name: 'a holder is told when its lease is stolen, and the owner that stole it is not',
    async run(t) {
      const [a, b] = await t.clients(2)
      const revocations = [await t.revocations(a), await t.revocations(b)] as const
      const lease = await granted(a, t.claim(t.key()))
      const stolen = await granted(b, t.claim(lease.key, { steal: true }))
      await revocations[0].of(lease)
      for (const { heard } of revocations) assert.ok(!heard.some(({ owner }) => owner === stolen.owner))
    },
  },
  {
    name: 'a client that revokes or steals what it holds itself is told too',
    async run(t) {
      const [a] = await t.clients(1)
      const revocations = await t.revocations(a)
      const [one, other] = [await granted(a, t.claim(t.key())), await granted(a, t.claim(t.key()))]
      await a.revoke?.(one.key)
      await granted(a, t.claim(other.key, { steal: true }))
      await revocations.of(one)
      await revocations.of(other)
    },
  },
  {
    name: 'a plain release and a lease that ran out are not told as revoked',
    async run(t) {
      const [a, b] = await t.clients(2)
      const revocations = await t.revocations(a)
      const released = await granted(a, t.claim(t.key()))
      const expired = await granted(a, t.claim(t.key(), { ttlMs: 100 }))
      await letGo(a, released)
      await t.sleep(200)
      if (a.expiry === 'timed') await granted(b, t.claim(expired.key))
      // Told after all of that, so whatever was to be told before has been.
      const last = await granted(a, t.claim(t.key()))
      await b.revoke?.(last.key)
      await revocations.of(last)
      for (const { owner } of [released, expired]) assert.ok(!revocations.heard.some((lease) => lease.owner === owner))
    },
  },
  {
    name: 'a subscription to revocations that was closed is told nothing more, and another goes on',
    async run(t) {
      const [a, b] = await t.clients(2)
      const [first, second] = [await t.revocations(a), await t.revocations(a)]
      first.close()
      first.close()
      const lease = await granted(a, t.claim(t.key()))
      await b.revoke?.(lease.key)
      await second.of(lease)
      assert.ok(!first.heard.some(({ owner }) => owner === lease.owner))
    },
  },
]

/** Whoever is cut off hears of it at once, without a subscription per lock. */
export const revocationCases: Case[] = needing(['revoke', 'watchRevoked'], telling)
