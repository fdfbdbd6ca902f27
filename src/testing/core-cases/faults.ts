import { strict as assert } from 'node:assert'
import { LockLostError, StoreUnavailableError } from '../../errors.js'
import type { Case } from '../case.js'
import { rejection } from './acquire.js'

const acquiring: Case[] = [
  {
    name: 'an attempt whose reply was lost is cleaned up: the lock is not blocked until its ttl',
    async run(t) {
      const other = await t.locks()
      for (const effect of ['break-reply', 'lose-reply', 'lose-call'] as const) {
        const locks = await t.locks({}, await t.faulty({ effect, on: 'acquire', times: 1 }))
        const name = t.name()
        const error = await t.settled('it rejects', rejection(locks.tryAcquire(name)))
        assert.ok(error instanceof StoreUnavailableError, String(error))
        await t.until(`${effect}: the lock is free`, () => other.tryAcquire(name))
      }
    },
  },
  {
    name: 'one lost reply does not make an uncontended acquire fail',
    async run(t) {
      for (const effect of ['break-reply', 'break-call', 'lose-reply', 'unknown'] as const) {
        const store = await t.faulty({ effect, on: 'acquire', times: 1 })
        const locks = await t.locks({}, store)
        const lock = await t.settled('it gets it', locks.acquire(t.name()))
        assert.equal(lock.isHeld, true)
        assert.equal(await lock.release(), true)
      }
    },
  },
  {
    name: 'a reply that comes too late does not take away what the next question was granted',
    async run(t) {
      for (const effect of ['delay-call', 'delay-reply'] as const) {
        const store = await t.faulty()
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const slow = store.inject({ effect, on: 'acquire', times: 1 })
        const lock = await t.settled('the next question is answered', a.acquire(name))
        slow.lift()
        await t.sleep(100)
        assert.equal(await b.tryAcquire(name), null, `${effect}: it is held`)
        assert.equal(lock.isHeld, true)
        assert.equal(await lock.release(), true, `${effect}: it was ours until now`)
      }
    },
  },
  {
    name: 'an acquire whose clean-up fails too is cleaned up later',
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
    name: 'an acquire that took longer than its ttl is not returned as held',
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
      const lock = await t.settled('it gets it in the end', a.acquire(t.name(), { ttl: 200 }))
      assert.ok(asked() >= before + 2, 'the first grant came too late to be used')
      await lock.release()
    },
  },
  {
    name: 'a store that does not answer at all is unavailable, and the wait ends in time',
    async run(t) {
      const store = await t.faulty({ effect: 'lose-call' })
      const locks = await t.locks({}, store)
      assert.ok(
        (await t.settled('tryAcquire ends', rejection(locks.tryAcquire(t.name())))) instanceof StoreUnavailableError,
      )
      const waited = rejection(locks.acquire(t.name(), { wait: 300 }))
      assert.ok((await t.settled('acquire ends', waited)) instanceof StoreUnavailableError)
    },
  },
]

const renewing: Case[] = [
  {
    name: 'a renewal that hangs does not postpone the loss',
    async run(t) {
      for (const effect of ['lose-call', 'lose-reply'] as const) {
        const store = await t.faulty()
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const lock = await a.acquire(name, { ttl: 600 })
        const { signal } = lock
        const hang = store.inject({ effect, on: 'renew' })
        store.doubt()
        await hang.strikes()
        await t.until('it is lost', () => signal.aborted)
        assert.equal(lock.isHeld, false)
        assert.ok(signal.reason instanceof LockLostError)
        await t.until('another gets it', () => b.tryAcquire(name))
      }
    },
  },
  {
    name: 'while no renewal works the lock is lost before another can hold it',
    async run(t) {
      const store = await t.faulty({ effect: 'break-call', on: 'renew' })
      const [a, b] = [await t.locks({}, store), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name, { ttl: 400 })
      store.doubt()
      await t.until('another gets it', () => b.tryAcquire(name))
      assert.equal(lock.isHeld, false)
      assert.equal(lock.signal.aborted, true)
      assert.ok(store.calls.filter(({ call }) => call === 'renew').length > 1, 'it was tried more than once')
      assert.ok(store.calls.length < 120, `not in a hot loop: ${store.calls.length} calls`)
    },
  },
  {
    name: 'one failed renewal does not end the lock while there is time',
    async run(t) {
      for (const effect of ['break-call', 'break-reply', 'unknown'] as const) {
        const store = await t.faulty({ effect, on: 'renew', times: 1 })
        const locks = await t.locks({}, store)
        const errors: string[] = []
        locks.on('error', ({ doing }) => errors.push(doing))
        const lock = await locks.acquire(t.name(), { ttl: 2_000 })
        const { signal } = lock
        const before = lock.expiresAt.getTime()
        store.doubt()
        await t.until('a later renewal works', () => lock.expiresAt.getTime() > before + 10)
        assert.equal(signal.aborted, false)
        assert.equal(lock.isHeld, true)
        assert.deepEqual(errors, ['renew'])
        await lock.release()
      }
    },
  },
  {
    name: 'a doubt does not prolong a lock without autoRenew, and finds out that it is gone',
    async run(t) {
      for (const fault of ['none', 'break-call'] as const) {
        const store = await t.faulty(...(fault === 'none' ? [] : [{ effect: fault, on: 'renew', times: 1 } as const]))
        const [locks, other] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const lock = await locks.acquire(name, { ttl: 400, autoRenew: false })
        const before = lock.expiresAt.getTime()
        await t.sleep(100)
        store.doubt()
        await t.until(
          'it was asked',
          () => store.calls.filter(({ call }) => call === 'renew').length > Number(fault !== 'none'),
        )
        await t.until('another gets it', () => other.tryAcquire(name))
        assert.equal(lock.isHeld, false)
        assert.ok(Math.abs(lock.expiresAt.getTime() - before) < 20, 'it ended when it was said to')
      }
    },
  },
  {
    name: 'a renewal on its way does not outlive the release',
    async run(t) {
      for (const effect of ['delay-call', 'delay-reply'] as const) {
        const store = await t.faulty()
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const lock = await a.acquire(name, { ttl: t.longMs / 2 })
        const slow = store.inject({ effect, on: 'renew' })
        store.doubt()
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
    name: 'when the store doubts, every lease is renewed at once, and one that is gone is lost',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const names = [t.name(), t.name()] as const
      const [kept, taken] = [await locks.acquire(names[0]), await locks.acquire(names[1])]
      const { signal } = taken
      await (await t.client()).release([{ key: `lock:${names[1]}`, owner: taken.holder }])
      store.doubt()
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
      store.doubt()
      const renewals = () => store.calls.filter(({ call }) => call === 'renew')
      const items = () => renewals().reduce((sum, { items }) => sum + items.length, 0)
      await t.until('all are renewed', () => items() >= 100)
      const most = 100 / (store.maxBatch ?? 100) + 3
      assert.ok(asked.length <= most, `acquired in ${asked.length} calls`)
      assert.ok(renewals().length <= most, `renewed in ${renewals().length} calls`)
      await Promise.all(held.map((lock) => lock.release()))
    },
  },
]

const releasing: Case[] = [
  {
    name: 'a release that is not answered comes to an end, and is made good later',
    async run(t) {
      for (const effect of ['lose-call', 'break-call', 'lose-reply', 'unknown'] as const) {
        const store = await t.faulty({ effect, on: 'release', times: 1 })
        const [a, b] = [await t.locks({}, store), await t.locks()]
        const name = t.name()
        const lock = await a.acquire(name)
        await t.settled('release ends', lock.release())
        assert.equal(lock.isHeld, false)
        await t.until(`${effect}: the lock is free`, () => b.tryAcquire(name))
      }
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

export const faultCases: Case[] = [...acquiring, ...renewing, ...releasing]
