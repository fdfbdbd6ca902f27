import { strict as assert } from 'node:assert'
import { InvalidOptionError } from '../../errors.js'
import { createLocks } from '../../locks.js'
import type { Case } from '../case.js'
import { rejection } from './acquire.js'

const circular: Record<string, unknown> = {}
circular.self = circular

const badOptions: [string, unknown][] = [
  ['ttl', 0],
  ['ttl', 1],
  ['ttl', -5],
  ['ttl', Number.NaN],
  ['ttl', Number.POSITIVE_INFINITY],
  ['ttl', '10 parsecs'],
  ['ttl', '5 bananas 3s'],
  ['ttl', ''],
  ['ttl', '30'],
  ['ttl', null],
  ['wait', -1],
  ['wait', 'for ever'],
  ['wait', Number.NaN],
  ['mode', 'writing'],
  ['metadata', { big: 'x'.repeat(5_000) }],
  ['metadata', circular],
  ['metadata', 1n],
  ['metadata', () => 1],
  ['signal', 'now'],
  ['autoRenew', 'yes'],
  ['maxHold', 0],
  ['timeout', 5],
]

const badNames: unknown[] = [
  '',
  'x'.repeat(256),
  'x'.repeat(10_000),
  'nul \0 inside',
  'half \ud800 a pair',
  undefined,
  null,
  7,
  {},
]

export const inputCases: Case[] = [
  {
    name: 'a bad option throws InvalidOptionError with its name and value, and sends no request',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      for (const [option, value] of badOptions) {
        for (const how of ['acquire', 'tryAcquire', 'withLock'] as const) {
          const call = locks[how] as (...args: unknown[]) => Promise<unknown>
          const options = { [option]: value }
          const args = how === 'withLock' ? [t.name(), () => 1, options] : [t.name(), options]
          const error = await rejection(call.apply(locks, args))
          assert.ok(error instanceof InvalidOptionError, `${how} ${option}=${String(value)}: ${error}`)
          assert.equal(error.code, 'INVALID_OPTION')
          assert.equal(error.option, option)
          assert.ok(error.message.includes(option) && error.message.length < 500, error.message)
        }
      }
      assert.deepEqual(store.calls, [])
    },
  },
  {
    name: 'a name is 1 to 255 characters of well-formed Unicode without NUL, and anything else throws InvalidOptionError',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      for (const name of badNames) {
        const error = await rejection(locks.acquire(name as string))
        assert.ok(error instanceof InvalidOptionError, String(error))
        assert.ok(error.message.length < 500, 'and its message is short')
      }
      assert.deepEqual(store.calls, [])
      for (const name of ['x', t.name('漢字 🔒 %_*'), t.name().padEnd(255, 'y')]) {
        const lock = await locks.acquire(name)
        assert.equal(lock.name, name)
        await lock.release()
      }
    },
  },
  {
    name: 'a prefix that no name can begin with throws InvalidOptionError, and is not taken for an outage',
    async run(t) {
      const locks = await t.locks()
      for (const prefix of ['nul \0 inside', 'half a pair \ud83d', '\udd12', 7, null]) {
        const error = await rejection(locks.holders(prefix as string))
        assert.ok(error instanceof InvalidOptionError, `${JSON.stringify(prefix)}: ${error}`)
        assert.match(error.message, /^prefix/)
      }
    },
  },
  {
    name: 'a bad store, a bad default and a missing function throw InvalidOptionError',
    async run(t) {
      const store = await t.client()
      for (const wrong of [undefined, null, {}, 'redis://localhost']) {
        assert.throws(() => createLocks(wrong as never), InvalidOptionError)
      }
      assert.throws(() => createLocks(store, { ttl: 0 }), InvalidOptionError)
      assert.throws(() => createLocks(store, { wait: -1 }), InvalidOptionError)
      assert.throws(() => createLocks(store, { namespace: '' }), InvalidOptionError)
      const locks = await t.locks()
      assert.ok((await rejection(locks.withLock(t.name(), undefined as never))) instanceof InvalidOptionError)
    },
  },
]
