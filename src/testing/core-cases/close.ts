import { strict as assert } from 'node:assert'
import { ClosedError } from '../../errors.js'
import type { Case } from '../case.js'
import { rejection } from './acquire.js'

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
]
