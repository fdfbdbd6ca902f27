import { strict as assert } from 'node:assert'
import { ClosedError } from '../../errors.js'
import type { TestContext } from '../test-context.js'
import type { Case } from '../case.js'
import type { FaultEffect, FaultyStore } from '../faulty.js'
import { rejection } from './acquire.js'
import { each } from './each.js'

/** Waits until the store may be closed: no further calls are sent, and those in flight have been answered. */
async function gone(t: TestContext, store: FaultyStore): Promise<void> {
  store.inject({ effect: 'break-call' })
  await t.sleep(150)
}

export const closeCases: Case[] = [
  {
    name: 'after close() nothing is granted any more, and every waiter is rejected',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const held = await a.acquire(name)
      const waiting = rejection(b.acquire(name, { wait: 'forever' }))
      await t.sleep(30)
      await b.close()
      assert.ok((await t.settled('it rejects', waiting)) instanceof ClosedError)
      assert.ok((await rejection(b.acquire(t.name()))) instanceof ClosedError)
      assert.ok((await rejection(b.tryAcquire(t.name()))) instanceof ClosedError)
      await held.release()
      assert.ok(await t.until('the queue entry was removed', () => a.tryAcquire(name)))
    },
  },
  {
    name: 'close() aborts the work, renews its lock until it has ended, and then releases',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      let running = false
      let reason: unknown
      const work = a.withLock(
        name,
        async (lock) => {
          running = true
          await new Promise((resolve) => lock.signal.addEventListener('abort', resolve))
          reason = lock.signal.reason
          await t.sleep(50)
          assert.equal(lock.isHeld, true, 'still held while the work ends')
          assert.equal(await b.tryAcquire(name), null)
          return 'finished'
        },
        { ttl: '5s' },
      )
      await t.until('it runs', () => running)
      await t.settled('close ends', a.close({ grace: '8s' }))
      assert.equal(await work, 'finished')
      assert.ok(reason instanceof ClosedError, String(reason))
      assert.ok(await b.tryAcquire(name), 'it was released')
    },
  },
  {
    name: 'close() releases what is still held when the grace period is over',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name)
      await t.settled('close() settles', a.close({ grace: 50 }))
      assert.equal(lock.isHeld, false)
      assert.ok(await b.tryAcquire(name), 'it was released')
    },
  },
  {
    name: 'close() waits no longer than necessary, and closing twice has the effect of closing once',
    async run(t) {
      const locks = await t.locks()
      const lock = await locks.acquire(t.name())
      const closing = locks.close({ grace: '1h' })
      await lock.release()
      await t.settled('close() settles', closing)
      await t.settled('the second close() settles', locks.close())
    },
  },
  {
    name: 'close() leaves nothing behind of a request that is granted after it',
    async run(t) {
      const leavesNothing = async (way: 'acquire' | 'tryAcquire', effect: FaultEffect): Promise<void> => {
        const store = await t.faulty()
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const slow = store.inject({ effect, on: 'acquire', ms: 100, times: 1 })
        const asked = rejection(a[way](name))
        await slow.strikes()
        await t.settled('close() settles', a.close())
        await gone(t, store)
        assert.ok((await t.settled('it rejects', asked)) instanceof ClosedError)
        const lock = await b.tryAcquire(name)
        assert.ok(lock, `${effect}, ${way}: it is free`)
        await lock.release()
      }
      await each(['acquire', 'tryAcquire'], (way) =>
        each(['delay-call', 'delay-reply'], (effect) => leavesNothing(way, effect)),
      )
    },
  },
  {
    name: 'close() leaves no queue entry behind of a request that is answered after it',
    needs: ['queue'],
    async run(t) {
      const store = await t.faulty()
      const [a, b] = [await t.locks({}, store), await t.locks()]
      const name = t.name()
      const held = await b.acquire(name)
      const slow = store.inject({ effect: 'delay-call', on: 'acquire', ms: 100, times: 1 })
      const asked = rejection(a.acquire(name))
      await slow.strikes()
      await t.settled('close() settles', a.close())
      await gone(t, store)
      assert.ok((await t.settled('it rejects', asked)) instanceof ClosedError)
      assert.deepEqual(await b.waiters(name), [])
      await held.release()
    },
  },
]
