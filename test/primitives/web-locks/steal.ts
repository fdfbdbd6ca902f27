/** Stealing a lock: from any holder, before all waiters. */
import { strict as assert } from 'node:assert'
import { LockLostError } from '../../../src/index.js'
import { type Case, needing } from '../../../src/testing/case.js'
import { domException, hold, instances, pending, request } from './requests.js'

/**
 * TTL: in stores other than memory the stolen holder may learn of the steal with its next renewal only, after a third
 * of this.
 */
const TTL = 3_000

export const stealCases: Case[] = needing(
  ['queue', 'revoke'],
  [
    {
      name: 'a steal of a free lock is a plain request',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const held = await hold(t, a, 'name', { steal: true })
        assert.deepEqual({ ...(await held.lock) }, { name: 'name', mode: 'exclusive' })
        assert.equal(await b.request('name', { ifAvailable: true }, (lock) => lock), null)
        held.finish('mine')
        assert.equal(await held.outcome, 'mine')
      },
    },
    {
      name: 'the stolen request rejects with an AbortError whose cause is the loss, and its result no longer counts',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const stolen = await hold(t, a, 'name')
        const stealing = await hold(t, b, 'name', { steal: true })
        const rejected = assert.rejects(stolen.outcome, (error) => {
          assert.ok(domException('AbortError')(error))
          const { cause } = error as DOMException
          assert.ok(cause instanceof LockLostError)
          assert.equal(cause.lock, 'name')
          return true
        })
        await t.settled('it is told', rejected)
        stolen.finish('too late')
        assert.deepEqual(
          (await b.query()).held.map(({ clientId }) => clientId),
          [b.clientId],
          'the end of its callback does not free the lock of the stealing request',
        )
        stealing.finish('mine')
        assert.equal(await stealing.outcome, 'mine')
      },
    },
    {
      name: 'a stolen callback that ends before it is told is rejected all the same',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const stolen = await hold(t, a, 'name')
        const stealing = await hold(t, b, 'name', { steal: true })
        stolen.finish('as if nothing had happened')
        await t.settled('it is told', assert.rejects(stolen.outcome, domException('AbortError')))
        stealing.finish()
        await stealing.outcome
        // A callback that fails by itself rejects with its own error.
        const failing = await hold(t, a, 'name')
        const second = await hold(t, b, 'name', { steal: true })
        failing.fail(new Error('mine'))
        await t.settled('it is told', assert.rejects(failing.outcome))
        second.finish()
        await second.outcome
      },
    },
    {
      name: 'a steal takes the lock from all shared holders',
      async run(t) {
        const [a, b, c] = await instances(t, 3, TTL)
        const stolen = await Promise.all([a, b, a].map((locks) => hold(t, locks, 'name', { mode: 'shared' })))
        const stealing = await hold(t, c, 'name', { steal: true })
        assert.deepEqual(
          (await a.query()).held.map(({ mode, clientId }) => [mode, clientId]),
          [['exclusive', c.clientId]],
        )
        for (const { outcome } of stolen) {
          await t.settled('it is told', assert.rejects(outcome, domException('AbortError')))
        }
        stealing.finish()
        await stealing.outcome
      },
    },
    {
      name: 'a stealing request overtakes all waiters, which keep their queue entries',
      async run(t) {
        const [a, b, c] = await instances(t, 3, TTL)
        const stolen = await hold(t, a, 'name')
        const first = request(b, 'name', { mode: 'shared' })
        await pending(t, a, 1)
        const second = request(c, 'name')
        await pending(t, a, 2)
        const stealing = await hold(t, c, 'name', { steal: true })
        await t.settled('the stolen request is told', assert.rejects(stolen.outcome, domException('AbortError')))
        assert.deepEqual([first.called, second.called], [false, false])
        assert.deepEqual(
          (await a.query()).pending.map(({ mode }) => mode),
          ['shared', 'exclusive'],
        )
        stealing.finish()
        await t.settled('the first in the queue', first.lock)
        assert.equal(second.called, false)
        first.finish()
        await t.settled('the second in the queue', second.lock)
        second.finish()
        await Promise.all([first.outcome, second.outcome])
      },
    },
    {
      name: 'a stealing request can be stolen from by the next one',
      async run(t) {
        const [a, b, c] = await instances(t, 3, TTL)
        const held = [await hold(t, a, 'name')]
        for (const locks of [b, c, a]) held.push(await hold(t, locks, 'name', { steal: true }))
        const last = held.pop()
        for (const { outcome } of held) {
          await t.settled('it is told', assert.rejects(outcome, domException('AbortError')))
        }
        last?.finish('the last one')
        assert.equal(await last?.outcome, 'the last one')
      },
    },
    {
      name: 'a steal does not affect other names',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const mine = await hold(t, a, 'mine')
        const stealing = await hold(t, b, 'yours', { steal: true })
        stealing.finish()
        await stealing.outcome
        mine.finish('undisturbed')
        assert.equal(await mine.outcome, 'undisturbed')
      },
    },
    {
      name: 'a lock of acquire() can be stolen too, and a request can be revoked',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const lock = await a.acquire('name')
        const stealing = await hold(t, b, 'name', { steal: true })
        await t.until('the holder is told', () => lock.signal.aborted)
        assert.ok(!lock.isHeld)
        const [cut] = await a.forceRelease('name')
        assert.equal(cut?.mode, 'exclusive')
        await t.settled('the stealing request is told', assert.rejects(stealing.outcome, domException('AbortError')))
      },
    },
  ],
)

/** In memory everything happens in one turn of the event loop, so that the order is exact. */
export const stealAtOnce: Case[] = [
  {
    name: 'a request that is stolen in memory rejects before the callback of the stealing request is called',
    async run(t) {
      const [a, b] = await instances(t, 2)
      const order: string[] = []
      const stolen = await hold(t, a, 'name')
      const rejected = stolen.outcome.catch(() => order.push('stolen'))
      await b.request('name', { steal: true }, () => order.push('stealing'))
      await rejected
      assert.deepEqual(order, ['stolen', 'stealing'])
    },
  },
  {
    name: 'a request that is stolen between the grant and its callback rejects, and the callback is not called',
    async run(t) {
      const [a, b] = await instances(t, 2)
      const stolen = request(a, 'name')
      const stealing = request(b, 'name', { steal: true })
      await t.settled('the stealing request has it', stealing.lock)
      await assert.rejects(stolen.outcome, domException('AbortError'))
      assert.equal(stolen.called, false)
      stealing.finish()
      await stealing.outcome
    },
  },
]
