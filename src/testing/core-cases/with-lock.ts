import { strict as assert } from 'node:assert'
import { LockLostError, LockTimeoutError, SelfDeadlockError } from '../../errors.js'
import type { Locks } from '../../locks.js'
import { type Case, needing } from '../case.js'
import { mustBeAnswered, rejection } from './acquire.js'
import { RAN_OUT } from './loss.js'

const running: Case[] = [
  {
    name: 'withLock() holds the lock while the function runs, returns its result, and releases',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const result = await a.withLock(name, async (lock) => {
        assert.equal(lock.isHeld, true)
        assert.equal(lock.signal.aborted, false)
        assert.equal(await b.tryAcquire(name), null)
        return 42
      })
      assert.equal(result, 42)
      assert.ok(await b.tryAcquire(name), 'it was released')
      assert.equal(await a.withLock(t.name(), () => 'without a promise'), 'without a promise')
    },
  },
  {
    name: 'withLock() releases when the function fails, and rejects with its error',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const boom = new Error('boom')
      for (const fail of [() => Promise.reject(boom), () => raise(boom)]) {
        const name = t.name()
        assert.equal(await rejection(a.withLock(name, fail)), boom)
        assert.ok(await b.tryAcquire(name), 'it was released')
      }
    },
  },
  {
    name: 'an unprotected counter counts exactly under withLock() of several clients',
    async run(t) {
      const clients: Locks[] = []
      for (let i = 0; i < 4; i++) clients.push(await t.locks({ wait: 'forever' }))
      const name = t.name()
      let counter = 0
      let last = 0n
      const work = clients.flatMap((locks) =>
        Array.from({ length: 10 }, () =>
          locks.withLock(name, async (lock) => {
            assert.ok(lock.fencingToken > last, `token ${lock.fencingToken} came after ${last}`)
            last = lock.fencingToken
            const seen = counter
            await t.sleep(0)
            counter = seen + 1
          }),
        ),
      )
      await Promise.all(work)
      assert.equal(counter, 40)
    },
  },
  {
    name: 'withLock() rejects with LockLostError if the lease ended meanwhile, whatever the function returned',
    async run(t) {
      const locks = await t.locks()
      const lost = locks.withLock(t.name(), () => t.sleep(350), { ttl: 200, autoRenew: false })
      const error = await rejection(lost)
      assert.ok(error instanceof LockLostError, String(error))
      assert.ok(RAN_OUT.includes(error.why), error.why)
      assert.equal(error.code, 'LOCK_LOST')
    },
  },
  {
    name: 'the error of the function wins over the loss of the lock',
    async run(t) {
      const locks = await t.locks()
      const boom = new Error('boom')
      const work = async (): Promise<never> => {
        await t.sleep(350)
        throw boom
      }
      assert.equal(await rejection(locks.withLock(t.name(), work, { ttl: 200, autoRenew: false })), boom)
    },
  },
  {
    name: 'a release that fails replaces neither the result nor the error of the function',
    async run(t) {
      const store = await t.faulty({ effect: 'break-call', on: 'release', times: 2 })
      const locks = await t.locks({}, store)
      const boom = new Error('boom')
      assert.equal(await locks.withLock(t.name(), () => 'done'), 'done')
      assert.equal(await rejection(locks.withLock(t.name(), () => Promise.reject(boom))), boom)
    },
  },
  {
    name: 'wrap() returns a function that runs under the lock, with its own arguments and this',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const base = t.name()
      const greet = a.wrap(
        (who: string) => `${base}:${who}`,
        async function (this: { greeting: string } | void, who: string) {
          assert.equal(await b.tryAcquire(`${base}:${who}`), null)
          return `${this?.greeting} ${who}`
        },
      )
      assert.equal(await greet.call({ greeting: 'hello' } as never, 'ada'), 'hello ada')
    },
  },
]

const nesting: Case[] = [
  {
    name: 'withLock() inside withLock() of the same name rejects at once instead of waiting for itself',
    async run(t) {
      const locks = await t.locks({ wait: 'forever' })
      const name = t.name()
      const error = await locks.withLock(name, () => rejection(locks.withLock(name, () => 1)))
      assert.ok(error instanceof SelfDeadlockError, String(error))
      const deeper = await locks.withLock(name, () =>
        locks.withLock(t.name(), () => rejection(locks.withLock(name, () => 1))),
      )
      assert.ok(deeper instanceof SelfDeadlockError, String(deeper))
    },
  },
  {
    name: 'withLock() inside withLock() may use other names, and the same name afterwards',
    async run(t) {
      const locks = await t.locks()
      const name = t.name()
      assert.equal(await locks.withLock(name, () => locks.withLock(t.name(), () => 'inner')), 'inner')
      assert.equal(await locks.withLock(name, () => 'again'), 'again')
    },
  },
  {
    name: "detached work may wait for the callback around it with nested: 'wait'",
    async run(t) {
      const locks = await t.locks()
      const name = t.name()
      let detached: Promise<string> | undefined
      await locks.withLock(name, async () => {
        detached = locks.withLock(name, () => 'later', { nested: 'wait' })
        await t.sleep(20)
      })
      assert.equal(await t.settled('it runs', detached), 'later')
    },
  },
  {
    name: 'acquire() inside withLock() of the same name is not detected: it waits, and times out',
    async run(t) {
      const locks = await t.locks()
      const name = t.name()
      await t.unhurried(500, async (wait) => {
        const error = await locks.withLock(name, () => rejection(locks.acquire(name, { wait })))
        mustBeAnswered(t, error)
        assert.ok(error instanceof LockTimeoutError, String(error))
      })
    },
  },
]

const forced: Case[] = [
  {
    name: 'withLock() rejects with LockLostError if the lock was revoked meanwhile',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const error = await rejection(
        a.withLock(name, async () => {
          await b.forceRelease(name)
        }),
      )
      assert.ok(error instanceof LockLostError, String(error))
      assert.ok(error.why === 'revoked' || error.why === 'gone', error.why)
    },
  },
]

function raise(error: Error): never {
  throw error
}

export const withLockCases: Case[] = [...running, ...nesting, ...needing(['revoke'], forced)]
