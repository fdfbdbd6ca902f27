import { strict as assert } from 'node:assert'
import { granted, grantedBriefly, mustRelease, tryAcquire } from '../store-calls.js'
import { type Case, needing } from '../case.js'

const telling: Case[] = [
  {
    name: 'a holder is told that its lease was revoked, through the one subscription of its client',
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
    name: 'every reader is told that its lease was revoked',
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
    name: 'a holder is told that its lease was stolen, and the stealing owner is not',
    async run(t) {
      const [a, b] = await t.clients(2)
      const revocations = [await t.revocations(a), await t.revocations(b)] as const
      const lease = await granted(a, t.claim(t.key()))
      const stolen = await granted(b, t.claim(lease.key, { steal: true }))
      await revocations[0].of(lease)
      for (const { received } of revocations) assert.ok(!received.some(({ owner }) => owner === stolen.owner))
    },
  },
  {
    name: 'a client that revokes or steals its own lease is told as well',
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
    name: 'a plain release and an expired lease are not reported as revocations',
    async run(t) {
      const [a, b] = await t.clients(2)
      const revocations = await t.revocations(a)
      const released = await granted(a, t.claim(t.key()))
      const expired = await grantedBriefly(t, a, t.claim(t.key(), { ttlMs: 300 }))
      await mustRelease(a, released)
      if (a.expiry === 'timed') await t.until('it ends', () => tryAcquire(b, t.claim(expired.key)))
      // This revocation is reported last. What had to be reported before has arrived by then.
      const last = await granted(a, t.claim(t.key()))
      await b.revoke?.(last.key)
      await revocations.of(last)
      for (const { owner } of [released, expired])
        assert.ok(!revocations.received.some((lease) => lease.owner === owner))
    },
  },
  {
    name: 'a closed subscription to revocations reports nothing more, and another one continues',
    async run(t) {
      const [a, b] = await t.clients(2)
      const [first, second] = [await t.revocations(a), await t.revocations(a)]
      first.close()
      first.close()
      const lease = await granted(a, t.claim(t.key()))
      await b.revoke?.(lease.key)
      await second.of(lease)
      assert.ok(!first.received.some(({ owner }) => owner === lease.owner))
    },
  },
]

/** A revoked holder learns of it at once, without a subscription per lock. */
export const revocationCases: Case[] = needing(['revoke', 'watchRevoked'], telling)
