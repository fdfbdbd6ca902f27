import { strict as assert } from 'node:assert'
import {
  ClosedError,
  InvalidOptionError,
  type Lock,
  LockLostError,
  type Locks,
  LockTimeoutError,
  type Semaphore,
  StoreUnavailableError,
  UnsupportedError,
} from '../../../src/index.js'
import type { TestContext, Case } from '../../../src/testing/index.js'

/** The same semaphore in several clients. */
async function clients(
  t: TestContext,
  count: number,
  permits: number,
): Promise<{ name: string; locks: Locks[]; all: Semaphore[] }> {
  const name = t.name()
  const locks: Locks[] = []
  for (let i = 0; i < count; i++) locks.push(await t.locks())
  return { name, locks, all: locks.map((one) => one.semaphore(name, permits)) }
}

/** Waits until this many are queued. */
async function untilQueued(t: TestContext, locks: Locks, name: string, count: number): Promise<void> {
  await t.until(
    `${count} in the queue`,
    async () => (await locks.waiters(name, { kind: 'semaphore' })).length === count,
  )
}

const anywhere: Case[] = [
  {
    name: 'three clients with thirty tasks never hold more permits than there are',
    async run(t) {
      const { all } = await clients(t, 3, 4)
      let inside = 0
      let most = 0
      const work = Array.from({ length: 30 }, (_, i) =>
        (all[i % 3] as Semaphore).use(
          async () => {
            most = Math.max(most, ++inside)
            await t.sleep(5 + (i % 4) * 5)
            inside--
            return i
          },
          { wait: 'forever' },
        ),
      )
      assert.deepEqual(
        await t.settled('all are done', Promise.all(work)),
        work.map((_, i) => i),
      )
      assert.ok(most <= 4, `${most} were held at once`)
      assert.ok(most >= 2, 'they did not run one after the other')
    },
  },
  {
    name: 'one semaphore object may be used by many tasks, because each acquisition has its own identity',
    async run(t) {
      const { all } = await clients(t, 1, 2)
      const [two] = all as [Semaphore]
      const [a, b] = await Promise.all([two.acquire(), two.acquire()])
      assert.equal(await two.tryAcquire(), null)
      assert.notEqual(a.holder, b.holder)
      assert.equal(await a.release(), true)
      assert.equal(await a.release(), true, 'the first answer is repeated')
      const c = await t.settled('the released permit', two.acquire())
      assert.equal(await two.tryAcquire(), null)
      assert.ok(b.isHeld && c.isHeld)
    },
  },
  {
    name: 'use() resolves with the result of the function, rejects with its error, and releases',
    async run(t) {
      const { all } = await clients(t, 2, 1)
      const [a, b] = all as [Semaphore, Semaphore]
      assert.equal(await a.use((lock) => lock.isHeld), true)
      const own = new Error('mine')
      await assert.rejects(
        a.use(async () => Promise.reject(own)),
        own,
      )
      await assert.rejects(
        a.use(() => {
          throw own
        }),
        own,
      )
      assert.ok(await b.tryAcquire())
    },
  },
  {
    name: 'a holder that dies frees its permit and no other',
    async run(t) {
      await t.unhurried(300, async (ttl) => {
        const { all } = await clients(t, 2, 2)
        const [a, b] = all as [Semaphore, Semaphore]
        const alive = await a.acquire()
        const from = t.now()
        const dead = await a.acquire({ ttl, autoRenew: false })
        const busy = await b.tryAcquire()
        t.mustBeBefore(from + ttl)
        assert.equal(busy, null)
        const next = await t.settled('the permit of the dead holder', b.acquire())
        assert.ok(!dead.isHeld)
        assert.ok(alive.isHeld && next.isHeld)
        assert.equal(await b.tryAcquire(), null, 'two are held')
      })
    },
  },
  {
    name: 'locks and elections of the same name do not block a semaphore',
    async run(t) {
      const { name, locks, all } = await clients(t, 1, 1)
      await using permit = await (all[0] as Semaphore).acquire()
      await using lock = await (locks[0] as Locks).acquire(name, { wait: 0 })
      assert.ok(permit.isHeld && lock.isHeld)
    },
  },
  {
    name: 'a caller that gives up is told how long it waited and which holders blocked it, and the event comes once',
    async run(t) {
      const { locks, all } = await clients(t, 2, 2)
      const [a, b] = all as [Semaphore, Semaphore]
      const held = [await a.acquire(), await a.acquire()]
      const { values } = (await t.client()).features
      const timeouts: unknown[] = []
      ;(locks[1] as Locks).on('timeout', (facts) => timeouts.push(facts.kind))
      for (const wait of [0, 1_500]) {
        await assert.rejects(b.acquire({ wait }), (error) => {
          assert.ok(error instanceof LockTimeoutError)
          assert.ok(error.waitedMs >= wait, `${error.waitedMs}`)
          // A store without values does not know its holders.
          const known: (string | undefined)[] = values ? held.map(({ holder }) => holder) : [undefined]
          assert.ok(known.includes(error.heldBy), `${error.heldBy}`)
          return true
        })
      }
      assert.deepEqual(timeouts, ['semaphore', 'semaphore'])
    },
  },
  {
    name: 'acquire() retries during an outage until the wait is over, and then reports an outage',
    async run(t) {
      const store = await t.faulty()
      const locks = await t.locks({}, store)
      const semaphore = locks.semaphore(t.name(), 2)
      const outage = store.inject({ effect: 'break-call', on: 'acquire' })
      await assert.rejects(semaphore.tryAcquire(), StoreUnavailableError)
      await assert.rejects(semaphore.acquire({ wait: 0 }), StoreUnavailableError)
      const began = t.now()
      await assert.rejects(semaphore.acquire({ wait: 600 }), StoreUnavailableError)
      assert.ok(t.now() - began >= 600, `gave up after ${t.now() - began} ms`)
      const waiting = semaphore.acquire()
      await outage.strikes(outage.struck + 2)
      outage.lift()
      assert.ok((await t.settled('the caller gets it after the outage', waiting)).isHeld)
    },
  },
  {
    name: 'a store that never answers does not prolong a wait',
    async run(t) {
      const store = await t.faulty()
      const semaphore = (await t.locks({}, store)).semaphore(t.name(), 2)
      store.inject({ effect: 'lose-call', on: 'acquire' })
      const began = t.now()
      await assert.rejects(semaphore.acquire({ wait: 200 }), StoreUnavailableError)
      assert.ok(t.now() - began < 3_000, `gave up after ${t.now() - began} ms`)
    },
  },
  {
    name: 'a wait that is cancelled rejects with the reason and leaves nothing behind',
    async run(t) {
      const { all } = await clients(t, 2, 1)
      const [a, b] = all as [Semaphore, Semaphore]
      const held = await a.acquire()
      const cancel = new AbortController()
      const reason = new Error('enough')
      const cancelled = assert.rejects(b.acquire({ signal: cancel.signal, wait: 'forever' }), reason)
      await assert.rejects(b.acquire({ signal: AbortSignal.abort(reason) }), reason)
      await t.sleep(50)
      cancel.abort(reason)
      await cancelled
      await held.release()
      // A queue entry left behind would be granted now, to no caller.
      const next = await t.until('the permit is free', () => b.tryAcquire())
      assert.ok(next.isHeld)
    },
  },
  {
    name: 'a holder that is revoked is told, and use() rejects although its function returned',
    async run(t) {
      const store = await t.client()
      const locks = await t.locks({}, store)
      const semaphore = locks.semaphore(t.name(), 3)
      const outcome = semaphore.use(
        async (lock) => {
          const { key } = await t.until('it is seen', async () =>
            (await store.holders?.('semaphore:'))?.find(({ owner }) => owner === lock.holder),
          )
          await store.revoke?.(key)
          await t.until('told', () => lock.signal.aborted)
        },
        { ttl: '1s' },
      )
      await assert.rejects(t.settled('rejected', outcome), LockLostError)
    },
  },
  {
    name: 'close() rejects the waiters and frees the permits',
    async run(t) {
      const { locks, all } = await clients(t, 2, 1)
      const [a, b] = all as [Semaphore, Semaphore]
      await a.acquire()
      const closed = assert.rejects(a.acquire(), ClosedError)
      await t.sleep(30)
      await (locks[0] as Locks).close({ grace: 0 })
      await closed
      assert.ok((await t.settled('the other one', b.acquire())).isHeld)
    },
  },
  {
    name: 'bad input is reported before any request is sent',
    async run(t) {
      const { name, locks, all } = await clients(t, 1, 3)
      const [one] = locks as [Locks]
      const [three] = all as [Semaphore]
      const option = (wanted: string) => (error: unknown) =>
        error instanceof InvalidOptionError && error.option === wanted
      for (const permits of [0, -1, 1.5, Number.NaN, 2 ** 31, '3', undefined]) {
        assert.throws(() => one.semaphore(name, permits as number), option('permits'))
      }
      for (const weight of [0, -1, 1.5, 4, Number.NaN, '1']) {
        await assert.rejects(three.acquire({ weight: weight as number }), option('weight'))
      }
      assert.throws(() => one.semaphore('', 1), option('name'))
      await assert.rejects(three.acquire({ mode: 'shared' } as never), option('mode'))
      await assert.rejects(three.use(1 as never), option('fn'))
      assert.equal(await three.use(() => three.permits), 3)
    },
  },
]

const weighted: Case[] = [
  {
    name: 'weights never exceed the permits, and a caller that asks for more than is left waits',
    needs: ['counting'],
    async run(t) {
      const { all } = await clients(t, 3, 5)
      let inside = 0
      let most = 0
      const work = Array.from({ length: 24 }, (_, i) => {
        const weight = 1 + (i % 4)
        return (all[i % 3] as Semaphore).use(
          async () => {
            inside += weight
            most = Math.max(most, inside)
            await t.sleep(3)
            inside -= weight
          },
          { weight, wait: 'forever' },
        )
      })
      await t.settled('all are done', Promise.all(work))
      assert.ok(most <= 5, `${most} were held at once`)
      const [a, b] = all as [Semaphore, Semaphore]
      await using heavy = await a.acquire({ weight: 3 })
      assert.equal(await b.tryAcquire({ weight: 3 }), null)
      await using light = (await b.tryAcquire({ weight: 2 })) as Lock
      assert.ok(heavy.isHeld && light.isHeld)
    },
    otherwise: {
      name: 'a store that cannot count rejects weights, and says what to use instead',
      async run(t) {
        const { all } = await clients(t, 1, 3)
        const [three] = all as [Semaphore]
        for (const asked of [
          three.acquire({ weight: 2 }),
          three.tryAcquire({ weight: 2 }),
          three.use(() => {}, { weight: 3 }),
        ]) {
          await assert.rejects(asked, (error) => {
            assert.ok(error instanceof UnsupportedError)
            assert.match(error.message, /weight must be 1: use memory, sqlite, redis, postgres or etcd/)
            return true
          })
        }
        assert.ok(await three.acquire({ weight: 1 }))
      },
    },
  },
  {
    name: 'a holder that dies frees exactly the weight that it held',
    needs: ['counting'],
    async run(t) {
      await t.unhurried(300, async (ttl) => {
        const { all } = await clients(t, 2, 6)
        const [a, b] = all as [Semaphore, Semaphore]
        await using alive = await a.acquire({ weight: 2 })
        const from = t.now()
        const dead = await a.acquire({ weight: 3, ttl, autoRenew: false })
        const busy = await b.tryAcquire({ weight: 2 })
        t.mustBeBefore(from + ttl)
        assert.equal(busy, null)
        await using next = await t.settled('what the dead holder had', b.acquire({ weight: 4 }))
        assert.ok(alive.isHeld && next.isHeld && !dead.isHeld)
        assert.equal(await b.tryAcquire(), null, 'six are held')
      })
    },
  },
  {
    name: 'a client that is configured with fewer permits is blocked by the current holders',
    needs: ['counting'],
    async run(t) {
      const { name, locks } = await clients(t, 2, 1)
      const [a, b] = locks as [Locks, Locks]
      await using one = await a.semaphore(name, 3).acquire()
      assert.equal(await b.semaphore(name, 1).tryAcquire(), null)
      await using two = (await b.semaphore(name, 2).tryAcquire()) as Lock
      assert.ok(one.isHeld && two.isHeld)
    },
  },
  {
    name: 'waiters are served in order, also with weights: a heavy one is not overtaken by light ones',
    needs: ['counting', 'queue'],
    async run(t) {
      const { name, locks, all } = await clients(t, 5, 3)
      const [looking] = locks as [Locks]
      const held = [await (all[0] as Semaphore).acquire(), await (all[0] as Semaphore).acquire()]
      const order: string[] = []
      const ask = async (client: number, what: string, weight: number): Promise<void> => {
        const lock = await (all[client] as Semaphore).acquire({ weight })
        order.push(what)
        await t.sleep(5)
        await lock.release()
      }
      const heavy = ask(1, 'heavy', 3)
      await untilQueued(t, looking, name, 1)
      const light = ask(2, 'light', 1)
      await untilQueued(t, looking, name, 2)
      const middle = ask(3, 'middle', 2)
      await untilQueued(t, looking, name, 3)
      assert.equal(await (all[4] as Semaphore).tryAcquire(), null, 'others are waiting already')
      await (held[0] as Lock).release()
      await t.sleep(50)
      assert.deepEqual(order, [], 'there is room for the light ones, but it is not their turn')
      await (held[1] as Lock).release()
      await t.settled('all are served', Promise.all([heavy, light, middle]))
      assert.equal(order[0], 'heavy')
      // The other two fit together and may be told in any order.
      assert.deepEqual(order.slice(1).sort(), ['light', 'middle'])
    },
  },
  {
    name: 'forty waiters of one process are served in the order of their arrival',
    needs: ['counting', 'queue'],
    async run(t) {
      const { all } = await clients(t, 1, 1)
      const [one] = all as [Semaphore]
      const held = await one.acquire()
      const order: number[] = []
      const waiting = Array.from({ length: 40 }, (_, i) => one.use(() => void order.push(i), { wait: 'forever' }))
      await t.sleep(20)
      await held.release()
      await t.settled('all are served', Promise.all(waiting))
      assert.deepEqual(
        order,
        order.map((_, i) => i),
      )
    },
  },
]

export const semaphoreCases: Case[] = [...anywhere, ...weighted]
