/** The arguments of `request`, and how it declines: always by a rejection, before any request is sent. */
import { strict as assert } from 'node:assert'
import { InvalidOptionError, type Locks, UnsupportedError } from '../../../src/index.js'
import type { Case } from '../../../src/testing/index.js'
import { domException, hold, instances, request } from './requests.js'

/** Calls as JavaScript code may, whatever the types say. Fails if the call throws instead of rejecting. */
function call(locks: Locks, ...args: unknown[]): Promise<unknown> {
  const plain = locks as unknown as { request(...args: unknown[]): Promise<unknown> }
  const promise = plain.request(...args)
  assert.ok(promise instanceof Promise)
  return promise
}

const never = (): never => assert.fail('the callback must not be called')

export const argumentCases: Case[] = [
  {
    name: 'request() without a name or a callback rejects with a TypeError',
    async run(t) {
      const [locks] = await instances(t, 1)
      await assert.rejects(call(locks), TypeError)
      await assert.rejects(call(locks, 'name'), TypeError)
      for (const callback of [undefined, null, 1, 'text', {}, [], Promise.resolve(), Symbol('s')]) {
        await assert.rejects(call(locks, 'name', callback), TypeError)
        await assert.rejects(call(locks, 'name', {}, callback), TypeError)
      }
      assert.deepEqual(await locks.query(), { held: [], pending: [] })
    },
  },
  {
    name: 'options are read as a browser reads a dictionary: absent means default, a wrong type is a TypeError',
    async run(t) {
      const [locks] = await instances(t, 1)
      for (const options of [1, 'text', true, Symbol('s'), 1n]) {
        await assert.rejects(call(locks, 'name', options, never), TypeError)
      }
      for (const mode of ['', 'EXCLUSIVE', 'share', 'foo', null, 1, {}, Symbol('s')]) {
        await assert.rejects(call(locks, 'name', { mode }, never), TypeError)
      }
      for (const signal of [null, 'text', 1, {}, new AbortController(), new EventTarget()]) {
        await assert.rejects(call(locks, 'name', { signal }, never), TypeError)
      }
      assert.deepEqual(await locks.query(), { held: [], pending: [] })
    },
  },
  {
    name: 'absent, null and undefined options are the defaults; truthy and falsy values are booleans; extras are ignored',
    needs: ['queue'],
    async run(t) {
      const [locks] = await instances(t, 1)
      const modeOf = (lock: unknown): unknown => (lock as { mode: string } | null)?.mode
      for (const options of [undefined, null, {}, () => {}, { mode: undefined, signal: undefined, steal: undefined }]) {
        assert.equal(await call(locks, 'name', options, modeOf), 'exclusive')
      }
      assert.equal(await call(locks, 'name', modeOf), 'exclusive')
      assert.equal(await call(locks, 'name', { mode: { toString: () => 'shared' } }, modeOf), 'shared')
      assert.equal(await call(locks, 'name', { more: 1, ifAvailable: 0, steal: '' }, modeOf), 'exclusive')
      const held = await hold(t, locks, 'busy')
      assert.equal(await call(locks, 'busy', { ifAvailable: 'yes' }, modeOf), undefined)
      held.finish()
      await held.outcome
    },
  },
  {
    name: 'an option whose getter throws rejects with that error, and later options are not read',
    async run(t) {
      const [locks] = await instances(t, 1)
      const thrown = new Error('from the getter')
      const options = {
        get ifAvailable() {
          throw thrown
        },
        get steal() {
          return assert.fail('read after an earlier one threw')
        },
      }
      await assert.rejects(call(locks, 'name', options, never), thrown)
      const name = {
        toString() {
          throw thrown
        },
      }
      await assert.rejects(call(locks, name, never), thrown)
    },
  },
  {
    name: 'contradictory options reject with NotSupportedError',
    async run(t) {
      const [locks] = await instances(t, 1)
      const { signal } = new AbortController()
      const senseless = [
        { steal: true, ifAvailable: true },
        { steal: true, mode: 'shared' },
        { steal: true, signal },
        { ifAvailable: true, signal },
        { steal: true, ifAvailable: true, mode: 'shared', signal },
      ]
      for (const options of senseless) {
        await assert.rejects(call(locks, 'name', options, never), domException('NotSupportedError'))
      }
      // The combination is checked before the signal.
      const aborted = AbortSignal.abort(new Error('too late'))
      await assert.rejects(
        call(locks, 'name', { steal: true, signal: aborted }, never),
        domException('NotSupportedError'),
      )
      assert.deepEqual(await locks.query(), { held: [], pending: [] })
    },
  },
  {
    name: 'a name that begins with a hyphen rejects with NotSupportedError, and a hyphen elsewhere is allowed',
    async run(t) {
      const [locks] = await instances(t, 1)
      for (const name of ['-', '-name', '--']) {
        await assert.rejects(call(locks, name, never), domException('NotSupportedError'))
        await assert.rejects(call(locks, name, { ifAvailable: true }, never), domException('NotSupportedError'))
      }
      for (const name of ['a-', 'a-b', ' -', '\u2212']) {
        const seen = await call(locks, name, { ifAvailable: true }, (lock: { name: string }) => lock.name)
        assert.equal(seen, name)
      }
    },
  },
  {
    name: 'a name that is not a string is converted, but a symbol is a TypeError',
    async run(t) {
      const [locks] = await instances(t, 1)
      const nameOf = (lock: unknown): unknown => (lock as { name: string }).name
      for (const [name, text] of [
        [1, '1'],
        [null, 'null'],
        [undefined, 'undefined'],
        [{ toString: () => 'object' }, 'object'],
        [['a', 'b'], 'a,b'],
      ]) {
        assert.equal(await call(locks, name, { ifAvailable: true }, nameOf), text)
      }
      await assert.rejects(call(locks, Symbol('name'), never), TypeError)
      await assert.rejects(call(locks, { [Symbol.toPrimitive]: () => Symbol('x') }, never), TypeError)
    },
  },
  {
    name: 'names are compared exactly: case, blanks, accents and prefixes make different names',
    async run(t) {
      const [locks, other] = await instances(t, 2)
      const names = [
        'name',
        'Name',
        'name ',
        ' name',
        'nam',
        'names',
        'n\u00e4me',
        'na\u0308me',
        '\u{1f512}',
        '__proto__',
        '*',
        '%',
        'a:b',
        '{a}b',
      ] // prettier-ignore
      const held = await Promise.all(names.map((name) => hold(t, locks, name, { ifAvailable: true })))
      assert.deepEqual(
        (await Promise.all(held.map(({ lock }) => lock))).map((lock) => lock?.name),
        names,
      )
      for (const name of names) assert.equal(await other.request(name, { ifAvailable: true }, (lock) => lock), null)
      for (const { finish } of held) finish()
      await Promise.all(held.map(({ outcome }) => outcome))
    },
  },
]

const PECULIAR = ['', 'nul \0 inside', '\0', '\ud800', 'half \udc00 a pair', '\udc00\ud800', 'x'.repeat(100_000)]

/** In memory: what the specification allows. */
export const anyName: Case = {
  name: 'any other string is a name: empty, with NUL, with half a surrogate pair, very long; all of them different',
  async run(t) {
    const [locks] = await instances(t, 1)
    const held = await Promise.all(PECULIAR.map((name) => hold(t, locks, name)))
    const { held: seen } = await locks.query()
    assert.deepEqual(
      seen.map(({ name }) => name),
      PECULIAR,
    )
    const waiting = PECULIAR.map((name) => request(locks, name))
    for (const { finish } of held) finish()
    for (const [i, { lock, finish, outcome }] of waiting.entries()) {
      assert.equal((await t.settled('granted', lock))?.name, PECULIAR[i])
      finish()
      await outcome
    }
  },
}

/** In other stores: what every store can represent unchanged. */
export const plainNames: Case = {
  name: 'a name that a store cannot represent is rejected: empty, NUL, half a surrogate pair, more than 255 characters',
  async run(t) {
    const [locks] = await instances(t, 1)
    for (const name of [...PECULIAR, 'x'.repeat(256)]) {
      await assert.rejects(
        locks.request(name, { ifAvailable: true }, never),
        (error) => error instanceof InvalidOptionError && error.option === 'name',
      )
    }
    const short = await t.locks()
    const longest = t.name().padEnd(255, '\u00e9')
    assert.equal(await short.request(longest, { ifAvailable: true }, (lock) => lock?.name), longest)
  },
}

/** The guarantees of a store without a queue. */
export const withoutQueue: Case[] = [
  {
    name: 'a store with a queue accepts a request that may have to wait',
    needs: ['queue'],
    async run(t) {
      const [locks] = await instances(t, 1)
      assert.equal(await locks.request('name', () => 1), 1)
    },
    otherwise: {
      name: 'a store without a queue rejects a request that may have to wait, and says what to use instead',
      async run(t) {
        const [locks] = await instances(t, 1)
        for (const options of [{}, { mode: 'shared' as const }, { signal: new AbortController().signal }]) {
          await assert.rejects(locks.request('name', options, never), (error) => {
            assert.ok(error instanceof UnsupportedError)
            assert.match(error.message, /needs a queue.*use withLock, or request with ifAvailable/)
            return true
          })
        }
      },
    },
  },
  {
    name: 'requests with ifAvailable or steal need no queue: the first is told whether the lock is free, the second takes it',
    needs: ['revoke'],
    async run(t) {
      const [a, b] = await instances(t, 2, 3_000)
      const held = await hold(t, a, 'name', { ifAvailable: true })
      assert.equal((await held.lock)?.name, 'name')
      assert.equal(await b.request('name', { ifAvailable: true }, (lock) => lock), null)
      const stealing = await hold(t, b, 'name', { steal: true })
      assert.equal((await stealing.lock)?.mode, 'exclusive')
      await t.settled('the stolen request is told', assert.rejects(held.outcome, domException('AbortError')))
      stealing.finish('mine')
      assert.equal(await stealing.outcome, 'mine')
      assert.equal(await a.request('name', { ifAvailable: true }, (lock) => lock?.name), 'name')
    },
  },
]
