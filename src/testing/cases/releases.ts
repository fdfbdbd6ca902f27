import { strict as assert } from 'node:assert'
import type { Case } from '../case.js'
import { granted, grantedBriefly, mustRelease, refused, release, renew, tryAcquire } from '../store-calls.js'
import { SHORT_MS } from './leases.js'

export const releaseCases: Case[] = [
  {
    name: 'a release is answered released once, and gone from then on',
    async run(t) {
      const [a] = await t.clients(1)
      const lease = await granted(a, t.claim(t.key()))
      assert.equal(await release(a, lease), 'released')
      assert.equal(await release(a, lease), 'gone')
    },
  },
  {
    name: 'a release by another owner is answered gone and frees nothing',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const lease = await granted(a, t.claim(key))
      assert.equal(await release(b, { key, owner: t.owner() }), 'gone')
      await refused(b, t.claim(key), 'its holder did not release it')
      assert.equal(await renew(a, lease, t.longMs), 'ours')
    },
  },
  {
    name: 'the release of a reader frees that reader only, and a release by another owner frees none',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const first = await granted(a, t.reader(key))
      const second = await granted(b, t.reader(key))
      assert.equal(await release(c, { key, owner: t.owner() }), 'gone')
      await mustRelease(a, first)
      assert.equal(await release(a, first), 'gone')
      await refused(c, t.claim(key), 'the second reader holds')
      assert.equal(await renew(b, second, t.longMs), 'ours')
    },
  },
  {
    name: 'the release of an expired lease is answered gone and does not free the next holder',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const expired = await grantedBriefly(t, a, t.claim(key, { ttlMs: SHORT_MS }))
      const successor = await t.until('it ends', () => tryAcquire(b, t.claim(key)))
      assert.equal(await release(a, expired), 'gone')
      await refused(a, t.claim(key), 'the next holder has it')
      assert.equal(await renew(b, successor, t.longMs), 'ours')
    },
  },
  {
    name: 'the release of a key that was never held is answered gone',
    async run(t) {
      const [a] = await t.clients(1)
      assert.equal(await release(a, { key: t.key(), owner: t.owner() }), 'gone')
    },
  },
]
