import { strict as assert } from 'node:assert'
import type { LeaseId, Released, Renewed, Store } from '../../store.js'
import { granted, mustRelease, refused, renew, tryAcquire } from '../store-calls.js'
import { type Case, needing } from '../case.js'

/** Releases with the token, which the store compares. */
async function releaseOf(store: Store, lease: LeaseId & { token: bigint }): Promise<Released['outcome']> {
  const { key, owner, token } = lease
  return ((await store.release([{ key, owner, token }]))[0] as Released).outcome
}

/** Renews with the token, which the store compares. */
async function renewalOf(
  store: Store,
  lease: LeaseId & { token: bigint },
  ttlMs: number,
  value?: string,
): Promise<Renewed['outcome']> {
  const { key, owner, token } = lease
  return ((await store.renew([{ key, owner, token, ttlMs, value }]))[0] as Renewed).outcome
}

const compared: Case[] = [
  {
    name: 'a release with another token is answered gone and keeps the lease; with the own token it releases',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await granted(a, t.claim(t.key()))
      for (const token of [lease.token - 1n, lease.token + 1n, 1n]) {
        assert.equal(await releaseOf(a, { ...lease, token }), 'gone', `token ${token} of ${lease.token}`)
      }
      await refused(b, t.claim(lease.key), 'the lease is still held')
      assert.equal(await renewalOf(a, lease, t.longMs), 'ours')
      assert.equal(await releaseOf(a, lease), 'released')
      assert.equal(await releaseOf(a, lease), 'gone', 'it was released before')
      await granted(b, t.claim(lease.key))
    },
  },
  {
    name: 'a release of a reader with another token is answered gone and keeps all readers',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const [one, other] = [await granted(a, t.reader(key)), await granted(a, t.reader(key))]
      assert.equal(await releaseOf(a, { ...one, token: one.token + 1n }), 'gone')
      assert.equal(await renewalOf(a, one, t.longMs), 'ours')
      assert.equal(await renewalOf(a, other, t.longMs), 'ours')
      assert.equal(await releaseOf(a, one), 'released')
      await refused(b, t.claim(key), 'the other still reads')
      assert.equal(await releaseOf(a, other), 'released')
      await granted(b, t.claim(key))
    },
  },
  {
    name: 'a renewal with another token is answered gone and prolongs nothing; with the own token it prolongs',
    async run(t) {
      const [a, b] = await t.clients(2)
      await t.unhurried(300, async (ttlMs) => {
        const sentAt = t.now()
        const [stale, kept] = [
          await granted(a, t.claim(t.key(), { ttlMs })),
          await granted(a, t.claim(t.key(), { ttlMs })),
        ]
        const outcome = await renewalOf(a, { ...stale, token: stale.token + 1n }, t.longMs)
        const own = await renewalOf(a, kept, t.longMs)
        t.mustBeBefore(sentAt + ttlMs)
        assert.deepEqual([outcome, own], ['gone', 'ours'])
        // A lease of a session store ends with the connection, not by time.
        if (a.expiry === 'timed') await t.until('the lease ends in time', () => tryAcquire(b, t.claim(stale.key)))
        await refused(b, t.claim(kept.key), 'it was prolonged')
      })
    },
  },
  {
    name: 'items of one batch that name one owner with different tokens have their own answers',
    async run(t) {
      const [a, b] = await t.clients(2)
      const { key, owner, token } = await granted(a, t.claim(t.key()))
      const tokens = [token + 1n, token, token]
      const renewed = await a.renew(tokens.map((given) => ({ key, owner, token: given, ttlMs: t.longMs })))
      assert.deepEqual(
        renewed.map(({ outcome }) => outcome),
        ['gone', 'ours', 'ours'],
      )
      const released = await a.release(tokens.map((given) => ({ key, owner, token: given })))
      assert.deepEqual(
        released.map(({ outcome }) => outcome),
        ['gone', 'released', 'gone'],
      )
      await granted(b, t.claim(key))
    },
  },
]

const anew: Case[] = [
  {
    name: 'a release that arrives late does not end a later grant of the same owner',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const claim = t.claim(t.key())
      const earlier = await granted(a, claim)
      await mustRelease(a, earlier)
      const later = await granted(b, claim)
      assert.ok(later.token > earlier.token, `token ${later.token} came after ${earlier.token}`)
      assert.equal(await releaseOf(a, earlier), 'gone')
      assert.equal(await renewalOf(a, earlier, t.longMs), 'gone')
      await refused(c, t.claim(claim.key))
      assert.equal(await renewalOf(b, later, t.longMs), 'ours')
      assert.equal(await releaseOf(b, later), 'released')
    },
  },
]

const queued: Case[] = [
  {
    name: 'a release with a token never removes a queue entry',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { queueMs: t.longMs })
      await refused(b, waiting)
      assert.equal(await releaseOf(b, { key, owner: waiting.owner, token: held.token }), 'gone')
      await mustRelease(a, held)
      await refused(c, t.claim(key), 'the entry is still in the queue')
      await granted(b, waiting)
    },
  },
]

const values: Case[] = [
  {
    name: 'an owner that acquires again gets its own grant and keeps the value written meanwhile',
    needs: ['owners'],
    async run(t) {
      const [a, b] = await t.clients(2)
      const claim = t.claim(t.key(), { value: '"asked"' })
      const lease = await granted(a, claim)
      assert.equal(await renew(a, lease, t.longMs, '"recorded"'), 'ours')
      for (const again of [claim, { ...claim, value: undefined }]) {
        assert.equal((await granted(b, again)).token, lease.token)
        const { blocker } = await refused(b, t.claim(claim.key))
        assert.equal(blocker?.value, '"recorded"')
      }
    },
  },
  {
    name: 'a renewal with another token keeps the value',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await granted(a, t.claim(t.key(), { value: '"asked"' }))
      assert.equal(await renewalOf(a, { ...lease, token: lease.token + 1n }, t.longMs, '"other"'), 'gone')
      assert.equal((await refused(b, t.claim(lease.key))).blocker?.value, '"asked"')
      assert.equal(await renewalOf(a, lease, t.longMs, '"recorded"'), 'ours')
      assert.equal((await refused(b, t.claim(lease.key))).blocker?.value, '"recorded"')
    },
  },
]

/** A grant is identified by its key, its owner and, where the caller has it, its token. */
export const identityCases: Case[] = [
  ...compared,
  ...needing(['owners'], anew),
  ...needing(['queue'], queued),
  ...needing(['values'], values),
]
