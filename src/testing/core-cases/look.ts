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
    name: 'locks.holders shows who holds what, within its namespace, with names as they were given',
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
    name: 'locks.inspect shows the holder of one name',
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
    name: 'metadata is there for others to see',
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
    name: 'locks.waiters shows who waits, and nobody once they have left',
    async run(t) {
      const [a, b, c] = [await t.locks(), await t.locks(), await t.locks()]
      const name = t.name()
      const held = await a.acquire(name)
      const leaving = new AbortController()
      const waiting = rejection(b.acquire(name, { wait: 'forever', signal: leaving.signal }))
      const seen = await t.until('it stands in line', async () => {
        const list = await c.waiters(name)
        return list.length === 1 && list[0]
      })
      assert.ok(seen.holder.includes(b.clientId))
      leaving.abort()
      await waiting
      await t.until('the line is empty', async () => (await c.waiters(name)).length === 0)
      await held.release()
    },
  },
]

const forcing: Case[] = [
  {
    name: 'locks.forceRelease of what nobody holds cuts nobody off',
    otherwise: unsupported('forceRelease'),
    async run(t) {
      assert.deepEqual(await (await t.locks()).forceRelease(t.name()), [])
    },
  },
]

const telling: Case[] = [
  {
    name: 'events carry the facts: acquired, released, timeout',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const heard: [string, Record<string, unknown>][] = []
      for (const event of ['acquired', 'released', 'lost'] as const)
        a.on(event, (facts) => heard.push([event, { ...facts }]))
      b.on('timeout', (facts) => heard.push(['timeout', { ...facts }]))
      const name = t.name()
      const lock = await a.acquire(name)
      await rejection(b.acquire(name, { wait: 0 }))
      await lock.release()
      assert.deepEqual(
        heard.map(([event, facts]) => [event, facts.name, facts.kind]),
        [
          ['acquired', name, 'lock'],
          ['timeout', name, 'lock'],
          ['released', name, 'lock'],
        ],
      )
      const [, acquired] = heard[0] as (typeof heard)[0]
      assert.equal(acquired.holder, lock.holder)
      assert.equal(acquired.fencingToken, lock.fencingToken)
      assert.equal(typeof acquired.waitedMs, 'number')
    },
  },
  {
    name: 'a listener that is taken off hears nothing more',
    async run(t) {
      const locks = await t.locks()
      let heard = 0
      const listener = (): number => heard++
      locks.on('acquired', listener)
      await (await locks.acquire(t.name())).release()
      locks.off('acquired', listener)
      await (await locks.acquire(t.name())).release()
      assert.equal(heard, 1)
    },
  },
]

export const lookCases: Case[] = [
  ...needing(['holders'], holders),
  ...needing(['inspect'], inspecting),
  ...needing(['inspect', 'values'], values),
  ...needing(['inspect', 'line'], waiters),
  ...needing(['revoke'], forcing),
  ...telling,
]
