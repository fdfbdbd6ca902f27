import { strict as assert } from 'node:assert'
import { granted, letGo, mustBeGrant, mustBeRefusal, refused, release, unsupported } from '../ask.js'
import { type Alternative, type Case, needing } from '../case.js'
import type { Claim, Store } from '../../store.js'

const divided: Alternative = {
  name: 'all or none is unsupported, and grants nothing',
  async run(t) {
    const [a] = await t.clients(1)
    const keys = t.keys(2)
    await unsupported(
      a,
      keys.map((key) => t.claim(key)),
      { atomic: true },
    )
    for (const key of keys) await granted(a, t.claim(key), 'nothing was left behind')
  },
}

/** All of them, or undefined. Anything in between fails. */
async function allOf(
  store: Store,
  claims: readonly Claim[],
): Promise<{ key: string; owner: string; token: bigint }[] | undefined> {
  const answers = await store.acquire(claims, { atomic: true })
  assert.equal(answers.length, claims.length)
  if (answers.some((answer) => answer.granted === true))
    return answers.map((answer, i) => mustBeGrant(answer, claims[i] as Claim, 'all or none'))
  for (const [i, answer] of answers.entries()) mustBeRefusal(answer, claims[i] as Claim, 'all or none')
  return undefined
}

const atomic: Case[] = [
  {
    name: 'all or none grants all when all are free',
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
      for (const lease of leases) await letGo(a, lease)
    },
  },
  {
    name: 'all or none grants none when one is busy, and leaves nothing behind',
    otherwise: divided,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const keys = t.keys(4)
      for (const busy of [0, 1, 3]) {
        const held = await granted(b, t.claim(keys[busy] as string))
        const claims = keys.map((key) => t.claim(key))
        assert.equal(await allOf(a, claims), undefined)
        for (const claim of claims) assert.equal(await release(a, claim), 'gone', 'nothing was left behind')
        for (const key of keys.filter((_, i) => i !== busy))
          await letGo(c, await granted(c, t.claim(key), 'it is free'))
        await letGo(b, held)
      }
    },
  },
  {
    name: 'all or none that is asked again by the same owners gets the same grants',
    otherwise: divided,
    needs: ['owners'],
    async run(t) {
      const [a, b] = await t.clients(2)
      const claims = t.keys(2).map((key) => t.claim(key))
      const first = await allOf(a, claims)
      // The reply may have been lost: what they hold already must not be in their way.
      const second = await allOf(b, claims)
      assert.ok(first && second, 'their own grants are not in their way')
      assert.deepEqual(
        second.map((lease) => lease.token),
        first.map((lease) => lease.token),
      )
    },
  },
  {
    name: 'all or none completes what its owner already holds in part',
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
    name: 'all or none with two claims of one key that do not fit together grants none',
    otherwise: divided,
    async run(t) {
      const [a, b] = await t.clients(2)
      const [key, other] = t.keys(2) as [string, string]
      assert.equal(await allOf(a, [t.claim(other), t.claim(key), t.claim(key)]), undefined)
      await granted(b, t.claim(key), 'nothing was left behind')
      await granted(b, t.claim(other), 'nothing was left behind')
    },
  },
  {
    name: 'all or none with two readers of one key grants both',
    otherwise: divided,
    async run(t) {
      const [a] = await t.clients(1)
      const [key, other] = t.keys(2) as [string, string]
      assert.ok(await allOf(a, [t.reader(key), t.reader(key), t.claim(other)]))
    },
  },
  {
    name: 'all or none from several clients in opposite order: never two at once, and all come to an answer',
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
          assert.equal(++holders, 1, 'nobody else holds them')
          grants++
          await t.sleep(1)
          holders--
          const released = await client.release(leases.map(({ key, owner }) => ({ key, owner })))
          assert.ok(released.every((answer) => answer.outcome === 'released'))
        }
      })
      await Promise.all(rounds)
      assert.ok(grants > 0, 'somebody got them')
    },
  },
]

const lined: Case[] = [
  {
    name: 'all or none does not pass the line',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const [key, other] = t.keys(2) as [string, string]
      const reading = await granted(a, t.reader(key))
      await refused(b, t.claim(key, { placeMs: t.longMs }))
      assert.equal(await allOf(c, [t.reader(key), t.claim(other)]), undefined, 'a writer waits')
      await granted(c, t.claim(other), 'nothing was left behind')
      await letGo(a, reading)
    },
  },
]

export const atomicCases: Case[] = [...needing(['atomic'], atomic), ...needing(['atomic', 'line'], lined)]
