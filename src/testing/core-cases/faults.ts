import { strict as assert } from 'node:assert'
import { LockLostError, StoreUnavailableError } from '../../errors.js'
import { batchSize } from '../../core/batch-size.js'
import type { Lock } from '../../core/lock.js'
import type { Case } from '../case.js'
import { rejection } from './acquire.js'
import { each } from './each.js'

const acquiring: Case[] = [
  {
    name: 'an attempt whose reply was lost is undone: the lock is not blocked for its ttl',
    async run(t) {
      const other = await t.locks()
      await each(['break-reply', 'lose-reply', 'lose-call'], async (effect) => {
        const locks = await t.locks({}, await t.faulty({ effect, on: 'acquire', times: 1 }))
        const name = t.name()
        const error = await t.settled('it rejects', rejection(locks.tryAcquire(name)))
        assert.ok(error instanceof StoreUnavailableError, String(error))
        await t.until(`${effect}: the lock is free`, () => other.tryAcquire(name))
      })
    },
  },
  {
    name: 'one lost reply does not fail an uncontended acquire()',
    async run(t) {
      await each(['break-reply', 'break-call', 'lose-reply', 'unknown'], async (effect) => {
        const store = await t.faulty({ effect, on: 'acquire', times: 1 })
        const locks = await t.locks({}, store)
        const lock = await t.settled('the caller gets it', locks.acquire(t.name()))
        assert.equal(lock.isHeld, true)
        assert.equal(await lock.release(), true)
      })
    },
  },
  {
    name: 'a late reply does not take away what the next request was granted',
    async run(t) {
      await each(['delay-call', 'delay-reply'], async (effect) => {
        const store = await t.faulty()
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const slow = store.inject({ effect, on: 'acquire', times: 1 })
        const lock = await t.settled('the next request is answered', a.acquire(name))
        slow.lift()
        await t.sleep(100)
        assert.equal(await b.tryAcquire(name), null, `${effect}: it is held`)
        assert.equal(lock.isHeld, true)
        assert.equal(await lock.release(), true, `${effect}: it was held until this release`)
      })
    },
  },
  {
    name: 'an attempt whose clean-up fails is cleaned up later',
    async run(t) {
      const store = await t.faulty(
        { effect: 'break-reply', on: 'acquire', times: 1 },
        { effect: 'break-call', on: 'release', times: 2 },
      )
      const [a, b] = [await t.locks({}, store), await t.locks()]
      const name = t.name()
      assert.ok((await rejection(a.tryAcquire(name))) instanceof StoreUnavailableError)
      await t.until('the lock is free', () => b.tryAcquire(name))
    },
  },
  {
    name: 'a grant that arrived after its ttl is not returned as held',
    async run(t) {
      const slow = { effect: 'delay-reply', on: 'acquire', ms: 300, times: 1 } as const
      const store = await t.faulty(slow)
      const [a, b] = [await t.locks({}, store), await t.locks()]
      const name = t.name()
      const error = await rejection(a.tryAcquire(name, { ttl: 200 }))
      assert.ok(error instanceof StoreUnavailableError, String(error))
      await t.until('the lock is free', () => b.tryAcquire(name))
      store.inject(slow)
      const asked = (): number => store.calls.filter(({ call }) => call === 'acquire').length
      const before = asked()
      const lock = await t.settled('the caller gets it in the end', a.acquire(t.name(), { ttl: 200 }))
      assert.ok(asked() >= before + 2, 'the first grant came too late to be used')
      await lock.release()
    },
  },
  {
    name: 'a store that never answers is reported as unavailable, and the wait ends in time',
    async run(t) {
      const store = await t.faulty({ effect: 'lose-call' })
      const locks = await t.locks({}, store)
      const tried = rejection(locks.tryAcquire(t.name()))
      const waited = rejection(locks.acquire(t.name(), { wait: 300 }))
      assert.ok((await t.settled('tryAcquire ends', tried)) instanceof StoreUnavailableError)
      assert.ok((await t.settled('acquire ends', waited)) instanceof StoreUnavailableError)
    },
  },
]

const renewing: Case[] = [
  {
    name: 'a renewal that hangs does not delay the loss of the lock',
    async run(t) {
      const hangs = (effect: 'lose-call' | 'lose-reply') => async (ttl: number) => {
        const store = await t.faulty()
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const lock = await a.acquire(name, { ttl })
        const { signal } = lock
        const hang = store.inject({ effect, on: 'renew' })
        store.reportPossibleLoss()
        await t.until('it is lost', () => signal.aborted)
        if (hang.struck === 0) t.tooSlow()
        assert.equal(lock.isHeld, false)
        assert.ok(signal.reason instanceof LockLostError)
        await t.until('another caller gets it', () => b.tryAcquire(name))
      }
      await each(['lose-call', 'lose-reply'], (effect) => t.unhurried(600, hangs(effect)))
    },
  },
  {
    name: 'while no renewal succeeds, the lock is lost before another caller can hold it',
    async run(t) {
      await t.unhurried(400, async (ttl) => {
        const store = await t.faulty({ effect: 'break-call', on: 'renew' })
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const lock = await a.acquire(name, { ttl })
        store.reportPossibleLoss()
        await t.until('another caller gets it', () => b.tryAcquire(name))
        assert.equal(lock.isHeld, false)
        assert.equal(lock.signal.aborted, true)
        assert.ok(store.calls.length < 120, `not in a hot loop: ${store.calls.length} calls`)
        // The machine stood still until the lease was over, or the core does not try again: then no ttl is long enough.
        if (store.calls.filter(({ call }) => call === 'renew').length <= 1) t.tooSlow()
      })
    },
  },
  {
    name: 'one failed renewal does not end the lock while there is time left',
    async run(t) {
      await each(['break-call', 'break-reply', 'unknown'], async (effect) => {
        const store = await t.faulty({ effect, on: 'renew', times: 1 })
        const locks = await t.locks({}, store)
        const errors: string[] = []
        locks.on('error', ({ doing }) => errors.push(doing))
        const lock = await locks.acquire(t.name(), { ttl: 9_000 })
        const { signal } = lock
        const before = lock.expiresAt.getTime()
        store.reportPossibleLoss()
        await t.until('a later renewal succeeds', () => lock.expiresAt.getTime() > before + 10)
        assert.equal(signal.aborted, false)
        assert.equal(lock.isHeld, true)
        assert.deepEqual(errors, ['renew'])
        await lock.release()
      })
    },
  },
  {
    name: 'a possible loss does not prolong a lock without autoRenew, and detects that it is gone',
    async run(t) {
      const ends = (failures: 0 | 1) => async (ttl: number) => {
        const store = await t.faulty({ effect: 'break-call', on: 'renew', times: failures })
        const [locks, other] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const lock = await locks.acquire(name, { ttl, autoRenew: false })
        const before = expiryOf(lock)
        await t.sleep(ttl / 4)
        store.reportPossibleLoss()
        const asked = (): boolean => store.calls.filter(({ call }) => call === 'renew').length > failures
        await t.until('the store was asked, or the time has passed', () => asked() || !lock.isHeld)
        if (!asked()) t.tooSlow()
        await t.until('another caller gets it', () => other.tryAcquire(name))
        assert.equal(lock.isHeld, false)
        assert.ok(Math.abs(expiryOf(lock) - before) < ttl / 8, 'it ended at the time it had reported')
      }
      await each([0, 1], (failures) => t.unhurried(400, ends(failures)))
    },
  },
  {
    name: 'a renewal in flight does not outlive the release',
    async run(t) {
      for (const effect of ['delay-call', 'delay-reply'] as const) {
        const store = await t.faulty()
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const lock = await a.acquire(name, { ttl: t.longMs / 2 })
        const slow = store.inject({ effect, on: 'renew' })
        store.reportPossibleLoss()
        await slow.strikes()
        assert.equal(await lock.release(), true)
        const next = await b.acquire(name)
        slow.lift()
        const { length } = store.calls
        await t.sleep(60)
        assert.equal(lock.isHeld, false)
        assert.equal(next.isHeld, true)
        assert.equal(await a.tryAcquire(name), null)
        const later = store.calls.slice(length).filter(({ call }) => call === 'renew')
        assert.deepEqual(later, [], 'the heartbeat has ended')
        await next.release()
      }
    },
  },
  {
    name: 'a possible loss renews every lease at once, and a lease that is gone is lost',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const names = [t.name(), t.name()] as const
      const [kept, taken] = [await locks.acquire(names[0]), await locks.acquire(names[1])]
      const { signal } = taken
      await (await t.client()).release([{ key: `lock:${names[1]}`, owner: taken.holder }])
      store.reportPossibleLoss()
      await t.until('the loss is noticed', () => signal.aborted)
      assert.equal(signal.reason.why, 'gone')
      assert.equal(kept.isHeld, true)
    },
  },
  {
    name: 'a hundred locks are renewed together, not one by one',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const base = t.name()
      const held = await Promise.all(Array.from({ length: 100 }, (_, i) => locks.acquire(`{${base}}:${i}`)))
      const asked = store.calls.filter(({ call }) => call === 'acquire')
      store.reportPossibleLoss()
      const renewals = () => store.calls.filter(({ call }) => call === 'renew')
      const items = () => renewals().reduce((sum, { items }) => sum + items.length, 0)
      await t.until('all are renewed', () => items() >= 100)
      const most = (call: 'acquire' | 'renew'): number => 100 / Math.min(batchSize(store, call), 100) + 3
      assert.ok(asked.length <= most('acquire'), `acquired in ${asked.length} calls`)
      assert.ok(renewals().length <= most('renew'), `renewed in ${renewals().length} calls`)
      await Promise.all(held.map((lock) => lock.release()))
    },
  },
]

const releasing: Case[] = [
  {
    name: 'a release that is not answered settles, and is retried later',
    async run(t) {
      await each(['lose-call', 'break-call', 'lose-reply', 'unknown'], async (effect) => {
        const store = await t.faulty({ effect, on: 'release', times: 1 })
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const lock = await a.acquire(name)
        await t.settled('release() settles', lock.release())
        assert.equal(lock.isHeld, false)
        await t.until(`${effect}: the lock is free`, () => b.tryAcquire(name))
      })
    },
  },
  {
    name: 'losses and failures in the background never become an unhandled rejection',
    async run(t) {
      const unhandled: unknown[] = []
      const note = (error: unknown): number => unhandled.push(error)
      process.on('unhandledRejection', note)
      t.afterwards(() => process.off('unhandledRejection', note))
      const store = await t.faulty({ effect: 'break-call', on: ['renew', 'release'] })
      const locks = await t.locks({}, store)
      const lock = await locks.acquire(t.name(), { ttl: 150 })
      const { signal } = lock
      void locks.withLock(t.name(), () => t.sleep(300), { ttl: 150 }).catch(() => {})
      await t.until('it is lost', () => signal.aborted)
      await lock.release()
      await t.sleep(250)
      assert.deepEqual(unhandled, [])
    },
  },
]

/** When the lock ends. It is read from two clocks: a process that stands still in between reads a time too early. */
function expiryOf(lock: Lock): number {
  return Math.max(...[1, 2, 3].map(() => lock.expiresAt.getTime()))
}

export const faultCases: Case[] = [...acquiring, ...renewing, ...releasing]
