import { strict as assert } from 'node:assert'
import { granted, mustRelease, refused, renew } from '../store-calls.js'
import { type Case, needing } from '../case.js'
import type { Claim } from '../../store.js'

const odd = [
  JSON.stringify({ job: 'charge', note: 'quote " and \' and \\ and \n and ; --' }),
  JSON.stringify({ text: 'žluťoučký 漢字 🔒 \u0000' }),
  JSON.stringify({ filler: 'x'.repeat(4_000) }),
  '{}',
]

const values: Case[] = [
  {
    name: 'a refusal reports the owner that blocks it, the remaining time and the value of its lease',
    otherwise: {
      name: 'without values, a claim that carries a value is granted all the same',
      async run(t) {
        const [a, b] = await t.clients(2)
        const key = t.key()
        const lease = await granted(a, t.claim(key, { value: '{"a":1}' }))
        await refused(b, t.claim(key))
        assert.equal(await renew(a, lease, t.longMs, '{"a":2}'), 'ours')
        await mustRelease(a, lease)
      },
    },
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const value = JSON.stringify({ job: 'charge' })
      const lease = await granted(a, t.claim(key, { value }))
      const { blocker } = await refused(b, t.claim(key))
      assert.equal(blocker?.owner, lease.owner)
      assert.equal(blocker.value, value)
      assert.ok(!blocker.foreign, 'leasehold holds it')
      assert.ok((blocker.ttlMs ?? 0) > 0 && (blocker.ttlMs ?? 0) <= t.longMs, `${blocker.ttlMs} of ${t.longMs} ms`)
      if (blocker.token !== undefined) assert.equal(blocker.token, lease.token)
    },
  },
  {
    name: 'values are read as they were written, whatever they contain',
    async run(t) {
      const [a, b] = await t.clients(2)
      for (const value of odd) {
        const key = t.key()
        await granted(a, t.claim(key, { value }))
        assert.equal((await refused(b, t.claim(key))).blocker?.value, value)
      }
    },
  },
  {
    name: 'a renewal with a value replaces it, and a renewal without one keeps it',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await granted(a, t.claim(t.key(), { value: '{"step":1}' }))
      const seen = async (): Promise<string | undefined> => (await refused(b, t.claim(lease.key))).blocker?.value
      assert.equal(await renew(a, lease, t.longMs), 'ours')
      assert.equal(await seen(), '{"step":1}')
      assert.equal(await renew(a, lease, t.longMs, '{"step":2}'), 'ours')
      assert.equal(await seen(), '{"step":2}')
    },
  },
  {
    name: 'a renewal by another owner does not replace the value',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await granted(a, t.claim(t.key(), { value: '{"by":"us"}' }))
      assert.equal(await renew(b, { key: lease.key, owner: t.owner() }, t.longMs, '{"by":"them"}'), 'gone')
      assert.equal((await refused(b, t.claim(lease.key))).blocker?.value, '{"by":"us"}')
    },
  },
  {
    name: 'a value is gone with its lease',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      await mustRelease(a, await granted(a, t.claim(key, { value: '{"old":true}' })))
      await granted(b, t.claim(key))
      assert.equal((await refused(a, t.claim(key))).blocker?.value, undefined)
    },
  },
  {
    name: 'a lease and its value outlive the client that wrote them',
    async run(t) {
      const b = await t.client()
      const brief = await t.separate()
      const lease = await granted(brief, t.claim(t.key(), { value: '{"result":42}' }))
      await brief.close()
      // A session ends with its client, and so do its leases.
      if (b.expiry === 'session') return
      const { blocker } = await refused(b, t.claim(lease.key))
      assert.equal(blocker?.value, '{"result":42}')
    },
  },
  {
    name: 'a value that a renewal wrote lasts for its ttl without its client, and ends although others of its client are renewed',
    async run(t) {
      const b = await t.client()
      if (b.expiry === 'session') return
      await t.unhurried(300, async (ttlMs) => {
        const brief = await t.separate()
        const sentAt = t.now()
        const claim = (): Claim => t.claim(t.key(), { ttlMs, renewed: true })
        const [left, ended, beside] = [claim(), claim(), claim()]
        await granted(brief, left)
        await granted(b, ended)
        await granted(b, beside)
        const outcomes = [
          await renew(brief, left, t.longMs, '{"result":42}'),
          await renew(b, ended, ttlMs, '{"result":43}'),
        ]
        t.mustBeBefore(sentAt + ttlMs)
        assert.deepEqual(outcomes, ['ours', 'ours'])
        await brief.close()
        await t.until('it ends by itself', async () => {
          await renew(b, beside, ttlMs)
          return (await b.acquire([t.claim(ended.key)]))[0]?.granted === true
        })
        assert.equal((await refused(b, t.claim(left.key))).blocker?.value, '{"result":42}')
      })
    },
  },
]

const changes: Case[] = [
  {
    name: 'every watch is told when an announced lease begins, changes its value and ends',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key('', 'election')
      const probe = await t.probe(b, key)
      const rings = async (what: string, act: () => Promise<unknown>): Promise<void> => {
        const before = probe.received.filter((event) => event.type === 'changed').length
        await act()
        await t.until(what, () => probe.received.filter((event) => event.type === 'changed').length > before)
      }
      const claim = t.claim(key, { announce: true, value: '{"leader":1}' })
      await rings('it begins', () => granted(a, claim))
      await rings('it changes', () => renew(a, claim, t.longMs, '{"leader":2}'))
      await rings('it ends', () => mustRelease(a, claim))
    },
  },
  {
    name: 'every watch is told of a renewal with a value, whether the lease is announced or not',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await granted(a, t.claim(t.key()))
      const probe = await t.probe(b, lease.key)
      await renew(a, lease, t.longMs, '{"new":true}')
      await probe.event({ type: 'changed' })
    },
  },
]

export const valueCases: Case[] = [...needing(['values'], values), ...needing(['values', 'watch', 'owners'], changes)]
