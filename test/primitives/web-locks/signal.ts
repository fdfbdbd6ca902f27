/** A signal ends the wait, and nothing else. */
import { strict as assert } from 'node:assert'
import { type Case, needing } from '../../../src/testing/case.js'
import { domException, hold, instances, pending, request } from './requests.js'

export const signalCases: Case[] = needing(
  ['queue'],
  [
    {
      name: 'a signal that has already aborted rejects with its reason, and no request is sent',
      async run(t) {
        const [locks] = await instances(t, 1)
        for (const reason of [new Error('mine'), 'text', 0, null]) {
          const requested = request(locks, 'name', { signal: AbortSignal.abort(reason) })
          const [outcome] = await Promise.allSettled([requested.outcome])
          assert.deepEqual(outcome, { status: 'rejected', reason })
          assert.equal(requested.called, false)
        }
        await assert.rejects(
          locks.request('name', { signal: AbortSignal.abort() }, () => {}),
          domException('AbortError'),
        )
        assert.deepEqual(await locks.query(), { held: [], pending: [] })
      },
    },
    {
      name: 'a signal that aborts a pending request rejects it with its reason and removes it from the queue',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const held = await hold(t, a, 'name')
        for (const reason of [undefined, new Error('mine'), { not: 'an error' }]) {
          const cancel = new AbortController()
          const waiting = request(b, 'name', { signal: cancel.signal })
          await pending(t, a, 1)
          cancel.abort(reason)
          const [outcome] = await Promise.allSettled([waiting.outcome])
          assert.deepEqual(outcome, { status: 'rejected', reason: cancel.signal.reason })
          await pending(t, a, 0)
          assert.equal(waiting.called, false)
        }
        held.finish()
        await held.outcome
        assert.equal(await b.request('name', { ifAvailable: true }, (lock) => lock?.name), 'name')
      },
    },
    {
      name: 'a timeout signal rejects with a TimeoutError',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const held = await hold(t, a, 'name')
        const waiting = request(b, 'name', { signal: AbortSignal.timeout(50) })
        await assert.rejects(waiting.outcome, domException('TimeoutError'))
        held.finish()
        await held.outcome
      },
    },
    {
      name: 'a signal that aborts in the turn of the call prevents the callback, although the lock was free',
      async run(t) {
        const [locks] = await instances(t, 1)
        const cancel = new AbortController()
        const requested = request(locks, 'name', { signal: cancel.signal })
        cancel.abort()
        await assert.rejects(requested.outcome, domException('AbortError'))
        assert.equal(requested.called, false)
        await t.until('the request left nothing behind', () =>
          locks.request('name', { ifAvailable: true }, (lock) => lock !== null),
        )
        assert.equal(requested.called, false)
      },
    },
    {
      name: 'a signal that aborts after the grant has no effect: the callback finishes and its result counts',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const cancel = new AbortController()
        const held = await hold(t, a, 'name', { signal: cancel.signal })
        cancel.abort(new Error('too late'))
        await t.sleep(20)
        assert.equal(await b.request('name', { ifAvailable: true }, (lock) => lock), null, 'it is still held')
        held.finish('finished')
        assert.equal(await held.outcome, 'finished')
        // The same holds for a request that waited first.
        const first = await hold(t, a, 'name')
        const late = new AbortController()
        const waited = request(b, 'name', { signal: late.signal })
        await pending(t, a, 1)
        first.finish()
        await t.settled('granted', waited.lock)
        late.abort()
        waited.finish('this too')
        assert.equal(await waited.outcome, 'this too')
      },
    },
    {
      name: 'a signal that aborts after the request has settled has no effect',
      async run(t) {
        const [locks] = await instances(t, 1)
        const cancel = new AbortController()
        assert.equal(await locks.request('name', { signal: cancel.signal }, () => 1), 1)
        cancel.abort()
        assert.equal(await locks.request('name', () => 2), 2)
      },
    },
    {
      name: 'one signal may end many requests at once, of several names, and does not affect others',
      async run(t) {
        const [a, b] = await instances(t, 2)
        const held = await Promise.all(['one', 'two'].map((name) => hold(t, a, name)))
        const cancel = new AbortController()
        const { signal } = cancel
        const doomed = ['one', 'two', 'one', 'two'].map((name) => request(b, name, { signal }))
        const other = request(a, 'one')
        await pending(t, a, 5)
        cancel.abort()
        for (const { outcome } of doomed) await assert.rejects(outcome, domException('AbortError'))
        await pending(t, a, 1)
        for (const { finish } of held) finish()
        await t.settled('the other one', other.lock)
        other.finish()
        await other.outcome
        assert.ok(doomed.every(({ called }) => !called))
      },
    },
  ],
)
