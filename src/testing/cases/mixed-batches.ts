import { strict as assert } from 'node:assert'
import type { Answer, Claim, LeaseId, Released, Renewed, Store } from '../../store.js'
import {
  granted,
  inBatches,
  inPartitions,
  mustRelease,
  mustBeGrant,
  mustBeRefusal,
  refused,
  show,
  tryAcquire,
} from '../store-calls.js'
import type { TestContext } from '../test-context.js'
import { type Case, needing } from '../case.js'

const acquire = (store: Store, claims: readonly Claim[]): Promise<Answer[]> =>
  inPartitions(store, 'acquire', claims, (part) => store.acquire(part))
const renew = (store: Store, leases: readonly LeaseId[], ttlMs: number): Promise<Renewed[]> =>
  inPartitions(
    store,
    'renew',
    leases.map(({ key, owner }) => ({ key, owner, ttlMs })),
    (part) => store.renew(part),
  )
const release = (store: Store, leases: readonly LeaseId[]): Promise<Released[]> =>
  inPartitions(
    store,
    'release',
    leases.map(({ key, owner }) => ({ key, owner })),
    (part) => store.release(part),
  )
const outcomes = (answers: readonly { outcome: string }[]): string[] => answers.map(({ outcome }) => outcome)

/** One claim of each kind that the store supports, with keys that may travel together. */
function oneOfEach(t: TestContext, store: Store): Claim[] {
  const base = `{${t.name()}}`
  const claims = [
    t.claim(`lock:${base}`),
    t.reader(`lock:${base}:read`),
    t.claim(`election:${base}`, { announce: true, ...(store.features.values && { value: '"me"' }) }),
    t.claim(`once:${base}`),
  ]
  if (store.features.counting) claims.push(t.claim(`semaphore:${base}`, { weight: 1, capacity: 2 }))
  return claims
}

const kinds: Case[] = [
  {
    name: 'claims of several kinds in one batch are acquired, renewed and released one by one',
    async run(t) {
      const [a, b] = await t.clients(2)
      const whole = oneOfEach(t, a)
      // Pairs as well: stores take other paths for two kinds of one item each than for three kinds of five.
      const batches = [
        whole,
        ...whole.slice(1).map((_, i) => oneOfEach(t, a).slice(i, i + 2)),
        oneOfEach(t, a).toReversed(),
      ]
      for (const claims of batches) {
        const answers = await acquire(a, claims)
        const leases = answers.map((answer, i) => mustBeGrant(answer, claims[i] as Claim))
        assert.deepEqual(
          outcomes(await renew(a, leases, t.longMs)),
          claims.map(() => 'ours'),
        )
        for (const { key } of claims) {
          const { weight, capacity } = claims.find((claim) => claim.key === key) as Claim
          await refused(b, t.claim(key, { weight: capacity, capacity }), `${weight} of ${capacity} is held`)
        }
        assert.deepEqual(
          outcomes(await release(a, leases)),
          claims.map(() => 'released'),
        )
        for (const { key, capacity } of claims)
          await granted(b, t.claim(key, { weight: capacity, capacity }), 'released')
      }
    },
  },
  {
    name: 'claims of several kinds in one batch, some busy and some gone, each have their own answer',
    async run(t) {
      const [a, b] = await t.clients(2)
      const claims = oneOfEach(t, a)
      const busy = new Set(claims.filter((_, i) => i % 2 === 0).map(({ key }) => key))
      const blockers = []
      for (const { key, capacity } of claims) {
        if (busy.has(key)) blockers.push(await granted(b, t.claim(key, { weight: capacity, capacity })))
      }
      const answers = await acquire(a, claims)
      const leases = claims.map((claim, i) => {
        if (!busy.has(claim.key)) return mustBeGrant(answers[i], claim)
        mustBeRefusal(answers[i], claim)
        return claim
      })
      const expected = (ours: string): string[] => claims.map(({ key }) => (busy.has(key) ? 'gone' : ours))
      assert.deepEqual(outcomes(await renew(a, leases, t.longMs)), expected('ours'))
      assert.deepEqual(outcomes(await release(a, leases)), expected('released'))
      assert.deepEqual(
        outcomes(await release(b, blockers)),
        blockers.map(() => 'released'),
      )
    },
  },
]

const orders: Case[] = [
  {
    name: 'releases and renewals of the same leases in opposite order are all answered',
    async run(t) {
      const [a, b] = await t.clients(2)
      const keys = t.keys(16)
      for (let round = 0; round < 12; round++) {
        const claims = keys.map((key) => t.claim(key))
        const leases = (await acquire(a, claims)).map((answer, i) => mustBeGrant(answer, claims[i] as Claim))
        const [renewed, released] = await t.settled(
          'both are answered',
          // Leases of a session store are known to their own client only.
          Promise.all([
            renew(a.expiry === 'session' ? a : b, leases, t.longMs),
            release(a, round % 2 ? leases.toReversed() : leases),
          ]),
        )
        assert.deepEqual(
          outcomes(released),
          leases.map(() => 'released'),
        )
        assert.ok(
          renewed.every(({ outcome }) => outcome === 'ours' || outcome === 'gone'),
          show(renewed),
        )
      }
    },
  },
  {
    name: 'releases and renewals of the same readers in opposite order are all answered',
    async run(t) {
      const [a, b] = await t.clients(2)
      const keys = t.keys(16)
      const held = keys.map((key) => t.reader(key))
      await acquire(b, held)
      for (let round = 0; round < 12; round++) {
        const claims = keys.map((key) => t.reader(key))
        const leases = (await acquire(a, claims)).map((answer, i) => mustBeGrant(answer, claims[i] as Claim))
        const [renewed, released] = await t.settled(
          'both are answered',
          Promise.all([renew(b, held, t.longMs), release(a, leases.toReversed())]),
        )
        assert.ok(
          renewed.every(({ outcome }) => outcome === 'ours'),
          show(renewed),
        )
        assert.ok(
          released.every(({ outcome }) => outcome === 'released'),
          show(released),
        )
      }
    },
  },
]

const steals: Case[] = [
  {
    name: 'a lock and a steal of it in one batch: the steal has the larger token, and holds',
    async run(t) {
      const [a, b] = await t.clients(2)
      for (let round = 0; round < 10; round++) {
        const key = t.key()
        const claims = [t.claim(key), t.claim(key, { steal: true })] as const
        const answers = await inBatches(a, 'acquire', claims, (part) => a.acquire(part))
        const steal = mustBeGrant(answers[1], claims[1])
        if (answers[0]?.granted) {
          const stolen = mustBeGrant(answers[0], claims[0])
          assert.ok(steal.token > stolen.token, `token ${steal.token} came after ${stolen.token}`)
          assert.equal((await renew(a, [stolen], t.longMs))[0]?.outcome, 'gone')
        }
        assert.equal((await renew(a, [steal], t.longMs))[0]?.outcome, 'ours')
        await mustRelease(a, steal)
        const next = await granted(b, t.claim(key))
        assert.ok(next.token > steal.token, `token ${next.token} came after ${steal.token}`)
      }
    },
  },
  {
    name: 'several steals of one lock in one batch: the last one holds, and the tokens grow',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const first = await granted(b, t.claim(key))
      const claims = [t.claim(key, { steal: true }), t.claim(key), t.claim(key, { steal: true })] as const
      const answers = await inBatches(a, 'acquire', claims, (part) => a.acquire(part))
      const last = mustBeGrant(answers[2], claims[2])
      mustBeRefusal(answers[1], claims[1], 'it is held by the one that stole it')
      let before = first.token
      for (const answer of answers) {
        if (answer.granted !== true) continue
        assert.ok(answer.token > before, `token ${answer.token} came after ${before}`)
        before = answer.token
      }
      assert.equal((await renew(b, [first], t.longMs))[0]?.outcome, 'gone')
      assert.equal((await renew(a, [last], t.longMs))[0]?.outcome, 'ours')
    },
  },
  {
    name: 'concurrent batches of steals in opposite order are all answered, and each key has one holder',
    async run(t) {
      const [a, b] = await t.clients(2)
      const keys = t.keys(8)
      for (let round = 0; round < 6; round++) {
        const mine = keys.map((key) => t.claim(key, { steal: true }))
        const theirs = keys.map((key) => t.claim(key, { steal: true })).toReversed()
        const both = Promise.all([acquire(a, mine), acquire(b, theirs)])
        for (const answers of await t.settled('both are answered', both)) {
          assert.ok(
            answers.every(({ granted }) => granted !== 'unknown'),
            show(answers),
          )
        }
        const [ours, others] = [await renew(a, mine, t.longMs), await renew(b, theirs, t.longMs)]
        for (const i of keys.keys()) {
          const holders = [ours[i], others[keys.length - 1 - i]].filter((answer) => answer?.outcome === 'ours')
          assert.ok(holders.length <= 1, `${holders.length} hold ${keys[i]}`)
        }
      }
    },
  },
]

const twice: Case[] = [
  {
    name: 'one owner that appears twice in a batch has one grant, with one token',
    async run(t) {
      const [a, b] = await t.clients(2)
      const claim = t.claim(t.key())
      const answers = await inBatches(a, 'acquire', [claim, claim], (part) => a.acquire(part))
      const leases = answers.map((answer) => mustBeGrant(answer, claim))
      assert.equal(leases[0]?.token, leases[1]?.token)
      assert.deepEqual(outcomes(await release(a, leases)), ['released', 'gone'])
      await granted(b, t.claim(claim.key))
    },
  },
]

/** Keys that some server, script or encoding cannot represent. */
const unusual = ['\0', '}{', 'x'.repeat(4_000)]

const uncarried: Case[] = [
  {
    name: 'a key that the store rejects has its own answer and does not affect the valid keys of its batch',
    async run(t) {
      const [a, b] = await t.clients(2)
      for (const odd of unusual) {
        const [one, other] = t.keys(2) as [string, string]
        const claims = [t.claim(one), t.claim(`${one}${odd}`), t.claim(other)] as const
        const answers = await inBatches(a, 'acquire', claims, (part) => a.acquire(part))
        const leases = claims.map((claim, i) => {
          if (i !== 1) return mustBeGrant(answers[i], claim)
          const said = answers[i]?.granted
          assert.ok(said === true || said === 'unknown', `granted, or rejected by name; it was ${show(answers[i])}`)
          return { key: claim.key, owner: claim.owner, ...answers[i] }
        })
        const items = leases.map(({ key, owner }) => ({ key, owner }))
        const renewed = await inBatches(a, 'renew', items, (part) =>
          a.renew(part.map((item) => ({ ...item, ttlMs: t.longMs }))),
        )
        assert.deepEqual([renewed[0]?.outcome, renewed[2]?.outcome], ['ours', 'ours'])
        const released = await inBatches(a, 'release', items, (part) => a.release(part))
        assert.deepEqual([released[0]?.outcome, released[2]?.outcome], ['released', 'released'])
        for (const key of [one, other]) assert.ok(await tryAcquire(b, t.claim(key)), 'it is free')
      }
    },
  },
]

/** Batches of items that store authors did not expect to travel together. */
export const mixedBatchCases: Case[] = [
  ...kinds,
  ...orders,
  ...uncarried,
  ...needing(['owners'], twice),
  ...needing(['revoke'], steals),
]
