import { strict as assert } from 'node:assert'
import type { Lock } from '../../core/lock.js'
import { LockLostError } from '../../errors.js'
import { type Case, needing } from '../case.js'

const deadlines: Case[] = [
  {
    name: 'a lock that was not renewed is lost before anybody else can hold it',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lost: LockLostError[] = []
      a.on('lost', ({ error }) => lost.push(error))
      const lock = await a.acquire(name, { ttl: 200, autoRenew: false })
      const { signal } = lock
      const heir = await t.until('another gets it', () => b.tryAcquire(name))
      // The very first look after the other's grant, before any timer had its turn.
      assert.equal(lock.isHeld, false)
      assert.equal(lock.signal.aborted, true)
      assert.throws(() => lock.assertHeld(), LockLostError)
      assert.ok(signal.reason instanceof LockLostError, String(signal.reason))
      assert.equal(signal.reason.why, 'expired')
      assert.equal(signal.reason.lock, name)
      assert.equal(lost.length, 1)
      assert.equal(await lock.release(), false)
      assert.equal(heir.isHeld, true)
    },
  },
  {
    name: 'after a busy stretch past the deadline the very first check tells the truth',
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
      await t.until('signals taken earlier abort when the loop turns', () => signals.every((signal) => signal.aborted))
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
    name: 'maxHold ends a lock although its renewals work, and lets the others in',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name, { maxHold: 400 })
      const heir = await t.settled('another gets it', b.acquire(name))
      assert.equal(lock.isHeld, false)
      assert.ok(lock.signal.reason instanceof LockLostError)
      assert.equal(lock.signal.reason.why, 'max-hold')
      assert.ok(heir.fencingToken > lock.fencingToken)
    },
  },
  {
    name: 'renewals do not carry a lock past maxHold',
    async run(t) {
      const store = await t.faulty()
      const [a, b] = [await t.locks({}, store), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name, { ttl: 600, maxHold: 1_200 })
      const heir = await t.settled('another gets it', b.acquire(name))
      assert.equal(lock.isHeld, false)
      assert.equal(heir.isHeld, true)
    },
  },
]

const forced: Case[] = [
  {
    name: 'a lock taken away by force is lost: its holder is told, and forceRelease says whom it cut off',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name, { ttl: 1_500 })
      const { signal } = lock
      const cut = await b.forceRelease(name)
      assert.deepEqual(
        cut.map((view) => [view.name, view.holder]),
        [[name, lock.holder]],
      )
      await t.until('its holder is told', () => signal.aborted)
      assert.ok(signal.reason instanceof LockLostError, String(signal.reason))
      assert.ok(['revoked', 'gone', 'expired'].includes(signal.reason.why), signal.reason.why)
      assert.equal(lock.isHeld, false)
      assert.equal(await lock.release(), false)
      assert.ok(await b.tryAcquire(name))
    },
  },
  {
    name: 'forceRelease lets the next in line in',
    async run(t) {
      const [a, b, c] = [await t.locks(), await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name)
      const waiting = b.acquire(name, { wait: 'forever' })
      await t.sleep(50)
      await c.forceRelease(name)
      const next = await t.settled('the next gets it', waiting)
      assert.ok(next.fencingToken > lock.fencingToken)
    },
  },
]

export const lossCases: Case[] = [...deadlines, ...needing(['revoke'], forced)]
