import { strict as assert } from 'node:assert'
import { type Election, InvalidOptionError, UnsupportedError } from '../../../src/index.js'
import type { Case } from '../../../src/testing/index.js'

/** Valid and invalid options. */
export const electionInputCases: Case[] = [
  {
    name: 'bad input is reported before any request is sent',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const option =
        (wanted: string) =>
        (error: unknown): true => {
          assert.ok(error instanceof InvalidOptionError, String(error))
          assert.equal(error.option, wanted)
          return true
        }
      const election = (options: unknown, name: unknown = 'a') => locks.election(name as string, options as object)
      for (const name of ['', 1, null, 'a\0b', 'x'.repeat(256)]) assert.throws(() => election({}, name), option('name'))
      for (const options of [null, 5, 'x']) assert.throws(() => election(options), option('options'))
      for (const ttl of [0, -1, '10 parsecs', null]) assert.throws(() => election({ ttl }), option('ttl'))
      for (const drain of [-1, 'soon', Number.NaN]) assert.throws(() => election({ drain }), option('drain'))
      const circle: { self?: object } = {}
      circle.self = circle
      for (const value of [1n, circle, () => {}, 'x'.repeat(5_000)])
        assert.throws(() => election({ value }), option('value'))
      assert.throws(() => election({ tll: '1s' }), option('tll'))
      const good: Election = election({ ttl: '5s', drain: 0, value: undefined })
      for (const work of [undefined, 1, {}]) await assert.rejects(good.run(work as never), option('work'))
      await assert.rejects(
        good.run(() => {}, { signal: 1 } as never),
        option('signal'),
      )
      await assert.rejects(
        good.run(() => {}, { sginal: AbortSignal.abort() } as never),
        option('sginal'),
      )
      assert.throws(() => good.observe({ signal: 'x' } as never), option('signal'))
      assert.throws(() => good.health({ maxStale: 'never' } as never), option('maxStale'))
      assert.throws(() => good.health(null as never), option('options'))
      await assert.rejects(good.proclaim(1n), option('value'))
      assert.deepEqual(store.calls, [])
      assert.deepEqual(good.health(), { healthy: true, isLeader: false, staleMs: 0 })
    },
  },
]

/** The guarantee of a store that cannot list its leaders. */
export const refusal: NonNullable<Case['otherwise']> = {
  name: 'a store that cannot list its leaders rejects leader() and says what to use instead',
  async run(t) {
    const locks = await t.locks()
    assert.throws(
      () => locks.election(t.name()),
      (error) => {
        assert.ok(error instanceof UnsupportedError)
        assert.match(error.message, /memory, sqlite, redis, redlock, postgres or etcd; or withLock/)
        return true
      },
    )
  },
}
