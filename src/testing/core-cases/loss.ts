import { strict as assert } from 'node:assert'
import type { Lock } from '../../core/lock.js'
import { LockLostError } from '../../errors.js'
import { type Case, needing } from '../case.js'

/**
 * RAN_OUT: why a lease may end that ran out. On a slow machine the grant may be learned of late, so that it asks for more
 * time, and a stall may be why it did not get it.
 */
export const RAN_OUT: readonly string[] = ['expired', 'blocked', 'frozen', 'unreachable']

const deadlines: Case[] = [
  {
    name: 'a lock that was not renewed is lost before another caller can hold it',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lost: LockLostError[] = []
      a.on('lost', ({ error }) => lost.push(error))
      const lock = await a.acquire(name, { ttl: 200, autoRenew: false })
      const { signal } = lock
      const successor = await t.until('another caller gets it', () => b.tryAcquire(name))
      // The first check after the other grant, before any timer can have run.
      assert.equal(lock.isHeld, false)
      assert.equal(lock.signal.aborted, true)
      assert.throws(() => lock.assertHeld(), LockLostError)
      assert.ok(signal.reason instanceof LockLostError, String(signal.reason))
      assert.ok(RAN_OUT.includes(signal.reason.why), signal.reason.why)
      assert.equal(signal.reason.lock, name)
      assert.equal(lost.length, 1)
      assert.equal(await lock.release(), false)
      assert.equal(successor.isHeld, true)
    },
  },
  {
    name: 'the first check after a blocked event loop reports the loss',
    async run(t) {
      const locks = await t.locks()
      const asking = Array.from({ length: 4 }, () => locks.acquire(t.name(), { ttl: 200 }))
      const [first, second, third, fourth] = (await Promise.all(asking)) as [Lock, Lock, Lock, Lock]
      const signals = [first, second, third, fourth].map((lock) => lock.signal)
      const until = t.now() + 230
      while (t.now() < until);
      assert.equal(first.isHeld, false)
      assert.throws(() => second.assertHeld(), LockLostError)
      assert.equal(third.signal.aborted, true)
      assert.equal(fourth.remainingMs, 0)
      await t.until('signals taken earlier abort when the event loop turns', () =>
        signals.every((signal) => signal.aborted),
      )
    },
  },
  {
    name: 'the signal aborts by itself when the time has passed',
    async run(t) {
      const locks = await t.locks()
      const lock = await locks.acquire(t.name(), { ttl: 200, autoRenew: false })
      const { signal } = lock
      await t.settled('it aborts', new Promise((resolve) => signal.addEventListener('abort', resolve)))
      assert.ok(signal.reason instanceof LockLostError)
    },
  },
  {
    name: 'maxHold ends a lock although its renewals succeed, and lets waiters in',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      await t.unhurried(400, async (maxHold) => {
        const name = t.name()
        const lock = await a.acquire(name, { maxHold })
        const successor = await t.settled('another caller gets it', b.acquire(name))
        assert.equal(lock.isHeld, false)
        assert.ok(lock.signal.reason instanceof LockLostError)
        assert.ok(successor.fencingToken > lock.fencingToken)
        // The renewal that asks for the last of maxHold was not answered in time. If it never is, no time is long enough.
        if (RAN_OUT.includes(lock.signal.reason.why)) t.tooSlow()
        assert.equal(lock.signal.reason.why, 'max-hold')
      })
    },
  },
  {
    name: 'renewals do not prolong a lock beyond maxHold',
    async run(t) {
      const store = await t.faulty()
      const [a, b] = [await t.locks({}, store), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name, { ttl: 600, maxHold: 1_200 })
      const successor = await t.settled('another caller gets it', b.acquire(name))
      assert.equal(lock.isHeld, false)
      assert.equal(successor.isHeld, true)
    },
  },
]

const forced: Case[] = [
  {
    name: 'forceRelease() returns the holder it removed, and that holder is told',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      // A store that does not tell is asked by the heartbeat, every two seconds.
      const lock = await a.acquire(name, { ttl: 6_000 })
      const { signal } = lock
      const cut = await b.forceRelease(name)
      assert.deepEqual(
        cut.map((view) => [view.name, view.holder]),
        [[name, lock.holder]],
      )
      await t.until('its holder is told', () => signal.aborted)
      assert.ok(signal.reason instanceof LockLostError, String(signal.reason))
      // A store that does not tell, on a machine that is too busy to renew: it ran out first.
      assert.ok(['revoked', 'gone', ...RAN_OUT].includes(signal.reason.why), signal.reason.why)
      assert.equal(lock.isHeld, false)
      assert.equal(await lock.release(), false)
      assert.ok(await b.tryAcquire(name))
    },
  },
  {
    name: 'forceRelease() lets the next waiter in',
    async run(t) {
      const [a, b, c] = [await t.locks(), await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name)
      const waiting = b.acquire(name, { wait: 'forever' })
      await t.sleep(50)
      await c.forceRelease(name)
      const next = await t.settled('the next waiter gets it', waiting)
      assert.ok(next.fencingToken > lock.fencingToken)
    },
  },
]

export const lossCases: Case[] = [...deadlines, ...needing(['revoke'], forced)]
