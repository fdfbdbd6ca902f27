import { strict as assert } from 'node:assert'
import {
  ClosedError,
  InvalidOptionError,
  type Lock,
  LockLostError,
  type Locks,
  LockTimeoutError,
  type ReadWriteLock,
  SelfDeadlockError,
  UnsupportedError,
} from '../../../src/index.js'
import type { TestContext, Case } from '../../../src/testing/index.js'

/** Independent clients, each with a lock of the same name. */
async function clients(
  t: TestContext,
  count: number,
  name = t.name(),
): Promise<{ name: string; all: [Locks, ReadWriteLock][] }> {
  const all: [Locks, ReadWriteLock][] = []
  for (let i = 0; i < count; i++) {
    const store = await t.client()
    const locks = await t.locks({}, store)
    all.push([locks, locks.readWrite(name, store.features.queue ? {} : { starvation: 'accepted' })])
  }
  return { name, all }
}

async function locksOf(t: TestContext, count: number): Promise<{ name: string; rw: ReadWriteLock[]; locks: Locks[] }> {
  const { name, all } = await clients(t, count)
  return { name, locks: all.map(([locks]) => locks), rw: all.map(([, rw]) => rw) }
}

/** Waits until this many are queued. */
async function untilQueued(t: TestContext, locks: Locks, name: string, count: number): Promise<void> {
  await t.until(`${count} in the queue`, async () => (await locks.waiters(name)).length === count)
}

export const readWriteCases: Case[] = [
  {
    name: 'readers of several clients hold at the same time',
    async run(t) {
      const { rw } = await locksOf(t, 3)
      const readers = await Promise.all([...rw, ...rw].map((config) => config.acquireRead({ wait: 0 })))
      assert.ok(readers.every((lock) => lock.isHeld && lock.mode === 'shared'))
      assert.deepEqual(await Promise.all(readers.map((lock) => lock.release())), Array(6).fill(true))
    },
  },
  {
    name: 'a writer excludes readers, writers and plain locks of the same name, and they exclude it',
    async run(t) {
      const { name, rw, locks } = await locksOf(t, 2)
      const [a, b] = rw as [ReadWriteLock, ReadWriteLock]
      const other = locks[1] as Locks
      const busy = (asked: Promise<unknown>): Promise<void> => assert.rejects(asked, LockTimeoutError)
      const writer = await a.acquireWrite()
      await busy(b.acquireRead({ wait: 0 }))
      await busy(b.acquireWrite({ wait: 0 }))
      assert.equal(await other.tryAcquire(name), null)
      assert.equal(await other.tryAcquire(name, { mode: 'shared' }), null)
      await writer.release()
      const reader = await a.acquireRead()
      await busy(b.acquireWrite({ wait: 0 }))
      assert.equal(await other.tryAcquire(name), null)
      const beside = await other.tryAcquire(name, { mode: 'shared' })
      assert.ok(beside, 'a shared lock is a reader')
      await Promise.all([reader.release(), beside.release()])
      await using plain = await other.acquire(name)
      await busy(a.acquireRead({ wait: 0 }))
      assert.ok(plain.isHeld)
    },
  },
  {
    name: 'read() and write() resolve with the result of the function, reject with its error, and release',
    async run(t) {
      const { rw } = await locksOf(t, 2)
      const [a, b] = rw as [ReadWriteLock, ReadWriteLock]
      assert.equal(await a.read((lock) => `${lock.mode}`), 'shared')
      assert.equal(await a.write(async (lock) => `${lock.mode}`), 'exclusive')
      const own = new Error('mine')
      await assert.rejects(
        a.write(() => {
          throw own
        }),
        own,
      )
      await assert.rejects(
        a.read(async () => Promise.reject(own)),
        own,
      )
      await (await b.acquireWrite({ wait: 0 })).release()
    },
  },
  {
    name: 'a reader never sees what a writer has half written',
    async run(t) {
      const { rw } = await locksOf(t, 3)
      const page = { left: 0, right: 0 }
      const torn: object[] = []
      const write = (config: ReadWriteLock): Promise<void> =>
        config.write(async () => {
          page.left++
          await t.sleep(1)
          page.right++
        })
      const read = (config: ReadWriteLock): Promise<void> =>
        config.read(async () => {
          const { left } = page
          await t.sleep(1)
          if (page.right !== left || page.left !== left) torn.push({ ...page, left })
        })
      const work = rw.flatMap((config) => Array.from({ length: 6 }, (_, i) => (i % 3 ? read(config) : write(config))))
      await t.settled('all are done', Promise.all(work))
      assert.deepEqual(torn, [])
      assert.deepEqual(page, { left: 6, right: 6 })
    },
  },
  {
    name: 'a dead reader frees exactly its own share',
    async run(t) {
      const { rw } = await locksOf(t, 3)
      const [a, b, c] = rw as [ReadWriteLock, ReadWriteLock, ReadWriteLock]
      const alive = await a.acquireRead()
      const dead = await b.acquireRead({ ttl: 300, autoRenew: false })
      const writing = c.acquireWrite()
      await t.until('its time has passed', () => !dead.isHeld)
      await t.sleep(400)
      assert.ok(alive.isHeld)
      await assert.rejects(b.acquireWrite({ wait: 0 }), LockTimeoutError, 'the living reader still holds')
      await alive.release()
      const writer = await t.settled('the writer writes', writing)
      assert.ok(writer.isHeld)
    },
  },
  {
    name: 'a dead writer lets readers in when its lease has expired',
    async run(t) {
      const { rw } = await locksOf(t, 2)
      const [a, b] = rw as [ReadWriteLock, ReadWriteLock]
      const dead = await a.acquireWrite({ ttl: 300, autoRenew: false })
      const readers = await t.settled('readers read', Promise.all([b.acquireRead(), a.acquireRead(), b.acquireRead()]))
      assert.ok(!dead.isHeld)
      assert.ok(readers.every((lock) => lock.isHeld))
    },
  },
  {
    name: 'the token of a writer is larger than those of all readers and writers before',
    async run(t) {
      const { rw } = await locksOf(t, 2)
      let last = 0n
      for (let i = 0; i < 6; i++) {
        const config = rw[i % 2] as ReadWriteLock
        const readers = await Promise.all([config.acquireRead(), config.acquireRead()])
        for (const reader of readers) assert.ok(reader.fencingToken >= last, `${reader.fencingToken} after ${last}`)
        const seen = readers.map((reader) => reader.fencingToken).reduce((a, b) => (a > b ? a : b))
        await Promise.all(readers.map((reader) => reader.release()))
        last = await config.write((lock) => lock.fencingToken)
        assert.ok(last > seen, `${last} after ${seen}`)
      }
    },
  },
  {
    name: 'a writer that is revoked is told, and write() rejects although its function returned',
    needs: ['revoke'],
    async run(t) {
      const { name, rw, locks } = await locksOf(t, 2)
      const [config] = rw as [ReadWriteLock]
      const outcome = config.write(
        async (lock) => {
          await (locks[1] as Locks).forceRelease(name)
          await t.until('told', () => lock.signal.aborted)
          return 'done'
        },
        { ttl: '1s' },
      )
      await assert.rejects(t.settled('rejected', outcome), LockLostError)
    },
  },
  {
    name: 'acquiring the same name again inside its own callback rejects at once, and detached work may wait',
    async run(t) {
      const { rw } = await locksOf(t, 2)
      const [config, elsewhere] = rw as [ReadWriteLock, ReadWriteLock]
      await config.write(async () => {
        await assert.rejects(
          config.write(() => {}),
          SelfDeadlockError,
        )
        await assert.rejects(
          config.read(() => {}),
          SelfDeadlockError,
        )
        await assert.rejects(
          config.read(() => {}, { nested: 'wait', wait: 1_500 }),
          LockTimeoutError,
        )
      })
      await config.read(() =>
        assert.rejects(
          config.write(() => {}),
          SelfDeadlockError,
        ),
      )
      await elsewhere.write(() => 1)
    },
  },
  {
    name: 'a wait that is cancelled leaves nothing behind',
    async run(t) {
      const { rw } = await locksOf(t, 2)
      const [a, b] = rw as [ReadWriteLock, ReadWriteLock]
      const reader = await a.acquireRead()
      const cancel = new AbortController()
      const writing = b.acquireWrite({ signal: cancel.signal })
      const outcome = assert.rejects(writing, new Error('enough'))
      await t.sleep(50)
      cancel.abort(new Error('enough'))
      await outcome
      // A queue entry of the writer would keep this reader out.
      const next = await t.settled('a reader is granted', b.acquireRead())
      assert.ok(reader.isHeld && next.isHeld)
    },
  },
  {
    name: 'close() rejects the waiters and releases what is held',
    async run(t) {
      const { name, rw, locks } = await locksOf(t, 2)
      const [a, b] = rw as [ReadWriteLock, ReadWriteLock]
      await a.acquireRead()
      const closed = assert.rejects(a.acquireWrite(), ClosedError)
      await t.sleep(30)
      await (locks[0] as Locks).close({ grace: 0 })
      await closed
      const writer = await t.settled('the other one writes', b.acquireWrite())
      assert.ok(writer.isHeld)
      const { holders } = await (locks[1] as Locks).inspect(name)
      assert.deepEqual(
        holders.map(({ holder }) => holder),
        [writer.holder],
      )
    },
  },
  {
    name: 'bad input is reported before any request is sent',
    async run(t) {
      const { rw, locks } = await locksOf(t, 1)
      const [config] = rw as [ReadWriteLock]
      const option = (name: string) => (error: unknown) => error instanceof InvalidOptionError && error.option === name
      await assert.rejects(config.read('x' as never), option('fn'))
      await assert.rejects(config.acquireRead({ mode: 'exclusive' } as never), option('mode'))
      await assert.rejects(
        config.write(() => {}, { mode: 'shared' } as never),
        option('mode'),
      )
      await assert.rejects(config.acquireWrite({ ttl: -1 }), option('ttl'))
      await assert.rejects(
        config.write(() => {}, { nested: 'yes' } as never),
        option('nested'),
      )
      assert.throws(() => (locks[0] as Locks).readWrite('', { starvation: 'accepted' }), option('name'))
      assert.throws(() => (locks[0] as Locks).readWrite('a', { starvation: true } as never), option('starvation'))
      await config.write(() => 1, { wait: 0 })
    },
  },
  {
    name: 'a read-write lock by default guarantees that no waiter starves',
    needs: ['queue'],
    async run(t) {
      const locks = await t.locks()
      assert.equal(await locks.readWrite(t.name()).write(() => 1), 1)
    },
    otherwise: {
      name: 'a store without a queue rejects unless starvation is accepted, and says what to use instead',
      async run(t) {
        const locks = await t.locks()
        assert.throws(
          () => locks.readWrite(t.name()),
          (error) => {
            assert.ok(error instanceof UnsupportedError)
            assert.match(error.message, /starvation: 'accepted'/)
            assert.match(error.message, /or use memory, sqlite, redis, postgres or etcd/)
            return true
          },
        )
      },
    },
  },
  {
    name: 'readers that arrive after a waiting writer wait behind it, and are granted together after it',
    needs: ['queue'],
    async run(t) {
      const { name, rw, locks } = await locksOf(t, 4)
      const [a, b, c, d] = rw as [ReadWriteLock, ReadWriteLock, ReadWriteLock, ReadWriteLock]
      const looking = locks[0] as Locks
      const reader = await a.acquireRead()
      const order: string[] = []
      const noted = async (what: string, asked: Promise<Lock>): Promise<Lock> => {
        const lock = await asked
        order.push(what)
        return lock
      }
      const writing = noted('writer', b.acquireWrite())
      await untilQueued(t, looking, name, 1)
      const reading = [noted('reader', c.acquireRead()), noted('reader', d.acquireRead())]
      await untilQueued(t, looking, name, 3)
      await reader.release()
      const writer = await t.settled('the writer writes', writing)
      assert.deepEqual(order, ['writer'])
      await writer.release()
      const readers = await t.settled('both read', Promise.all(reading))
      assert.ok(readers.every((lock) => lock.isHeld))
      assert.deepEqual(order, ['writer', 'reader', 'reader'])
    },
  },
  {
    name: 'readers and writers of several clients are served in the order of their arrival',
    needs: ['queue'],
    async run(t) {
      const { name, rw, locks } = await locksOf(t, 8)
      const looking = locks[0] as Locks
      const first = await (rw[0] as ReadWriteLock).acquireWrite()
      const order: number[] = []
      const modes = ['read', 'write', 'read', 'read', 'write', 'write', 'read'] as const
      const served: Promise<void>[] = []
      for (const [i, mode] of modes.entries()) {
        const config = rw[i + 1] as ReadWriteLock
        served.push(
          config[mode](async () => {
            order.push(i)
            await t.sleep(2)
          }),
        )
        await untilQueued(t, looking, name, i + 1)
      }
      await first.release()
      await t.settled('all are served', Promise.all(served))
      // Readers that are granted together may be told in any order.
      assert.deepEqual([...order.slice(0, 2), ...order.slice(2, 4).sort(), ...order.slice(4)], [0, 1, 2, 3, 4, 5, 6])
    },
  },
  {
    name: 'a steady flow of readers does not starve a writer',
    needs: ['queue'],
    async run(t) {
      const { name, rw, locks } = await locksOf(t, 3)
      let over = false
      let readsBehind = 0
      let asked = false
      const stream = rw.slice(0, 2).flatMap((config) =>
        Array.from({ length: 3 }, async () => {
          while (!over) {
            const late = asked
            await config.read(async () => {
              if (late && !over) readsBehind++
              await t.sleep(5)
            })
          }
        }),
      )
      await t.sleep(50)
      let granted = false
      const writing = (rw[2] as ReadWriteLock).acquireWrite()
      void writing.then(() => (granted = true))
      // Reads that begin while the request of the writer is on its way to the store may overtake it.
      await t.until('the writer waits', async () => granted || (await (locks[2] as Locks).waiters(name)).length > 0)
      asked = true
      const writer = await t.settled('the writer writes', writing)
      over = true
      await writer.release()
      await Promise.all(stream)
      // Each of the six readers may have been in flight to the store when the writer asked.
      assert.ok(readsBehind <= 12, `${readsBehind} reads overtook the writer`)
    },
  },
]
