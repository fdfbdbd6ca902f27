import { strict as assert } from 'node:assert'
import type { HolderView, Store } from '../../store.js'
import { granted, letGo, refused, release, renew, tried, unsupported } from '../ask.js'
import { type Case, needing } from '../case.js'

async function revoke(store: Store, key: string): Promise<HolderView[]> {
  assert.ok(store.revoke, 'the store has revoke')
  return store.revoke(key)
}

const revoking: Case[] = [
  {
    name: 'revoke ends a lease, returns whom it cut off, and its holder is told gone from then on',
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
      const next = await granted(b, t.claim(key), 'nobody holds it')
      assert.ok(next.token > lease.token, `token ${next.token} came after ${lease.token}`)
    },
  },
  {
    name: 'revoke ends the leases of all readers',
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
    name: 'revoking what nobody holds cuts nobody off',
    async run(t) {
      const [a] = await t.clients(1)
      const key = t.key()
      assert.deepEqual(await revoke(a, key), [])
      await granted(a, t.claim(key))
    },
  },
  {
    name: 'revoke touches no other key',
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

const told: Case[] = [
  {
    name: 'whoever is revoked is told so',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const revoked = await t.revocations(a)
      const lease = await granted(a, t.claim(key))
      await revoke(b, key)
      await revoked.of(lease)
    },
  },
  {
    name: 'whoever is stolen from is told so',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const revoked = await t.revocations(a)
      const lease = await granted(a, t.claim(key))
      const thief = await granted(b, t.claim(key, { steal: true }))
      await revoked.of(lease)
      assert.ok(!revoked.heard.some(({ owner }) => owner === thief.owner), 'the stealing request is not')
    },
  },
]

const lined: Case[] = [
  {
    name: 'revoke lets the next in line in, and nobody else',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.claim(key))
      const waiting = t.claim(key, { placeMs: t.longMs })
      await refused(b, waiting)
      await revoke(c, key)
      await refused(c, t.claim(key), 'somebody stands in line')
      await granted(b, waiting)
    },
  },
  {
    name: 'stealing passes the line, and the line stays',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.claim(key))
      const waiting = t.claim(key, { placeMs: t.longMs })
      await refused(b, waiting)
      const stolen = await granted(c, t.claim(key, { steal: true }))
      await refused(b, waiting)
      await letGo(c, stolen)
      await refused(c, t.claim(key), 'somebody stands in line')
      await granted(b, waiting)
    },
  },
]

const stealing: Case[] = [
  {
    name: 'stealing takes the lock whoever holds it, with a larger token',
    otherwise: {
      name: 'stealing is unsupported, and takes nothing',
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
    name: 'stealing takes the lock from all readers, and what nobody holds is simply granted',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const readers = [await granted(a, t.reader(key)), await granted(a, t.reader(key))]
      const stolen = await granted(b, t.claim(key, { steal: true }))
      for (const reader of readers) assert.equal(await renew(a, reader, t.longMs), 'gone')
      await letGo(b, stolen)
      assert.ok(await tried(a, t.claim(key, { steal: true })))
    },
  },
]

export const forceCases: Case[] = [
  ...needing(['revoke'], [...revoking, ...stealing]),
  ...needing(['revoke', 'watch'], told),
  ...needing(['revoke', 'line'], lined),
]
