import { strict as assert } from 'node:assert'
import type { HolderView, Store } from '../../store.js'
import { granted, mustRelease, refused, release, renew, tryAcquire, unsupported } from '../store-calls.js'
import { type Case, needing } from '../case.js'

async function revoke(store: Store, key: string): Promise<HolderView[]> {
  assert.ok(store.revoke, 'the store has revoke()')
  return store.revoke(key)
}

const revoking: Case[] = [
  {
    name: 'revoke() ends a lease and returns its owner, whose renewal and release are answered gone from then on',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const lease = await granted(a, t.claim(key))
      const cut = await revoke(b, key)
      assert.deepEqual(
        cut.map((view) => [view.key, view.owner]),
        [[key, lease.owner]],
      )
      assert.equal(await renew(a, lease, t.longMs), 'gone')
      assert.equal(await release(a, lease), 'gone')
      const next = await granted(b, t.claim(key), 'no owner holds it')
      assert.ok(next.token > lease.token, `token ${next.token} came after ${lease.token}`)
    },
  },
  {
    name: 'revoke() ends the leases of all readers',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const readers = [await granted(a, t.reader(key)), await granted(b, t.reader(key))]
      const cut = await revoke(c, key)
      assert.deepEqual(cut.map((view) => view.owner).sort(), readers.map((lease) => lease.owner).sort())
      for (const reader of readers) assert.equal(await renew(a, reader, t.longMs), 'gone')
      await granted(c, t.claim(key))
    },
  },
  {
    name: 'revoke() of a free key returns no owner',
    async run(t) {
      const [a] = await t.clients(1)
      const key = t.key()
      assert.deepEqual(await revoke(a, key), [])
      await granted(a, t.claim(key))
    },
  },
  {
    name: 'revoke() affects no other key',
    async run(t) {
      const [a, b] = await t.clients(2)
      const name = t.name()
      const lease = await granted(a, t.claim(`lock:${name}:1`))
      const cousin = await granted(a, t.claim(`election:${name}`))
      await granted(a, t.claim(`lock:${name}`))
      assert.equal((await revoke(b, `lock:${name}`)).length, 1)
      assert.equal(await renew(a, lease, t.longMs), 'ours')
      assert.equal(await renew(a, cousin, t.longMs), 'ours')
    },
  },
]

const queued: Case[] = [
  {
    name: 'revoke() lets the next waiter in, and no other client',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.claim(key))
      const waiting = t.claim(key, { queueMs: t.longMs })
      await refused(b, waiting)
      await revoke(c, key)
      await refused(c, t.claim(key), 'a waiter is queued')
      await granted(b, waiting)
    },
  },
  {
    name: 'a steal overtakes the queue, and the queue stays',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.claim(key))
      const waiting = t.claim(key, { queueMs: t.longMs })
      await refused(b, waiting)
      const stolen = await granted(c, t.claim(key, { steal: true }))
      await refused(b, waiting)
      await mustRelease(c, stolen)
      await refused(c, t.claim(key), 'a waiter is queued')
      await granted(b, waiting)
    },
  },
]

const stealing: Case[] = [
  {
    name: 'a steal takes the lock from any holder and has a larger token',
    otherwise: {
      name: 'a steal is unsupported, and takes nothing',
      async run(t) {
        const [a, b] = await t.clients(2)
        const lease = await granted(a, t.claim(t.key()))
        await unsupported(b, [t.claim(lease.key, { steal: true })])
        assert.equal(await renew(a, lease, t.longMs), 'ours')
      },
    },
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const lease = await granted(a, t.claim(key))
      const stolen = await granted(b, t.claim(key, { steal: true }))
      assert.ok(stolen.token > lease.token, `token ${stolen.token} came after ${lease.token}`)
      assert.equal(await renew(a, lease, t.longMs), 'gone')
      assert.equal(await release(a, lease), 'gone')
      assert.equal(await renew(b, stolen, t.longMs), 'ours')
      await refused(a, t.claim(key))
    },
  },
  {
    name: 'a steal takes the lock from all readers, and is a plain grant if the key is free',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const readers = [await granted(a, t.reader(key)), await granted(a, t.reader(key))]
      const stolen = await granted(b, t.claim(key, { steal: true }))
      for (const reader of readers) assert.equal(await renew(a, reader, t.longMs), 'gone')
      await mustRelease(b, stolen)
      assert.ok(await tryAcquire(a, t.claim(key, { steal: true })))
    },
  },
]

export const forceCases: Case[] = [
  ...needing(['revoke'], [...revoking, ...stealing]),
  ...needing(['revoke', 'queue'], queued),
]
