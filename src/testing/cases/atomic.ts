import { strict as assert } from 'node:assert'
import { batchSize } from '../../core/batch-size.js'
import { granted, mustRelease, mustBeGrant, mustBeRefusal, refused, release, unsupported } from '../store-calls.js'
import { type Alternative, type Case, needing } from '../case.js'
import type { Claim, Store } from '../../store.js'

const divided: Alternative = {
  name: 'an atomic batch is unsupported, and grants nothing',
  async run(t) {
    const [a] = await t.clients(1)
    const keys = t.keys(2)
    await unsupported(
      a,
      keys.map((key) => t.claim(key)),
      { atomic: true },
    )
    for (const key of keys) await granted(a, t.claim(key), 'the batch left nothing behind')
  },
}

/** All grants, or undefined if none was granted. Fails if only some were. */
async function allOf(
  store: Store,
  claims: readonly Claim[],
): Promise<{ key: string; owner: string; token: bigint }[] | undefined> {
  const answers = await store.acquire(claims, { atomic: true })
  assert.equal(answers.length, claims.length)
  if (answers.some((answer) => answer.granted === true))
    return answers.map((answer, i) =>
      mustBeGrant(answer, claims[i] as Claim, 'the batch is granted as a whole or not at all'),
    )
  for (const [i, answer] of answers.entries())
    mustBeRefusal(answer, claims[i] as Claim, 'the batch is granted as a whole or not at all')
  return undefined
}

/** Claims in a large batch, for a store that names no bound: more would only take longer. */
const MANY = 100

const atomic: Case[] = [
  {
    name: 'an atomic batch grants every claim if all keys are free',
    otherwise: divided,
    async run(t) {
      const [a, b] = await t.clients(2)
      const keys = t.keys(3)
      const leases = await allOf(
        a,
        keys.map((key) => t.claim(key)),
      )
      assert.ok(leases, 'all were free')
      for (const key of keys) await refused(b, t.claim(key))
      for (const lease of leases) await mustRelease(a, lease)
    },
  },
  {
    name: 'an atomic batch of as many claims as the store says that it takes is granted',
    otherwise: divided,
    async run(t) {
      const [a, b] = await t.clients(2)
      const { atomic } = a.features
      const keys = t.keys(typeof atomic === 'number' ? atomic : Math.min(batchSize(a, 'acquire'), MANY))
      const claims = keys.map((key) => t.claim(key))
      const held = await granted(b, t.claim(keys.at(-1) as string))
      assert.equal(await allOf(a, claims), undefined)
      await mustRelease(b, held)
      const leases = await allOf(a, claims)
      assert.ok(leases, 'all were free')
      const released = await a.release(leases)
      assert.ok(released.every(({ outcome }) => outcome === 'released'))
    },
  },
  {
    name: 'an atomic batch grants no claim if one key is held, and leaves nothing behind',
    otherwise: divided,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const keys = t.keys(4)
      for (const busy of [0, 1, 3]) {
        const held = await granted(b, t.claim(keys[busy] as string))
        const claims = keys.map((key) => t.claim(key))
        assert.equal(await allOf(a, claims), undefined)
        for (const claim of claims) assert.equal(await release(a, claim), 'gone', 'the batch left nothing behind')
        for (const key of keys.filter((_, i) => i !== busy))
          await mustRelease(c, await granted(c, t.claim(key), 'it is free'))
        await mustRelease(b, held)
      }
    },
  },
  {
    name: 'an atomic batch that the same owners send again returns the same grants',
    otherwise: divided,
    needs: ['owners'],
    async run(t) {
      const [a, b] = await t.clients(2)
      const claims = t.keys(2).map((key) => t.claim(key))
      const first = await allOf(a, claims)
      // The reply of the first batch may have been lost. The grants of these owners must not block their own retry.
      const second = await allOf(b, claims)
      assert.ok(first && second, "the owners' own grants do not block them")
      assert.deepEqual(
        second.map((lease) => lease.token),
        first.map((lease) => lease.token),
      )
    },
  },
  {
    name: 'an atomic batch completes what its owner already holds in part',
    otherwise: divided,
    needs: ['owners'],
    async run(t) {
      const [a] = await t.clients(1)
      const claims = t.keys(2).map((key) => t.claim(key))
      const part = await granted(a, claims[1] as Claim)
      const all = await allOf(a, claims)
      assert.equal(all?.[1]?.token, part.token)
    },
  },
  {
    name: 'an atomic batch with two claims of one key that exclude each other grants neither',
    otherwise: divided,
    async run(t) {
      const [a, b] = await t.clients(2)
      const [key, other] = t.keys(2) as [string, string]
      assert.equal(await allOf(a, [t.claim(other), t.claim(key), t.claim(key)]), undefined)
      await granted(b, t.claim(key), 'the batch left nothing behind')
      await granted(b, t.claim(other), 'the batch left nothing behind')
    },
  },
  {
    name: 'an atomic batch with two readers of one key grants both',
    otherwise: divided,
    async run(t) {
      const [a] = await t.clients(1)
      const [key, other] = t.keys(2) as [string, string]
      assert.ok(await allOf(a, [t.reader(key), t.reader(key), t.claim(other)]))
    },
  },
  {
    name: 'atomic batches of several clients in opposite key order never hold the same keys at once, and all are answered',
    otherwise: divided,
    async run(t) {
      const clients = await t.clients(4)
      const keys = t.keys(4)
      let holders = 0
      let grants = 0
      const rounds = clients.map(async (client, i) => {
        for (let round = 0; round < 12; round++) {
          const claims = keys.map((key) => t.claim(key))
          if (i % 2 === 1) claims.reverse()
          const leases = await t.settled('it is answered', allOf(client, claims))
          if (!leases) {
            await t.sleep(Math.random() * 5)
            continue
          }
          assert.equal(++holders, 1, 'no other client holds them')
          grants++
          await t.sleep(1)
          holders--
          const released = await client.release(leases.map(({ key, owner }) => ({ key, owner })))
          assert.ok(released.every((answer) => answer.outcome === 'released'))
        }
      })
      await Promise.all(rounds)
      assert.ok(grants > 0, 'a client got them')
    },
  },
]

const queued: Case[] = [
  {
    name: 'an atomic batch does not overtake the queue',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const [key, other] = t.keys(2) as [string, string]
      const reading = await granted(a, t.reader(key))
      await refused(b, t.claim(key, { queueMs: t.longMs }))
      assert.equal(await allOf(c, [t.reader(key), t.claim(other)]), undefined, 'a writer waits')
      await granted(c, t.claim(other), 'the batch left nothing behind')
      await mustRelease(a, reading)
    },
  },
]

export const atomicCases: Case[] = [...needing(['atomic'], atomic), ...needing(['atomic', 'queue'], queued)]
