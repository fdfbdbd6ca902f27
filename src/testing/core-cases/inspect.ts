import { strict as assert } from 'node:assert'
import { UnsupportedError } from '../../errors.js'
import { type Alternative, type Case, needing } from '../case.js'
import { rejection } from './acquire.js'

const unsupported = (what: 'holders' | 'inspect' | 'forceRelease'): Alternative => ({
  name: `${what} is unsupported`,
  async run(t) {
    const locks = await t.locks()
    const error = await rejection(locks[what](t.name()))
    assert.ok(error instanceof UnsupportedError, String(error))
  },
})

const holders: Case[] = [
  {
    name: 'locks.holders() lists the holders within its namespace, with names as the callers gave them',
    otherwise: unsupported('holders'),
    async run(t) {
      const store = await t.client()
      const [shop, bank] = [await t.locks({ namespace: 'shop' }, store), await t.locks({ namespace: 'bank' }, store)]
      const base = t.name()
      const lock = await shop.acquire(`${base}:1`)
      await shop.acquire(`${base}:2`, { mode: 'shared' })
      await bank.acquire(`${base}:3`)
      const seen = (await shop.holders(base)).sort((x, y) => (x.name < y.name ? -1 : 1))
      assert.deepEqual(
        seen.map((view) => [view.name, view.kind, view.mode]),
        [
          [`${base}:1`, 'lock', 'exclusive'],
          [`${base}:2`, 'lock', 'shared'],
        ],
      )
      assert.equal(seen[0]?.holder, lock.holder)
      assert.equal(seen[0]?.fencingToken, lock.fencingToken)
      assert.equal(seen[0]?.foreign, false)
    },
  },
]

const inspecting: Case[] = [
  {
    name: 'locks.inspect() reports the holder of one name',
    otherwise: unsupported('inspect'),
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      assert.deepEqual(await b.inspect(name), { name, kind: 'lock', holders: [], waiters: [] })
      const lock = await a.acquire(name)
      const { holders } = await b.inspect(name)
      assert.deepEqual(
        holders.map((view) => view.holder),
        [lock.holder],
      )
      await lock.release()
      assert.deepEqual((await b.inspect(name)).holders, [])
    },
  },
]

const values: Case[] = [
  {
    name: 'metadata is visible to other clients',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const metadata = { job: 'charge', nested: { list: [1, 'two', null] } }
      await a.acquire(name, { metadata })
      assert.deepEqual((await b.inspect(name)).holders[0]?.metadata, metadata)
    },
  },
]

const waiters: Case[] = [
  {
    name: 'locks.waiters() lists the waiters, and none once they have left',
    async run(t) {
      const [a, b, c] = [await t.locks(), await t.locks(), await t.locks()]
      const name = t.name()
      const held = await a.acquire(name)
      const leaving = new AbortController()
      const waiting = rejection(b.acquire(name, { wait: 'forever', signal: leaving.signal }))
      const seen = await t.until('it is queued', async () => {
        const list = await c.waiters(name)
        return list.length === 1 && list[0]
      })
      assert.ok(seen.holder.includes(b.clientId))
      leaving.abort()
      await waiting
      await t.until('the queue is empty', async () => (await c.waiters(name)).length === 0)
      await held.release()
    },
  },
]

const forcing: Case[] = [
  {
    name: 'locks.forceRelease() of a free name returns no holder',
    otherwise: unsupported('forceRelease'),
    async run(t) {
      assert.deepEqual(await (await t.locks()).forceRelease(t.name()), [])
    },
  },
]

const telling: Case[] = [
  {
    name: 'the events acquired, released and timeout carry their facts',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const received: [string, Record<string, unknown>][] = []
      for (const event of ['acquired', 'released', 'lost'] as const)
        a.on(event, (facts) => received.push([event, { ...facts }]))
      b.on('timeout', (facts) => received.push(['timeout', { ...facts }]))
      const name = t.name()
      const lock = await a.acquire(name)
      await rejection(b.acquire(name, { wait: 0 }))
      await lock.release()
      assert.deepEqual(
        received.map(([event, facts]) => [event, facts.name, facts.kind]),
        [
          ['acquired', name, 'lock'],
          ['timeout', name, 'lock'],
          ['released', name, 'lock'],
        ],
      )
      const [, acquired] = received[0] as (typeof received)[0]
      assert.equal(acquired.holder, lock.holder)
      assert.equal(acquired.fencingToken, lock.fencingToken)
      assert.equal(typeof acquired.waitedMs, 'number')
    },
  },
  {
    name: 'a removed listener is not called any more',
    async run(t) {
      const locks = await t.locks()
      let received = 0
      const listener = (): number => received++
      locks.on('acquired', listener)
      await (await locks.acquire(t.name())).release()
      locks.off('acquired', listener)
      await (await locks.acquire(t.name())).release()
      assert.equal(received, 1)
    },
  },
]

export const inspectCases: Case[] = [
  ...needing(['holders'], holders),
  ...needing(['inspect'], inspecting),
  ...needing(['inspect', 'values'], values),
  ...needing(['inspect', 'queue'], waiters),
  ...needing(['revoke'], forcing),
  ...telling,
]
