import { strict as assert } from 'node:assert'
import type { Case } from '../case.js'
import { rejection } from './acquire.js'

const reason = new Error('no longer wanted')

export const cancelCases: Case[] = [
  {
    name: 'a signal that is already aborted rejects with its reason, and no request is sent',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const signal = AbortSignal.abort(reason)
      assert.equal(await rejection(locks.acquire(t.name(), { signal })), reason)
      assert.equal(await rejection(locks.tryAcquire(t.name(), { signal })), reason)
      let ran = false
      assert.equal(await rejection(locks.withLock(t.name(), () => (ran = true), { signal })), reason)
      assert.equal(ran, false)
      assert.deepEqual(store.calls, [])
    },
  },
  {
    name: 'a signal that aborts a wait rejects with its reason and removes the queue entry',
    async run(t) {
      const [a, b, c] = [await t.locks(), await t.locks(), await t.locks()]
      const name = t.name()
      const held = await a.acquire(name)
      const cancel = new AbortController()
      const waiting = rejection(b.acquire(name, { wait: 'forever', signal: cancel.signal }))
      await t.sleep(50)
      cancel.abort(reason)
      assert.equal(await t.settled('it rejects', waiting), reason)
      await held.release()
      await t.until('another caller gets it', () => c.tryAcquire(name))
    },
  },
  {
    name: 'a signal that aborts while the request is in flight rejects at once, and a late grant is released',
    async run(t) {
      const store = await t.faulty()
      const [a, b] = [await t.locks({}, store), await t.locks()]
      for (const effect of ['delay-call', 'delay-reply'] as const) {
        for (const how of ['acquire', 'tryAcquire'] as const) {
          const name = t.name()
          const slow = store.inject({ effect, on: 'acquire' })
          const cancel = new AbortController()
          const asked = rejection(a[how](name, { signal: cancel.signal }))
          await slow.strikes()
          cancel.abort(reason)
          assert.equal(await t.settled('it rejects before the reply arrives', asked), reason)
          slow.lift()
          await t.until(`${effect} of ${how}: the lock is free`, () => b.tryAcquire(name))
        }
      }
    },
  },
  {
    name: 'a signal that aborts at the moment of the hand-off leaves no lock behind',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      for (let round = 0; round < 12; round++) {
        const name = t.name()
        const held = await a.acquire(name)
        const cancel = new AbortController()
        const waiting = b.acquire(name, { wait: 'forever', signal: cancel.signal })
        const outcome = waiting.then(
          (lock) => lock.release(),
          (error: unknown) => assert.equal(error, reason),
        )
        await t.sleep(round)
        const releasing = held.release()
        if (round % 3 === 1) await Promise.resolve()
        if (round % 3 === 2) await t.sleep(1)
        cancel.abort(reason)
        await releasing
        await t.settled('it settles', outcome)
        const next = await t.until('another caller gets it', () => a.tryAcquire(name))
        await next.release()
      }
    },
  },
  {
    name: 'the signal passed to acquire() affects neither the held lock nor its release',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const cancel = new AbortController()
      const lock = await a.acquire(name, { signal: cancel.signal })
      cancel.abort(reason)
      assert.equal(lock.isHeld, true)
      assert.equal(lock.signal.aborted, false)
      assert.equal(await lock.release(), true)
      assert.ok(await b.tryAcquire(name), 'it was released')
    },
  },
]
