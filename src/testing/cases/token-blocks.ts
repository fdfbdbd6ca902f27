import { strict as assert } from 'node:assert'
import { granted, grantedBriefly, mustBeGrant, mustRelease, refused, tryAcquire } from '../store-calls.js'
import type { Answer } from '../../store.js'
import { type Case, needing } from '../case.js'

/** As many as the core asks for. */
const WANTED = 32

/** The last token that belongs to a grant. Where a store reserves none, its own. */
function lastOf({ token, tokens = 1 }: { token: bigint; tokens?: number | undefined }): bigint {
  assert.ok(Number.isSafeInteger(tokens) && tokens >= 1, `a grant has one token or more: ${tokens}`)
  return token + BigInt(tokens) - 1n
}

const direct: Case[] = [
  {
    name: 'tokens that are reserved with a grant are never granted again, whether it is released or expires',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      let last = 0n
      for (const tokens of [WANTED, undefined, WANTED, WANTED, undefined]) {
        const lease = await granted(a, t.claim(key, { tokens }))
        assert.ok(lease.token > last, `token ${lease.token} came after a block that ends with ${last}`)
        last = lastOf(lease)
        await mustRelease(a, lease)
      }
      const expiring = await grantedBriefly(t, b, t.claim(key, { tokens: WANTED, ttlMs: 200 }))
      assert.ok(expiring.token > last)
      const later = await t.until('it ends', () => tryAcquire(a, t.claim(key)))
      assert.ok(later.token > lastOf(expiring), `token ${later.token} came after ${lastOf(expiring)}`)
    },
  },
  {
    name: 'tokens that are reserved in a batch are never granted again',
    async run(t) {
      const [a, b] = await t.clients(2)
      const keys = [t.key(), t.key(), t.key(), t.key()]
      for (const client of [a, b]) {
        const claims = keys.map((key, i) => t.claim(key, { tokens: i % 2 === 0 ? WANTED : undefined }))
        const answers = await client.acquire(claims)
        const leases = claims.map((claim, i) => mustBeGrant(answers[i] as Answer, claim))
        await client.release(leases.map(({ key, owner, token }) => ({ key, owner, token })))
        for (const lease of leases) {
          const later = await granted(b, t.claim(lease.key))
          assert.ok(later.token > lastOf(lease), `token ${later.token} came after ${lastOf(lease)}`)
          await mustRelease(b, later)
        }
      }
    },
  },
  {
    name: 'a lease whose tokens are reserved is renewed and released by its own token',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await granted(a, t.claim(t.key(), { tokens: WANTED }))
      const { key, owner, token } = lease
      for (const other of lease.tokens === undefined ? [] : [token + 1n, lastOf(lease)]) {
        assert.deepEqual(await a.release([{ key, owner, token: other }]), [{ outcome: 'gone' }])
      }
      const [renewed] = await a.renew([{ key, owner, token, ttlMs: t.longMs }])
      assert.equal(renewed?.outcome, 'ours')
      const { blocker } = await refused(b, t.claim(key))
      if (blocker?.token !== undefined) assert.equal(blocker.token, token)
      await mustRelease(a, lease)
    },
  },
]

const repeated: Case[] = [
  {
    name: 'a request that is repeated with more tokens gets the same grant, and no token that another grant can get',
    async run(t) {
      const [a, b] = await t.clients(2)
      const claim = t.claim(t.key())
      const first = await granted(a, claim)
      const again = await granted(a, { ...claim, tokens: WANTED })
      assert.equal(again.token, first.token)
      await mustRelease(a, again)
      const later = await granted(b, t.claim(claim.key))
      assert.ok(later.token > lastOf(again), `token ${later.token} came after ${lastOf(again)}`)
    },
  },
]

const handed: Case[] = [
  {
    name: 'tokens that are reserved with a hand-off are never granted again',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key, { tokens: WANTED }))
      const [second, third] = [
        t.claim(key, { queueMs: 30_000, tokens: WANTED }),
        t.claim(key, { queueMs: 30_000, tokens: WANTED }),
      ]
      const [probe, other] = [await t.probe(b, key), await t.probe(c, key)]
      await refused(b, second)
      await refused(c, third)
      await mustRelease(a, held)
      const toSecond = await probe.event({ type: 'granted', owner: second.owner })
      assert.ok(toSecond.token > lastOf(held), `token ${toSecond.token} came after ${lastOf(held)}`)
      await mustRelease(b, { key, owner: second.owner })
      const toThird = await other.event({ type: 'granted', owner: third.owner })
      assert.ok(toThird.token > lastOf(toSecond), `token ${toThird.token} came after ${lastOf(toSecond)}`)
      await mustRelease(c, { key, owner: third.owner })
      const later = await granted(a, t.claim(key))
      assert.ok(later.token > lastOf(toThird), `token ${later.token} came after ${lastOf(toThird)}`)
    },
  },
]

export const tokenBlockCases: Case[] = [
  ...direct,
  ...needing(['owners'], repeated),
  ...needing(['queue', 'watch', 'handoff', 'owners'], handed),
]
