import { strict as assert } from 'node:assert'
import {
  ClosedError,
  InvalidOptionError,
  type LockGroup,
  LockLostError,
  type Locks,
  LockTimeoutError,
  SelfDeadlockError,
  StoreUnavailableError,
} from '../../../src/index.js'
import type { TestContext, Case } from '../../../src/testing/index.js'

async function clients(t: TestContext, count: number): Promise<Locks[]> {
  const all: Locks[] = []
  for (let i = 0; i < count; i++) all.push(await t.locks({ wait: 'forever' }))
  return all
}

function namesOf(t: TestContext, count: number): string[] {
  const base = t.name()
  return Array.from({ length: count }, (_, i) => `${base}:${i}`)
}

/** Asserts that each name can be acquired. */
async function allFree(t: TestContext, locks: Locks, names: readonly string[]): Promise<void> {
  for (const name of names) {
    const lock = await t.until(`${name} is free`, () => locks.tryAcquire(name))
    await lock.release()
  }
}

export const allCases: Case[] = [
  {
    name: 'acquireAll() holds all names together, in the order of their names, each with its token',
    async run(t) {
      const [a, b] = (await clients(t, 2)) as [Locks, Locks]
      const [x, y, z] = namesOf(t, 3) as [string, string, string]
      const group = await a.acquireAll([z, x, y, x])
      assert.deepEqual(group.names, [x, y, z], 'a duplicate name counts once')
      assert.equal(group.locks.length, 3)
      assert.deepEqual([...group.fencingTokens.keys()], [x, y, z])
      assert.ok(group.locks.every((lock) => group.fencingTokens.get(lock.name) === lock.fencingToken))
      assert.ok(group.isHeld && !group.signal.aborted && group.remainingMs > 0)
      group.assertHeld()
      for (const name of [x, y, z]) assert.equal(await b.tryAcquire(name), null)
      assert.equal(await group.release(), true)
      assert.equal(await group.release(), true, 'a second call repeats the first answer')
      assert.ok(!group.isHeld)
      assert.throws(() => group.assertHeld(), LockLostError)
      await allFree(t, b, [x, y, z])
    },
  },
  {
    name: 'acquireAll() keeps none of the names if one stays busy',
    async run(t) {
      const [a, b] = (await clients(t, 2)) as [Locks, Locks]
      const names = namesOf(t, 3)
      for (const [i, busy] of names.entries()) {
        // A request that was cancelled inside the server may still be granted for a moment, and is then undone.
        await allFree(t, a, names)
        await using held = await b.acquire(busy)
        for (const wait of [0, 1_000]) {
          await assert.rejects(a.acquireAll(names, { wait }), (error) => {
            assert.ok(error instanceof LockTimeoutError)
            assert.equal(error.lock, busy, 'the error names the busy one')
            assert.ok(error.waitedMs >= wait, `${error.waitedMs}`)
            return true
          })
          await allFree(
            t,
            b,
            names.filter((_, n) => n !== i),
          )
        }
        assert.ok(held.isHeld)
      }
    },
  },
  {
    name: 'the wait limits the acquisition of all names together',
    async run(t) {
      const [a, b] = (await clients(t, 2)) as [Locks, Locks]
      const [x, y] = namesOf(t, 2) as [string, string]
      const first = await b.acquire(x)
      await using second = await b.acquire(y)
      const began = t.now()
      const outcome = assert.rejects(a.acquireAll([x, y], { wait: 1_500 }), LockTimeoutError)
      await t.sleep(500)
      await first.release()
      await outcome
      const took = t.now() - began
      assert.ok(took >= 1_490 && took < 8_000, `${took} ms`)
      assert.ok(second.isHeld)
      await allFree(t, b, [x])
    },
  },
  {
    name: 'a caller that waits for one name holds all of them when it is released',
    async run(t) {
      const [a, b] = (await clients(t, 2)) as [Locks, Locks]
      const names = namesOf(t, 3)
      const busy = await b.acquire(names[1] as string)
      const waiting = a.acquireAll(names)
      await t.sleep(50)
      await busy.release()
      const group = await t.settled('all are held', waiting)
      assert.ok(group.isHeld)
      for (const name of names) assert.equal(await b.tryAcquire(name), null)
      await group.release()
    },
  },
  {
    name: 'callers that list the names in any order never deadlock, and never hold a name at the same time',
    async run(t) {
      const all = await clients(t, 4)
      const names = namesOf(t, 4)
      const inside = new Set<string>()
      const overlaps: string[] = []
      const round = (locks: Locks, wanted: string[]): Promise<void> =>
        locks.withLocks(wanted, async () => {
          for (const name of wanted) {
            if (inside.has(name)) overlaps.push(name)
            inside.add(name)
          }
          await t.sleep(1)
          for (const name of wanted) inside.delete(name)
        })
      const orders = [
        [0, 1, 2],
        [2, 1, 0],
        [3, 0],
        [0, 3],
        [1, 3, 2],
        [2, 3],
      ]
      const work = all.flatMap((locks, i) =>
        orders.map((_, n) =>
          round(
            locks,
            (orders[(n + i) % orders.length] as number[]).map((index) => names[index] as string),
          ),
        ),
      )
      await t.settled('all are done', Promise.all(work))
      assert.deepEqual(overlaps, [])
    },
  },
  {
    name: 'withLocks() resolves with the result of the function, rejects with its error, and releases',
    async run(t) {
      const [a, b] = (await clients(t, 2)) as [Locks, Locks]
      const names = namesOf(t, 2)
      assert.deepEqual(await a.withLocks(names, (held) => held.names), names)
      const own = new Error('mine')
      await assert.rejects(
        a.withLocks(names, async () => Promise.reject(own)),
        own,
      )
      await allFree(t, b, names)
    },
  },
  {
    name: 'the loss of one lock is the loss of all: the signal aborts, and withLocks() rejects although its function returned',
    needs: ['revoke'],
    async run(t) {
      const [a, b] = (await clients(t, 2)) as [Locks, Locks]
      const names = namesOf(t, 3)
      let seen: LockGroup | undefined
      const outcome = a.withLocks(
        names,
        async (held) => {
          seen = held
          const { signal } = held
          await b.forceRelease(names[1] as string)
          await t.until('told', () => signal.aborted)
          assert.ok(signal.reason instanceof LockLostError)
          assert.equal(signal.reason.lock, names[1])
          assert.ok(!held.isHeld && held.remainingMs === 0)
          assert.throws(() => held.assertHeld(), LockLostError)
          return 'done'
        },
        { ttl: '1s' },
      )
      await assert.rejects(t.settled('it rejects', outcome), (error) => {
        assert.ok(error instanceof LockLostError, String(error))
        assert.equal(error.lock, names[1])
        return true
      })
      assert.equal(await (seen as LockGroup).release(), false, 'not all locks were held until then')
      await allFree(t, b, names)
    },
  },
  {
    name: 'extend() prolongs all of them',
    async run(t) {
      const [a] = (await clients(t, 1)) as [Locks]
      await using group = await a.acquireAll(namesOf(t, 2), { ttl: '2s' })
      await group.extend('30s')
      assert.ok(group.remainingMs > 20_000, `${group.remainingMs}`)
    },
  },
  {
    name: 'shared groups of readers hold the same names together, and exclude a writer',
    async run(t) {
      const [a, b] = (await clients(t, 2)) as [Locks, Locks]
      const names = namesOf(t, 2)
      await using one = await a.acquireAll(names, { mode: 'shared' })
      await using two = await b.acquireAll(names, { mode: 'shared' })
      assert.ok(one.isHeld && two.isHeld)
      await assert.rejects(b.acquireAll(names, { wait: 0 }), LockTimeoutError)
    },
  },
  {
    name: 'a wait that is cancelled rejects with the reason, and no name stays held',
    async run(t) {
      const [a, b] = (await clients(t, 2)) as [Locks, Locks]
      const names = namesOf(t, 3)
      const busy = await b.acquire(names[2] as string)
      const cancel = new AbortController()
      const reason = new Error('enough')
      const cancelled = assert.rejects(a.acquireAll(names, { signal: cancel.signal }), reason)
      await t.sleep(50)
      cancel.abort(reason)
      await cancelled
      await busy.release()
      await allFree(t, b, names)
      await assert.rejects(a.acquireAll(names, { signal: AbortSignal.abort(reason) }), reason)
      // Cancelled while the first request is in flight.
      const early = new AbortController()
      const asked = a.acquireAll(names, { signal: early.signal })
      early.abort(reason)
      await asked.then(
        (group) => group.release(),
        (error) => assert.equal(error, reason),
      )
      await allFree(t, b, names)
    },
  },
  {
    name: 'acquiring one of the names again inside its own callback rejects at once, and acquiring others does not',
    async run(t) {
      const [a] = (await clients(t, 1)) as [Locks]
      const [x, y, z] = namesOf(t, 3) as [string, string, string]
      await a.withLocks([x, y], async () => {
        await assert.rejects(
          a.withLocks([z, y], () => {}),
          (error) => {
            assert.ok(error instanceof SelfDeadlockError)
            assert.equal(error.lock, y)
            return true
          },
        )
        await assert.rejects(
          a.withLock(x, () => {}),
          SelfDeadlockError,
        )
        await assert.rejects(
          a.withLocks([x], () => {}, { nested: 'wait', wait: 1_500 }),
          LockTimeoutError,
        )
        assert.equal(await a.withLocks([z], () => 1), 1)
      })
    },
  },
  {
    name: 'acquireAll() retries during an outage until the wait is over, and no name stays held',
    async run(t) {
      const store = await t.faulty()
      const [locks, other] = [await t.locks({}, store), await t.locks()]
      const names = namesOf(t, 3)
      const broken = store.inject({ effect: 'break-reply', on: 'acquire', times: 2 })
      const group = await t.settled('the caller gets them', locks.acquireAll(names))
      assert.ok(group.isHeld)
      assert.equal(broken.struck, 2)
      await group.release()
      await allFree(t, other, names)
      const outage = store.inject({ effect: 'break-call', on: 'acquire' })
      await assert.rejects(locks.acquireAll(names, { wait: 300 }), StoreUnavailableError)
      outage.lift()
      await allFree(t, other, names)
    },
  },
  {
    name: 'close() rejects the waiters and releases what they already held',
    async run(t) {
      const [a, b] = (await clients(t, 2)) as [Locks, Locks]
      const names = namesOf(t, 3)
      await using busy = await b.acquire(names[2] as string)
      await a.acquireAll([`${names[0]}-other`])
      const closed = assert.rejects(a.acquireAll(names), ClosedError)
      await t.sleep(50)
      await a.close({ grace: 0 })
      await closed
      assert.ok(busy.isHeld)
      await allFree(t, b, [...names.slice(0, 2), `${names[0]}-other`])
    },
  },
  {
    name: 'bad input is reported before any request is sent',
    async run(t) {
      const [a] = (await clients(t, 1)) as [Locks]
      const option = (wanted: string) => (error: unknown) =>
        error instanceof InvalidOptionError && error.option === wanted
      for (const names of [[], 'abc', undefined, null, {}]) {
        await assert.rejects(a.acquireAll(names as never), option('names'))
        await assert.rejects(
          a.withLocks(names as never, () => {}),
          option('names'),
        )
      }
      for (const name of ['', 1, Symbol('x'), null, 'a\0b']) {
        await assert.rejects(a.acquireAll([t.name(), name as never, t.name()]), option('name'))
      }
      await assert.rejects(a.withLocks([t.name()], 'x' as never), option('fn'))
      await assert.rejects(
        a.withLocks([t.name()], () => {}, { nested: true } as never),
        option('nested'),
      )
      await assert.rejects(a.acquireAll([t.name()], { ttl: 'soon' } as never), option('ttl'))
    },
  },
  {
    name: 'an uncontended acquireAll() needs one request',
    needs: ['atomic'],
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const names = t.keys(4).map((key) => key.slice('lock:'.length))
      await locks.withLocks(names, () => 1)
      const asked = store.calls.filter(({ call }) => call === 'acquire')
      assert.deepEqual(
        asked.map(({ items }) => items.length),
        [4],
      )
    },
    otherwise: {
      name: 'a store without atomic batches is asked for one name after the other, in their order',
      async run(t) {
        const store = await t.faulty()
        const locks = await t.locks({}, store)
        const names = namesOf(t, 3)
        await locks.withLocks([...names].reverse(), () => 1)
        const asked = store.calls.filter(({ call }) => call === 'acquire')
        assert.deepEqual(
          asked.flatMap(({ items }) => items.map((item) => (item as { key: string }).key)),
          names.map((name) => `lock:${name}`),
        )
      },
    },
  },
  {
    name: 'callers that want one of the names do not starve those that want several',
    needs: ['queue'],
    async run(t) {
      const all = await clients(t, 3)
      const names = namesOf(t, 3)
      let over = false
      const busy = all.slice(0, 2).flatMap((locks) =>
        names.map(async (name) => {
          while (!over) await locks.withLock(name, () => t.sleep(3))
        }),
      )
      await t.sleep(30)
      try {
        for (let i = 0; i < 5; i++)
          await t.settled(
            'all three are held',
            (all[2] as Locks).withLocks(names, () => t.sleep(1)),
          )
      } finally {
        over = true
        await Promise.all(busy)
      }
    },
  },
]
