import { strict as assert } from 'node:assert'
import type { HolderView, Store } from '../../store.js'
import { granted, grantedBriefly, mustRelease, refused, tryAcquire } from '../store-calls.js'
import { type Case, needing } from '../case.js'

async function holders(store: Store, prefix: string): Promise<HolderView[]> {
  assert.ok(store.holders, 'the store has holders()')
  return store.holders(prefix)
}

async function keysHeld(store: Store, prefix: string): Promise<string[]> {
  return (await holders(store, prefix)).map((view) => view.key).sort()
}

const listing: Case[] = [
  {
    name: 'holders() lists every holder of the keys with a prefix, and no other',
    async run(t) {
      const [a, b] = await t.clients(2)
      const base = t.name(':')
      const keys = [`lock:${base}1`, `lock:${base}2`, `lock:${base}22`, `semaphore:${base}1`]
      for (const [i, key] of keys.entries()) await granted(i % 2 ? a : b, t.claim(key))
      await granted(a, t.claim(`lock:x${base}1`))
      const prefixes = [`lock:${base}`, `lock:${base}2`, `semaphore:${base}`, `lock:${base}3`]
      assert.deepEqual(await Promise.all(prefixes.map((prefix) => keysHeld(b, prefix))), [
        keys.slice(0, 3),
        keys.slice(1, 3),
        keys.slice(3),
        [],
      ])
    },
  },
  {
    name: 'holders() treats a prefix as text, not as a pattern',
    async run(t) {
      const [a] = await t.clients(1)
      const literally = async (special: string): Promise<void> => {
        const base = t.name()
        const plain = `lock:${base}abc`
        const literal = `lock:${base}${special}abc`
        await granted(a, t.claim(plain))
        await granted(a, t.claim(literal))
        assert.deepEqual(await keysHeld(a, `lock:${base}${special}`), [literal], `prefix with ${special}`)
      }
      const caseMatters = async (): Promise<void> => {
        const base = t.name()
        await granted(a, t.claim(`lock:${base}A`))
        assert.deepEqual(await keysHeld(a, `lock:${base}a`), [], 'lower case is not upper case')
      }
      // At once: a store on several servers, one of them frozen, waits for that one in every listing.
      const specials = ['%', '_', '*', '?', '[ab]', '\\', '^', '.', "'", '"', '(', '$']
      await Promise.all([...specials.map(literally), caseMatters()])
    },
  },
  {
    name: 'holders() omits released and expired leases',
    async run(t) {
      const [a, b] = await t.clients(2)
      const base = t.name()
      const released = await granted(a, t.claim(`lock:${base}1`))
      await grantedBriefly(t, a, t.claim(`lock:${base}2`, { ttlMs: 300 }))
      await granted(a, t.claim(`lock:${base}3`))
      await mustRelease(a, released)
      await t.elapse(300)
      const left = await t.until('the expired one is gone', async () => {
        const keys = await keysHeld(b, `lock:${base}`)
        return keys.length === 1 && keys
      })
      assert.deepEqual(left, [`lock:${base}3`])
    },
  },
  {
    name: 'holders() lists every reader, with its owner, weight and times',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const claims = [t.reader(key), t.reader(key)]
      const leases = [await granted(a, claims[0] as never), await granted(b, claims[1] as never)]
      const views = await holders(a, key)
      assert.deepEqual(views.map((view) => view.owner).sort(), leases.map((lease) => lease.owner).sort())
      for (const view of views) {
        const lease = leases.find(({ owner }) => owner === view.owner)
        assert.equal(view.weight, 1)
        assert.equal(view.capacity, claims[0]?.capacity)
        assert.equal(view.token, lease?.token)
        assert.ok(!view.foreign)
        if (a.expiry === 'timed') assert.ok((view.ttlMs ?? 0) > 0 && (view.ttlMs ?? 0) <= t.longMs, `${view.ttlMs} ms`)
        if (view.heldMs !== undefined)
          assert.ok(view.heldMs >= 0 && view.heldMs < t.longMs, `held for ${view.heldMs} ms`)
      }
    },
  },
]

const values: Case[] = [
  {
    name: 'holders() reports values',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      await granted(a, t.claim(key, { value: '{"job":"charge"}' }))
      assert.deepEqual(
        (await holders(b, key)).map((view) => view.value),
        ['{"job":"charge"}'],
      )
    },
  },
]

const inspecting: Case[] = [
  {
    name: 'inspect() reports the holders of one key and of no other',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      assert.deepEqual(await b.inspect?.(key), { holders: [], waiters: [] })
      const lease = await granted(a, t.claim(key))
      await granted(a, t.claim(`${key}0`))
      const seen = await b.inspect?.(key)
      assert.deepEqual(
        seen?.holders.map((view) => [view.key, view.owner, view.token]),
        [[key, lease.owner, lease.token]],
      )
      assert.deepEqual(seen?.waiters, [])
    },
  },
  {
    name: 'inspect() reports no holder once a lease has expired',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      await grantedBriefly(t, a, t.claim(key, { ttlMs: 300 }))
      await t.until('it is gone', async () => (await b.inspect?.(key))?.holders.length === 0)
      assert.ok(await tryAcquire(b, t.claim(key)))
    },
  },
]

const queued: Case[] = [
  {
    name: 'inspect() reports the queue in order, and holders() reports its length',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.claim(key))
      const waiting = [b, c, b, c].map((client) => ({ client, claim: t.claim(key, { queueMs: t.longMs }) }))
      for (const { client, claim } of waiting) await refused(client, claim)
      const seen = await a.inspect?.(key)
      assert.deepEqual(
        seen?.waiters.map((view) => view.owner),
        waiting.map(({ claim }) => claim.owner),
      )
      for (const view of seen?.waiters ?? []) {
        assert.equal(view.key, key)
        assert.equal(view.weight, waiting[0]?.claim.weight)
        if (view.waitedMs !== undefined) assert.ok(view.waitedMs >= 0 && view.waitedMs < t.longMs)
      }
      const [holder] = seen?.holders ?? []
      if (holder?.waiting !== undefined) assert.equal(holder.waiting, 4)
    },
  },
  {
    name: 'inspect() omits expired queue entries',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      await granted(a, t.claim(key))
      await refused(b, t.claim(key, { queueMs: 100 }))
      await t.until('the queue entry is gone', async () => (await a.inspect?.(key))?.waiters.length === 0)
    },
  },
]

const general: Case[] = [
  {
    name: 'now() of the store is near the local time and never runs backwards',
    needs: ['now'],
    async run(t) {
      const [a, b] = await t.clients(2)
      let last = 0
      for (const store of [a, b, a, b]) {
        const now = (await store.now?.()) ?? Number.NaN
        assert.ok(Math.abs(now - Date.now()) < 86_400_000, `${now} is not within a day of ${Date.now()}`)
        assert.ok(now >= last - 50, `${now} came after ${last}`)
        last = now
      }
    },
  },
  {
    name: 'close() may be called twice, and affects no other client',
    async run(t) {
      const other = await t.client()
      const lease = await granted(other, t.claim(t.key()))
      const brief = await t.separate()
      await refused(brief, t.claim(lease.key))
      await brief.close()
      await brief.close()
      assert.deepEqual(
        (await other.renew([{ key: lease.key, owner: lease.owner, ttlMs: t.longMs }])).map((r) => r.outcome),
        ['ours'],
      )
      await mustRelease(other, lease)
    },
  },
]

export const viewCases: Case[] = [
  ...needing(['holders'], listing),
  ...needing(['holders', 'values'], values),
  ...needing(['inspect'], inspecting),
  ...needing(['inspect', 'queue'], queued),
  ...general,
]
