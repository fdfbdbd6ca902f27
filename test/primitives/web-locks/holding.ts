/** What the callback is given, what it returns, and for how long the lock is held. */
import { strict as assert } from 'node:assert'
import { ClosedError, type Locks, LockTimeoutError } from '../../../src/index.js'
import { type Case, needing } from '../../../src/testing/case.js'
import { domException, hold, instances, pending, request } from './requests.js'

async function isFree(locks: Locks, name: string): Promise<boolean> {
  return locks.request(name, { ifAvailable: true }, (lock) => lock !== null)
}

export const holdingCases: Case[] = needing(
  ['queue'],
  [
    {
      name: 'the request resolves with the result of the callback, a promise or not, after the lock was released',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const thing = {}
        assert.equal(await a.request('name', () => thing), thing)
        assert.ok(await isFree(b, 'name'))
        assert.equal(await a.request('name', async () => thing), thing)
        assert.ok(await isFree(b, 'name'))
        assert.equal(await a.request('name', () => {}), undefined)
        // oxlint-disable-next-line unicorn/no-thenable -- that is what is tested
        const thenable = { then: (resolve: (value: string) => void) => resolve('from a thenable') }
        assert.equal(await a.request('name', () => thenable), 'from a thenable')
        assert.ok(await isFree(b, 'name'))
      },
    },
    {
      name: 'the request rejects with the error of the callback, thrown or rejected, and the lock is released',
      async run(t) {
        const [a, b] = await instances(t, 2)
        for (const thrown of [new Error('mine'), new TypeError('mine too'), 'no error at all', undefined]) {
          const outcomes = await Promise.allSettled([
            a.request('name', () => {
              throw thrown
            }),
            a.request('name', async () => Promise.reject(thrown)),
          ])
          for (const outcome of outcomes) assert.deepEqual(outcome, { status: 'rejected', reason: thrown })
          assert.ok(await isFree(b, 'name'))
        }
      },
    },
    {
      name: 'the lock is held until the promise of the callback settles, and not until the callback returns',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const held = await hold(t, a, 'name')
        assert.equal(await isFree(b, 'name'), false)
        held.finish('done')
        assert.equal(await held.outcome, 'done')
        assert.ok(await isFree(b, 'name'))
        const failing = await hold(t, a, 'name')
        assert.equal(await isFree(b, 'name'), false)
        failing.fail(new Error('mine'))
        await assert.rejects(failing.outcome, new Error('mine'))
        assert.ok(await isFree(b, 'name'))
      },
    },
    {
      name: 'the callback is never called before request() has returned',
      async run(t) {
        const [locks] = await instances(t, 1)
        let returned = false
        const called: boolean[] = []
        const done = [
          locks.request('name', () => called.push(returned)),
          locks.request('name', { ifAvailable: true }, () => called.push(returned)),
          locks.request('other', { steal: true }, () => called.push(returned)),
        ]
        returned = true
        await Promise.all(done)
        assert.deepEqual(called, [true, true, true])
      },
    },
    {
      name: 'the lock has the requested name and mode, also after its release, and both are immutable',
      async run(t) {
        const [locks] = await instances(t, 1)
        for (const mode of ['exclusive', 'shared'] as const) {
          const lock = await locks.request('name', { mode }, (given) => {
            assert.equal(given?.name, 'name')
            assert.equal(given.mode, mode)
            return given
          })
          assert.deepEqual({ ...lock }, { name: 'name', mode })
          assert.throws(() => Object.assign(lock as object, { name: 'another' }), TypeError)
        }
      },
    },
    {
      name: 'two simultaneous requests get a lock each, and the callback is called with one argument',
      async run(t) {
        const [locks] = await instances(t, 1)
        const count = (...args: unknown[]): unknown[] => args
        const [first, second] = (await Promise.all([
          locks.request('name', count as never),
          locks.request('name', count as never),
        ])) as unknown as [unknown[], unknown[]]
        assert.equal(first.length, 1)
        assert.notEqual(first[0], second[0])
      },
    },
    {
      name: 'ifAvailable gives the lock if it is free or null, and resolves with the result of the callback either way',
      async run(t) {
        const [a, b] = await instances(t, 2)
        assert.equal(await a.request('name', { ifAvailable: true }, (lock) => lock?.mode), 'exclusive')
        const held = await hold(t, a, 'name')
        assert.equal(await b.request('name', { ifAvailable: true }, (lock) => ({ lock }).lock), null)
        assert.equal(await b.request('name', { ifAvailable: true }, async () => 'later'), 'later')
        const own = new Error('mine')
        await assert.rejects(
          b.request('name', { ifAvailable: true }, () => {
            throw own
          }),
          own,
        )
        await assert.rejects(
          b.request('name', { ifAvailable: true }, () => Promise.reject(own)),
          own,
        )
        assert.deepEqual((await b.query()).pending, [], 'it leaves no queue entry')
        held.finish()
        await held.outcome
      },
    },
    {
      name: 'ifAvailable gives shared beside shared, null beside exclusive, and null if others wait already',
      async run(t) {
        const [a, b, c] = await instances(t, 3)
        const reading = await hold(t, a, 'name', { mode: 'shared' })
        const ask = (mode: 'exclusive' | 'shared'): Promise<boolean> =>
          c.request('name', { mode, ifAvailable: true }, (lock) => lock !== null)
        assert.deepEqual([await ask('shared'), await ask('exclusive')], [true, false])
        const writer = request(b, 'name')
        await pending(t, c, 1)
        assert.deepEqual([await ask('shared'), await ask('exclusive')], [false, false])
        reading.finish()
        await t.settled('the writer has it', writer.lock)
        assert.deepEqual([await ask('shared'), await ask('exclusive')], [false, false])
        writer.finish()
        await writer.outcome
        assert.deepEqual([await ask('shared'), await ask('exclusive')], [true, true])
      },
    },
    {
      name: 'a callback that ifAvailable gave null holds nothing while it runs',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const held = await hold(t, a, 'name')
        const without = await hold(t, b, 'name', { ifAvailable: true })
        assert.equal(await without.lock, null)
        held.finish()
        await held.outcome
        assert.equal(await a.request('name', { ifAvailable: true }, (lock) => lock !== null), true)
        without.finish('after all')
        assert.equal(await without.outcome, 'after all')
      },
    },
    {
      name: 'a callback may request other names, and the same name again when it is shared',
      async run(t) {
        const [locks] = await instances(t, 1)
        const seen = await locks.request('outer', () =>
          locks.request('inner', { mode: 'shared' }, () =>
            locks.request('inner', { mode: 'shared' }, async (lock) => [
              lock?.name,
              (await locks.query()).held.map(({ name }) => name),
            ]),
          ),
        )
        assert.deepEqual(seen, ['inner', ['outer', 'inner', 'inner']])
        assert.deepEqual(await locks.query(), { held: [], pending: [] })
      },
    },
    {
      name: 'a request of the same name inside a callback waits for it, as in a browser: detached work gets it afterwards',
      async run(t) {
        const [locks] = await instances(t, 1)
        let inner: Promise<string> | undefined
        const order: string[] = []
        await locks.request('name', async () => {
          inner = locks.request('name', () => {
            order.push('inner')
            return 'inner'
          })
          await pending(t, locks, 1)
          order.push('outer')
        })
        assert.equal(await t.settled('the inner one', inner), 'inner')
        assert.deepEqual(order, ['outer', 'inner'])
      },
    },
    {
      name: 'locks of acquire() and requests of one name exclude each other',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const held = await hold(t, a, 'name')
        await assert.rejects(b.acquire('name', { wait: 0 }), LockTimeoutError)
        const waiting = b.acquire('name')
        await pending(t, a, 1)
        held.finish()
        const lock = await t.settled('the lock', waiting)
        assert.equal(await isFree(a, 'name'), false)
        assert.equal((await a.query()).held[0]?.clientId, b.clientId)
        await lock.release()
      },
    },
    {
      name: 'close() ends waiting requests with an AbortError; a running callback may finish, and its result counts',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const held = await hold(t, a, 'name')
        const waiting = request(a, 'name')
        await pending(t, b, 1)
        const closed = a.close({ grace: '10s' })
        await assert.rejects(waiting.outcome, (error) => {
          assert.ok(domException('AbortError')(error))
          assert.ok((error as DOMException).cause instanceof ClosedError)
          return true
        })
        await assert.rejects(
          a.request('other', () => {}),
          domException('AbortError'),
        )
        assert.equal(await isFree(b, 'name'), false)
        held.finish('finished')
        assert.equal(await held.outcome, 'finished')
        await closed
        // A request that was in flight when the wait ended may have got a queue entry, which expires by itself.
        await t.until('it is free', () => isFree(b, 'name'))
        assert.equal(waiting.called, false)
      },
    },
  ],
)
