import { strict as assert } from 'node:assert'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { LockLostError } from '../../errors.js'
import type { Lock } from '../../core/lock.js'
import type { Locks } from '../../locks.js'
import type { TestContext } from '../test-context.js'
import type { Case } from '../case.js'
import { rejection } from './acquire.js'

const renewing: Case[] = [
  {
    name: 'a lock is renewed for as long as it is held',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      let renewals = 0
      a.on('renewed', () => renewals++)
      await t.unhurried(1_500, async (ttl) => {
        renewals = 0
        const name = t.name()
        const lock = await a.acquire(name, { ttl })
        const { signal } = lock
        await t.sleep(ttl * 1.25)
        const other = await b.tryAcquire(name)
        // The machine stood still for so long that the lease could not be renewed. Without renewals, no ttl is long enough.
        if (!lock.isHeld) t.tooSlow()
        assert.equal(signal.aborted, false)
        assert.equal(other, null)
        assert.ok(renewals >= 2, `${renewals} renewals`)
        assert.equal(await lock.release(), true)
      })
    },
  },
  {
    name: 'the shortest lock does not turn its heartbeat into a hot loop',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const lock = await locks.tryAcquire(t.name(), { ttl: 10 }).catch(() => null)
      await t.sleep(400)
      await lock?.release()
      assert.ok(store.calls.length < 250, `${store.calls.length} calls in 400 ms`)
    },
  },
  {
    name: 'times above 2^31 milliseconds do not elapse at once',
    async run(t) {
      const store = await t.faulty()
      const [a, b] = [await t.locks({}, store), await t.locks()]
      const name = t.name()
      const ttl = Math.min(40 * 86_400_000, store.maxTtlMs ?? Number.POSITIVE_INFINITY)
      const lock = await a.acquire(name, { ttl, maxHold: '60d', wait: '50d' })
      const waiting = b.acquire(name, { wait: '40d' })
      const early = waiting.then(
        () => 'granted',
        () => 'timed out',
      )
      assert.equal(await Promise.race([early, t.sleep(100).then(() => 'still waiting')]), 'still waiting')
      assert.equal(lock.isHeld, true)
      assert.equal(lock.signal.aborted, false)
      assert.ok(store.calls.length < 5, `${store.calls.length} calls`)
      await lock.release()
      await (await t.settled('the waiter gets it', waiting)).release()
    },
  },
]

const extending: Case[] = [
  {
    name: 'extend() prolongs the lock, and later renewals use the new ttl',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const lock = await locks.acquire(t.name(), { ttl: t.longMs / 8 })
      const { fencingToken, holder } = lock
      const longer = t.longMs / 2
      await lock.extend(longer)
      assert.ok(lock.remainingMs > longer / 2 && lock.remainingMs <= longer, `${lock.remainingMs} ms`)
      assert.equal(lock.fencingToken, fencingToken)
      assert.equal(lock.holder, holder)
      assert.equal(lock.isHeld, true)
      store.reportPossibleLoss()
      await t.until('a renewal', () => renewedFor(store.calls, longer) >= 2)
      assert.equal(await lock.release(), true)
    },
  },
  {
    name: 'extend() keeps a lock without autoRenew beyond its first ttl',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      await t.unhurried(200, async (ttl) => {
        const name = t.name()
        const askedAt = t.now()
        const lock = await a.acquire(name, { ttl, autoRenew: false })
        const [extended] = await Promise.allSettled([lock.extend(t.longMs)])
        t.mustBeBefore(askedAt + ttl * 0.9)
        if (extended.status === 'rejected') throw extended.reason
        await t.sleep(ttl + 50)
        assert.equal(lock.isHeld, true)
        assert.equal(await b.tryAcquire(name), null)
      })
    },
  },
  {
    name: 'extend() of a lost or released lock rejects with LockLostError',
    async run(t) {
      const locks = await t.locks()
      const released = await locks.acquire(t.name())
      await released.release()
      assert.ok((await rejection(released.extend('10s'))) instanceof LockLostError)
      const expired = await locks.acquire(t.name(), { ttl: 300, autoRenew: false })
      await t.until('it ends', () => !expired.isHeld)
      assert.ok((await rejection(expired.extend('10s'))) instanceof LockLostError)
    },
  },
]

const releasing: Case[] = [
  {
    name: 'release() returns true if the lock was held until then, and repeats its answer',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name)
      const [first, second] = await Promise.all([lock.release(), lock.release()])
      assert.deepEqual([first, second], [true, true])
      const next = await b.acquire(name)
      assert.equal(await lock.release(), true, 'the answer of the first call')
      assert.equal(next.isHeld, true)
      assert.equal(await a.tryAcquire(name), null, 'the next holder is not affected')
    },
  },
  {
    name: 'a released lock is not held: isHeld, assertHeld() and remainingMs report it at once',
    async run(t) {
      const locks = await t.locks()
      const lock = await locks.acquire(t.name())
      const releasing = lock.release()
      assert.equal(lock.isHeld, false)
      assert.equal(lock.remainingMs, 0)
      assert.throws(
        () => lock.assertHeld(),
        (error) => error instanceof LockLostError && error.why === 'released',
      )
      await releasing
    },
  },
  {
    name: 'release() of an expired lock returns false and does not free the next holder',
    async run(t) {
      const [a, b, c] = [await t.locks(), await t.locks(), await t.locks()]
      const name = t.name()
      const expired = await a.acquire(name, { ttl: 300, autoRenew: false })
      const successor = await b.acquire(name)
      assert.equal(await expired.release(), false)
      assert.equal(successor.isHeld, true)
      assert.equal(await c.tryAcquire(name), null)
      assert.equal(await successor.release(), true)
    },
  },
  {
    name: 'a lock is released at the end of its block (Symbol.asyncDispose)',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      {
        await using lock = await a.acquire(name)
        assert.equal(lock.isHeld, true)
        assert.equal(await b.tryAcquire(name), null)
      }
      assert.ok(await b.tryAcquire(name))
    },
  },
  {
    name: 'releaseAll() releases everything that this instance holds, and nothing else',
    async run(t) {
      const store = await t.client()
      const [a, b] = [await t.locks({}, store), await t.locks({}, store)]
      const names = [t.name(), t.name(), t.name()]
      const mine = await Promise.all(names.slice(0, 2).map((name) => a.acquire(name)))
      const theirs = await b.acquire(names[2] as string)
      const [{ signal }] = mine as [Lock, Lock]
      await a.releaseAll()
      assert.equal(signal.aborted, true, 'work under a lock that it did not release itself is told')
      assert.equal(theirs.signal.aborted, false)
      assert.deepEqual(
        mine.map((lock) => lock.isHeld),
        [false, false],
      )
      assert.equal(theirs.isHeld, true)
      for (const name of names.slice(0, 2)) assert.ok(await b.tryAcquire(name))
      assert.equal(await a.tryAcquire(names[2] as string), null)
    },
  },
]

const collecting: Case[] = [
  {
    name: 'a lock that no code can release any more is not renewed, and is announced as abandoned',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      await t.unhurried(1_000, async (ttl) => {
        const name = t.name()
        const noticed = await abandon(t, a, name, ttl)
        await noticed()
        await t.until('another caller gets it', () => b.tryAcquire(name))
      })
    },
  },
  {
    name: 'a renewal in flight does not keep an abandoned lock alive',
    async run(t) {
      const store = await t.faulty()
      const [a, b] = [await t.locks({}, store), await t.locks()]
      await t.unhurried(1_000, async (ttl) => {
        const name = t.name()
        const slow = store.inject({ effect: 'delay-reply', on: 'renew', times: 1 })
        const noticed = await abandon(t, a, name, ttl)
        slow.lift()
        await noticed()
        await t.until('another caller gets it', () => b.tryAcquire(name))
      })
    },
  },
]

/** Acquires a lock and drops it until the garbage collector has taken it, then waits for the event. */
async function abandon(t: TestContext, locks: Locks, name: string, ttl: number): Promise<() => Promise<void>> {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const received: string[] = []
  for (const event of ['abandoned', 'lost'] as const) {
    locks.on(event, (facts) => facts.name === name && received.push(event))
  }
  const forgotten = await locks.acquire(name, { ttl }).then((lock) => new WeakRef(lock))
  await t.until('no code holds it any more', () => {
    collect()
    return forgotten.deref() === undefined
  })
  return async () => {
    await t.until('it is announced', () => received.length > 0)
    // The machine stopped for so long that the lease expired before it was renewed.
    if (received.includes('lost')) t.tooSlow()
  }
}

function renewedFor(calls: readonly { call: string; items: readonly unknown[] }[], ttlMs: number): number {
  const renewals = calls.filter(({ call }) => call === 'renew').flatMap(({ items }) => items as { ttlMs: number }[])
  return renewals.filter((item) => item.ttlMs === ttlMs).length
}

export const holdCases: Case[] = [...renewing, ...extending, ...releasing, ...collecting]
