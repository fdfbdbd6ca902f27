import { strict as assert } from 'node:assert'
import { granted, grantedBriefly, mustRelease, tryBriefly } from '../store-calls.js'
import type { Case } from '../case.js'

export const tokenCases: Case[] = [
  {
    name: 'tokens grow from release to release, whichever client acquires',
    async run(t) {
      const clients = await t.clients(3)
      const key = t.key()
      let last = 0n
      for (let turn = 0; turn < 12; turn++) {
        const client = clients[turn % 3] as (typeof clients)[0]
        const lease = await granted(client, t.claim(key))
        assert.ok(lease.token > last, `token ${lease.token} came after ${last}`)
        last = lease.token
        await mustRelease(client, lease)
      }
    },
  },
  {
    name: 'tokens grow from expiry to expiry',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      let last = (await grantedBriefly(t, a, t.claim(key, { ttlMs: 200 }))).token
      for (const client of [b, a, b]) {
        const lease = await t.until('it ends', () => tryBriefly(t, client, t.claim(key, { ttlMs: 200 })))
        assert.ok(lease.token > last, `token ${lease.token} came after ${last}`)
        last = lease.token
      }
    },
  },
  {
    name: 'tokens grow when a client is closed and opened again',
    async run(t) {
      const key = t.key()
      const first = await t.separate()
      const lease = await granted(first, t.claim(key))
      await mustRelease(first, lease)
      await first.close()
      const second = await t.separate()
      const later = await granted(second, t.claim(key))
      assert.ok(later.token > lease.token, `token ${later.token} came after ${lease.token}`)
    },
  },
  {
    name: 'tokens grow from a lock to readers and from readers to a lock',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const lock = await granted(a, t.claim(key))
      await mustRelease(a, lock)
      const readers = [await granted(a, t.reader(key)), await granted(b, t.reader(key))] as const
      for (const reader of readers)
        assert.ok(reader.token > lock.token, `reader ${reader.token} after lock ${lock.token}`)
      await mustRelease(a, readers[0])
      await mustRelease(b, readers[1])
      const later = await granted(b, t.claim(key))
      for (const reader of readers)
        assert.ok(later.token > reader.token, `lock ${later.token} after reader ${reader.token}`)
    },
  },
  {
    name: 'a renewal does not change the token',
    async run(t) {
      const [a, b] = await t.clients(2)
      const lease = await granted(a, t.claim(t.key()))
      await a.renew([{ key: lease.key, owner: lease.owner, ttlMs: t.longMs }])
      const answer = (await b.acquire([t.claim(lease.key)]))[0]
      assert.equal(answer?.granted, false)
      if (answer.blocker?.token !== undefined) assert.equal(answer.blocker.token, lease.token)
    },
  },
]
