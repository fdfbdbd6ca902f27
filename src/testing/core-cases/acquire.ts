import { strict as assert } from 'node:assert'
import { LockTimeoutError, StoreUnavailableError } from '../../errors.js'
import { type Case, needing } from '../case.js'
import type { TestContext } from '../test-context.js'

const acquiring: Case[] = [
  {
    name: 'acquire() gives the lock to one caller, and tryAcquire() returns null to the others',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name)
      assert.equal(lock.isHeld, true)
      assert.equal(await b.tryAcquire(name), null)
      assert.equal(await a.tryAcquire(name), null)
      assert.equal(await lock.release(), true)
      const next = await b.tryAcquire(name)
      assert.ok(next, 'it was released')
      assert.ok(next.fencingToken > lock.fencingToken, 'tokens grow')
      assert.equal(await a.tryAcquire(name), null)
    },
  },
  {
    name: 'a lock reports its name, holder, mode, metadata, token and times',
    async run(t) {
      const locks = await t.locks({ namespace: 'shop' })
      const name = t.name()
      const before = Date.now()
      const ttl = t.longMs / 2
      const lock = await locks.acquire(name, { ttl, metadata: { job: 'charge', amounts: [1, 2.5] } })
      assert.equal(lock.name, name)
      assert.equal(lock.mode, 'exclusive')
      assert.deepEqual(lock.metadata, { job: 'charge', amounts: [1, 2.5] })
      assert.equal(typeof lock.fencingToken, 'bigint')
      assert.ok(lock.holder.length > 0 && lock.holder.length <= 200)
      assert.ok(lock.remainingMs > 0 && lock.remainingMs <= ttl, `${lock.remainingMs} ms`)
      assert.ok(Math.abs(lock.acquiredAt.getTime() - before) < 10_000, `${lock.acquiredAt}`)
      assert.ok(lock.expiresAt.getTime() <= Date.now() + ttl && lock.expiresAt.getTime() > before)
      lock.assertHeld()
      const shown = JSON.parse(JSON.stringify(lock)) as Record<string, unknown>
      assert.equal(shown.fencingToken, String(lock.fencingToken))
      assert.equal(shown.name, name)
    },
  },
  {
    name: 'every acquisition has a different holder id',
    async run(t) {
      const locks = await t.locks()
      const name = t.name()
      const holders = new Set<string>()
      for (let i = 0; i < 5; i++) {
        const lock = await locks.acquire(name)
        holders.add(lock.holder)
        assert.ok(lock.holder.includes(locks.clientId), 'and it contains the id of the instance')
        await lock.release()
      }
      assert.equal(holders.size, 5)
    },
  },
  {
    name: 'a wait of 0 makes one attempt',
    async run(t) {
      const store = await t.faulty()
      const [a, b] = [await t.locks(), await t.locks({}, store)]
      const name = t.name()
      const lock = await a.acquire(name)
      await assert.rejects(b.acquire(name, { wait: 0 }), LockTimeoutError)
      assert.equal(store.calls.filter(({ call }) => call === 'acquire').length, 1)
      await lock.release()
      assert.ok(await b.acquire(name, { wait: 0 }), 'free')
    },
  },
  {
    name: 'a wait that has passed rejects with LockTimeoutError, not earlier, and leaves nothing behind',
    async run(t) {
      const [a, b, c] = [await t.locks(), await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name)
      await t.unhurried(150, async (ms) => {
        const since = t.now()
        const error = await rejection(b.acquire(name, { wait: ms }))
        mustBeAnswered(t, error)
        assert.ok(error instanceof LockTimeoutError, String(error))
        assert.equal(error.code, 'LOCK_TIMEOUT')
        assert.ok(t.now() - since >= ms - 1, 'it waited')
        assert.ok(error.waitedMs >= ms - 1, `${error.waitedMs} ms`)
        assert.equal(error.lock, name)
      })
      assert.equal(await lock.release(), true)
      const next = await t.until('another caller gets it', () => c.tryAcquire(name))
      assert.ok(next.isHeld)
    },
  },
  {
    name: 'a wait without limit ends when the lock is released',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name)
      const waiting = b.acquire(name, { wait: 'forever' })
      await t.sleep(50)
      await lock.release()
      assert.equal((await t.settled('the waiter gets it', waiting)).isHeld, true)
    },
  },
  {
    name: 'a waiter gets the lock of a holder that stopped renewing',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const dead = await a.acquire(name, { ttl: 300, autoRenew: false })
      const successor = await t.settled('the waiter gets it', b.acquire(name))
      assert.equal(successor.isHeld, true)
      assert.equal(dead.isHeld, false)
      assert.ok(successor.fencingToken > dead.fencingToken)
    },
  },
  {
    name: 'readers share the lock, and a writer excludes all others',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const readers = [await a.acquire(name, { mode: 'shared' }), await b.acquire(name, { mode: 'shared' })]
      assert.equal(readers[0]?.mode, 'shared')
      assert.equal(await b.tryAcquire(name), null)
      const writing = b.acquire(name)
      for (const reader of readers) await reader.release()
      const writer = await t.settled('the writer gets it', writing)
      assert.equal(await a.tryAcquire(name, { mode: 'shared' }), null)
      await writer.release()
      assert.ok(await t.until('free', () => a.tryAcquire(name, { mode: 'shared' })))
    },
  },
  {
    name: 'namespaces separate equal names',
    async run(t) {
      const store = await t.client()
      const [shop, bank] = [await t.locks({ namespace: 'shop' }, store), await t.locks({ namespace: 'bank' }, store)]
      const name = t.name()
      assert.ok(await shop.tryAcquire(name))
      assert.ok(await bank.tryAcquire(name))
      assert.equal(await shop.tryAcquire(name), null)
    },
  },
]

const told: Case[] = [
  {
    name: 'LockTimeoutError reports the blocking holder',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const name = t.name()
      const lock = await a.acquire(name)
      const reports = async (wait: number): Promise<void> => {
        const error = await rejection(b.acquire(name, { wait }))
        mustBeAnswered(t, error)
        assert.ok(error instanceof LockTimeoutError, String(error))
        assert.equal(error.heldBy, lock.holder)
        assert.ok(error.message.includes(lock.holder) && error.message.includes(name), error.message)
      }
      await reports(0)
      await t.unhurried(100, reports)
    },
  },
]

const outages: Case[] = [
  {
    name: 'tryAcquire() rejects with StoreUnavailableError and its cause during an outage, instead of returning null',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const cause = new Error('the server is down')
      const outage = store.inject({ effect: 'break-call', on: 'acquire', error: cause })
      for (const attempt of [locks.tryAcquire(t.name()), locks.acquire(t.name(), { wait: 0 })]) {
        const error = await rejection(attempt)
        assert.ok(error instanceof StoreUnavailableError, String(error))
        assert.equal(error.code, 'STORE_UNAVAILABLE')
        assert.equal(error.cause, cause)
      }
      outage.lift()
      assert.ok(await locks.tryAcquire(t.name()))
    },
  },
  {
    name: 'acquire() retries during an outage, and rejects with StoreUnavailableError if the outage lasts',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const outage = store.inject({ effect: 'break-call', on: 'acquire' })
      await t.unhurried(200, async (wait) => {
        const before = outage.struck
        const error = await rejection(locks.acquire(t.name(), { wait }))
        assert.ok(error instanceof StoreUnavailableError, String(error))
        const sent = outage.struck - before
        assert.ok(sent < 60, `not in a hot loop: ${sent} times in ${wait} ms`)
        // A machine that stands still lets the wait pass. No machine does so for the longest of these waits.
        if (sent <= 1) t.tooSlow()
      })
      const waiting = locks.acquire(t.name())
      await outage.strikes(outage.struck + 2)
      outage.lift()
      assert.equal((await t.settled('the waiter gets it', waiting)).isHeld, true)
    },
  },
]

/** Abandons the attempt if its wait was shorter than the store's answer: nobody can know whether the lock is busy. */
export function mustBeAnswered(t: TestContext, error: unknown): void {
  if (error instanceof StoreUnavailableError && / did not answer within /.test(error.message)) t.tooSlow()
}

export async function rejection(promise: Promise<unknown>): Promise<unknown> {
  try {
    await promise
  } catch (error) {
    return error
  }
  assert.fail('it must reject')
}

export const acquireCases: Case[] = [...acquiring, ...needing(['values'], told), ...outages]
