import { strict as assert } from 'node:assert'
import { ClosedError } from '../../errors.js'
import type { Bench } from '../bench.js'
import type { Case } from '../case.js'
import type { FaultyStore } from '../faulty.js'
import { rejection } from './acquire.js'

/** What may be closed once the locks are: nothing goes through any more, and what was under way has arrived. */
async function gone(t: Bench, store: FaultyStore): Promise<void> {
  store.inject({ effect: 'break-call' })
  await t.sleep(150)
}

export const closeCases: Case[] = [
  {
    name: 'after close nothing is granted any more, and whoever waits is told',
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
      assert.ok(await t.until('the place was given up', () => a.tryAcquire(name)))
    },
  },
  {
    name: 'close tells the work to end, renews while it does so, and then releases',
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
    name: 'when the grace is over close releases what is still held',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name)
      await t.settled('close ends', a.close({ grace: 50 }))
      assert.equal(lock.isHeld, false)
      assert.ok(await b.tryAcquire(name), 'it was released')
    },
  },
  {
    name: 'close waits no longer than it has to, and closing twice is closing once',
    async run(t) {
      const locks = await t.locks()
      const lock = await locks.acquire(t.name())
      const closing = locks.close({ grace: '1h' })
      await lock.release()
      await t.settled('close ends', closing)
      await t.settled('so does the second', locks.close())
    },
  },
  {
    name: 'close leaves nothing behind of what was asked and is answered only then',
    async run(t) {
      for (const effect of ['delay-call', 'delay-reply'] as const) {
        for (const way of ['acquire', 'tryAcquire'] as const) {
          const store = await t.faulty()
          const [a, b] = [await t.locks({}, store), await t.locks()]
          const name = t.name()
          const slow = store.inject({ effect, on: 'acquire', ms: 100, times: 1 })
          const asked = rejection(a[way](name))
          await slow.strikes()
          await t.settled('close ends', a.close())
          await gone(t, store)
          assert.ok((await t.settled('it rejects', asked)) instanceof ClosedError)
          const lock = await b.tryAcquire(name)
          assert.ok(lock, `${effect}, ${way}: it is free`)
          await lock.release()
        }
      }
    },
  },
  {
    name: 'close leaves no place in line behind of what was asked and is answered only then',
    needs: ['line'],
    async run(t) {
      const store = await t.faulty()
      const [a, b] = [await t.locks({}, store), await t.locks()]
      const name = t.name()
      const held = await b.acquire(name)
      const slow = store.inject({ effect: 'delay-call', on: 'acquire', ms: 100, times: 1 })
      const asked = rejection(a.acquire(name))
      await slow.strikes()
      await t.settled('close ends', a.close())
      await gone(t, store)
      assert.ok((await t.settled('it rejects', asked)) instanceof ClosedError)
      assert.deepEqual(await b.waiters(name), [])
      await held.release()
    },
  },
]
