import { strict as assert } from 'node:assert'
import type { LeaseId } from '../../store.js'
import { inPartitions, mustBeGrant } from '../store-calls.js'
import { type Case, needing } from '../case.js'

/**
 * LISTED: how many leases a large listing has. Leases of a session store live in the lock table of the server, which
 * holds a few thousand.
 */
const LISTED = 10_000
const LISTED_OF_A_SESSION = 1_000
/** FILLING_MS: how long the case acquires leases. A slow store lists as many as it granted within this time. */
const FILLING_MS = 3_000

const listing: Case[] = [
  {
    name: 'holders() lists ten thousand holders, each once',
    async run(t) {
      const [a, b] = await t.clients(2)
      const base = t.name()
      const count = a.expiry === 'session' ? LISTED_OF_A_SESSION : LISTED
      const fillUntil = t.now() + FILLING_MS
      const leases: LeaseId[] = []
      t.afterwards(async () => {
        for (let at = 0; at < leases.length; at += 500)
          await inPartitions(a, 'release', leases.slice(at, at + 500), (part) => a.release(part))
      })
      while (leases.length < count && (leases.length < LISTED_OF_A_SESSION || t.now() < fillUntil)) {
        const claims = Array.from({ length: 500 }, (_, i) => t.claim(`lock:${base}:${leases.length + i}`))
        const answers = await inPartitions(a, 'acquire', claims, (part) => a.acquire(part))
        for (const [i, claim] of claims.entries()) {
          const { key, owner } = mustBeGrant(answers[i], claim)
          leases.push({ key, owner })
        }
      }
      const views = (await t.settled('the listing', b.holders?.(`lock:${base}`))) ?? []
      assert.equal(views.length, leases.length)
      assert.deepEqual(new Set(views.map(({ key }) => key)), new Set(leases.map(({ key }) => key)))
      const [first, other] = [leases[0] as LeaseId, leases.at(-1) as LeaseId]
      await inPartitions(a, 'release', [first, other], (part) => a.release(part))
      const left = (await t.settled('the listing', b.holders?.(`lock:${base}`))) ?? []
      assert.equal(left.length, leases.length - 2)
    },
  },
]

export const largeListingCases: Case[] = needing(['holders'], listing)
