import { afterAll, beforeAll, describe, expect, test, type TestContext } from 'vitest'
import { type PostgresServer, type Proxy, startPostgres, startProxy } from '../../../testbed/servers/index.js'
import { createLocks, StoreUnavailableError } from '../../../src/index.js'
import {
  AdvisoryFixture,
  ask,
  claim,
  lost,
  OtherProcess,
  reader,
  sleep,
  until,
} from '../../../testbed/postgres-advisory/fixture.js'

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

/** A database of this test alone: the tests of a group run at once. */
async function open(t: TestContext): Promise<AdvisoryFixture> {
  const fixture = new AdvisoryFixture(await server.createDatabase())
  t.onTestFinished(() => fixture.close())
  return fixture
}

/** A database, and the network between it and a process. */
async function openBehindProxy(t: TestContext): Promise<{ fixture: AdvisoryFixture; proxy: Proxy }> {
  const fixture = await open(t)
  const proxy = await startProxy(server.port)
  t.onTestFinished(() => proxy.stop())
  return { fixture, proxy }
}

/** BUSY_MS: what a busy machine adds. A lock that is kept for as long as the longer one is freed after a minute. */
const BUSY_MS = 15_000

describe('a connection that is lost', () => {
  test.concurrent('its error is what outage() returns, until a session is opened again', async (t) => {
    const fixture = await open(t)
    const store = fixture.store()
    const locks = createLocks(store)
    await locks.acquire('a')
    expect(store.outage?.()).toBeUndefined()
    const [pid] = await fixture.sessions()
    await fixture.query('SELECT pg_terminate_backend($1)', [pid])
    await t.expect.poll(() => store.outage?.()).toBeInstanceOf(StoreUnavailableError)
    expect(String(store.outage?.())).toContain('an administrator ended the connection')
    await locks.acquire('b')
    expect(store.outage?.()).toBeUndefined()
    await locks.close({ grace: 0 })
  })

  test.concurrent('a grant that arrives together with the end of its connection does not count', async (t) => {
    const { fixture, proxy } = await openBehindProxy(t)
    const store = fixture.store({ timeout: 20_000 }, { connectionString: proxy.through(fixture.url) })
    const before = claim('before')
    await ask(store, before)
    await store.release([before])
    const [pid] = await fixture.sessions()
    proxy.stall('replies')
    // The first lock of an instance, which subscribes to losses with it.
    const asking = createLocks(store).tryAcquire('a')
    await until('the server has granted it', async () => (await fixture.held()) === 1)
    await fixture.query('SELECT pg_terminate_backend($1)', [pid])
    await until('the server has freed it', async () => (await fixture.held()) === 0)
    await proxy.heal()
    const lock = await asking
    expect(await fixture.held(), 'it is tried again on another connection').toBe(1)
    expect(lock?.isHeld).toBe(true)
  })

  test.concurrent('every lock on the connection is lost at once, and no other lock is', async (t) => {
    const fixture = await open(t)
    const store = fixture.store()
    const locks = createLocks(store)
    const held = await Promise.all(['a', 'b', 'c'].map((name) => locks.acquire(name)))
    const [pid] = await fixture.sessions()
    // One more lock on a session of its own, because it was waited for.
    const blocker = claim('elsewhere')
    const other = fixture.store()
    await ask(other, blocker)
    const waiting = locks.acquire('elsewhere')
    await until('the waiter stands in the queue', async () => (await fixture.waiting()) === 1)
    await other.release([blocker])
    const apart = await waiting
    const told = held.map(lost)
    const since = performance.now()
    await fixture.query('SELECT pg_terminate_backend($1)', [pid])
    expect(await Promise.all(told)).toEqual(['session', 'session', 'session'])
    // Holders are told without waiting for a heartbeat (10 s) or the ttl (30 s).
    expect(performance.now() - since).toBeLessThan(9_000)
    expect(apart.isHeld).toBe(true)
    expect(await held[0]?.release()).toBe(false)
    const again = await locks.acquire('a')
    expect(again.fencingToken).toBeGreaterThan(held[0]?.fencingToken as bigint)
    expect(await apart.release()).toBe(true)
  })

  test.concurrent('an acquire whose connection ends is tried again on another connection', async (t) => {
    const fixture = await open(t)
    const locks = createLocks(fixture.store())
    await (await locks.acquire('first')).release()
    for (let round = 0; round < 5; round++) {
      const [pid] = await fixture.sessions()
      const [lock] = await Promise.all([
        locks.tryAcquire(`asked:${round}`),
        fixture.query('SELECT pg_terminate_backend($1)', [pid]),
      ])
      // The claim is granted before or after the loss: `isHeld` is never true for a lock that the server does not have.
      const held = await fixture.held()
      if (lock?.isHeld) expect(held).toBe(1)
      await lock?.release()
    }
  })

  test.concurrent('a wait whose connection ends goes on with another connection', async (t) => {
    const fixture = await open(t)
    const [a, b] = [createLocks(fixture.store()), createLocks(fixture.store())]
    const held = await a.acquire('waited')
    const waiting = b.acquire('waited', { wait: '20s' })
    const waiter = async (): Promise<number | undefined> => (await fixture.pids('NOT granted'))[0]
    const first = await until('the waiter stands in the queue', waiter)
    await fixture.query('SELECT pg_terminate_backend($1)', [first])
    await until('the waiter stands in the queue again', async () => ![undefined, first].includes(await waiter()))
    await held.release()
    expect(await (await waiting).release()).toBe(true)
  })
})

describe('a network that fails', () => {
  test.concurrent('every lock on a connection that the network cuts is lost at once', async (t) => {
    const { fixture, proxy } = await openBehindProxy(t)
    const locks = createLocks(new AdvisoryFixture(proxy.through(fixture.url)).store())
    const lock = await locks.acquire('cut')
    const told = lost(lock)
    proxy.cut()
    expect(await told).toBe('session')
    await until('the server has freed it', async () => (await fixture.held()) === 0)
    expect(await (await locks.acquire('cut')).release()).toBe(true)
  })

  test.concurrent.for([false, true])(
    'a grant whose connection ends before the other claims of its call are decided is not answered as held (atomic: %s)',
    async (atomic, t) => {
      const { fixture, proxy } = await openBehindProxy(t)
      const store = new AdvisoryFixture(proxy.through(fixture.url)).store()
      expect((await ask(store, claim('opens-the-session'))).granted).toBe(true)
      const [pid] = await fixture.sessions()
      proxy.delay(100)
      // The second one is of another class of ttl: its session has to be opened first, which takes several round trips.
      const asked = store.acquire([claim('brief'), claim('slow', { ttlMs: 500_000 })], { atomic })
      await until('it is granted', async () => (await fixture.held()) === 2)
      await fixture.query('SELECT pg_terminate_backend($1)', [pid])
      expect((await asked).map(({ granted }) => granted)).toEqual(['unknown', true])
      await store.close()
    },
  )

  test.concurrent('a reader that joins another one on a connection that ends meanwhile does not hold beside a writer', async (t) => {
    const { fixture, proxy } = await openBehindProxy(t)
    const store = new AdvisoryFixture(proxy.through(fixture.url)).store()
    const other = fixture.store()
    const writer = claim('shared')
    expect((await ask(other, writer)).granted).toBe(true)
    // On a session of its own, because it was waited for; most locks are on the other, which is used for what comes next.
    const waiting = ask(store, reader('shared', { blockMs: 10_000 }))
    await until('the reader waits', async () => (await fixture.waiting()) === 1)
    const [waiter] = await fixture.query(
      "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    for (const name of ['a', 'b']) expect((await ask(store, claim(name))).granted).toBe(true)
    await other.release([writer])
    expect((await waiting).granted).toBe(true)
    proxy.delay(300)
    const asked = store.acquire([reader('shared'), claim('c')], { atomic: true })
    await fixture.query('SELECT pg_terminate_backend($1)', [waiter?.['pid']])
    const [answer] = await asked
    const beside = await ask(other, writer)
    expect([answer?.granted, beside.granted], 'a reader and a writer at once').not.toEqual([true, true])
    await Promise.all([store.close(), other.close()])
  })

  test.concurrent('a holder behind a silent network gives up before the server grants the lock to the next', async (t) => {
    const { fixture, proxy } = await openBehindProxy(t)
    const through = createLocks(new AdvisoryFixture(proxy.through(fixture.url)).store())
    const direct = createLocks(fixture.store())
    const lock = await through.acquire('silent', { ttl: '2s' })
    const waiting = direct.acquire('silent', { wait: 'forever' })
    await until('the next stands in the queue', async () => (await fixture.waiting()) === 1)
    const { signal } = lock
    proxy.blackhole()
    const next = await waiting
    expect(signal.aborted).toBe(true)
    expect(lock.isHeld).toBe(false)
    expect(next.fencingToken).toBeGreaterThan(lock.fencingToken)
  })

  test.concurrent('a session that once waited in the queue is given up by silence as soon as any other', async (t) => {
    const { fixture, proxy } = await openBehindProxy(t)
    const store = new AdvisoryFixture(proxy.through(fixture.url)).store({ timeout: 2_000, queueFor: '1h' })
    const blocker = claim('watched')
    const direct = fixture.store()
    await ask(direct, blocker)
    const wanted = claim('watched', { blockMs: 10_000 })
    const waiting = ask(store, wanted)
    await until('the waiter stands in the queue', async () => (await fixture.waiting()) === 1)
    await direct.release([blocker])
    expect((await waiting).granted).toBe(true)
    await store.release([wanted])
    proxy.blackhole()
    expect((await ask(store, claim('watched'))).granted).toBe('unknown')
  })

  test.concurrent('a lock stays held when the network stalls for less than its ttl', async (t) => {
    const { fixture, proxy } = await openBehindProxy(t)
    const locks = createLocks(new AdvisoryFixture(proxy.through(fixture.url)).store())
    const lock = await locks.acquire('stalled', { ttl: '12s' })
    proxy.stall()
    // Longer than a third of the ttl: a heartbeat is sent meanwhile.
    await sleep(4_500)
    await proxy.heal()
    await sleep(2_500)
    expect(lock.isHeld).toBe(true)
    expect(await lock.release()).toBe(true)
  })
})

describe('a process that freezes or is killed', () => {
  test.concurrent('the lock of a frozen process is freed within the ttl, and the process learns of the loss when it wakes', async (t) => {
    const fixture = await open(t)
    const ttlMs = 6_000
    const other = new OtherProcess('hold', fixture.url, 'frozen', String(ttlMs))
    await other.says('held')
    const locks = createLocks(fixture.store())
    const waiting = locks.acquire('frozen', { wait: 'forever' })
    await until('the next stands in the queue', async () => (await fixture.waiting()) === 1)
    const since = performance.now()
    other.signal('SIGSTOP')
    const next = await waiting
    // The ttl counts from the last heartbeat before the freeze. The rest is for a busy machine.
    expect(performance.now() - since).toBeLessThan(ttlMs + 5_000)
    other.signal('SIGCONT')
    // The ttl had passed before the server ended the session for it, so the lock ran out and was not lost with the session.
    expect(await other.says('lost')).toBe('lost frozen')
    expect(next.isHeld).toBe(true)
    await other.end()
  })

  test.concurrent.for<[string, string]>([
    ['before a longer one', 'short:2000,long:60000'],
    ['after a longer one', 'long:60000,short:2000'],
    ['as a reader beside a longer one of the same name', 'long:60000,short:60000:shared,short:2000:shared'],
  ])(
    'a frozen process keeps a lock of 2 s taken %s for at most twice its ttl, and keeps the longer one',
    async ([, held], t) => {
      const fixture = await open(t)
      const other = new OtherProcess('both', fixture.url, held)
      t.onTestFinished(() => other.end())
      await other.says('all held')
      const shared = held.includes('shared')
      const locks = createLocks(fixture.store())
      const since = performance.now()
      other.signal('SIGSTOP')
      if (shared) {
        // Of the two readers, one is freed in time and the other holds for its minute.
        await until('the short one is freed', async () => (await fixture.count("granted AND mode = 'ShareLock'")) === 1)
      } else {
        await locks.acquire('short', { wait: 'forever' })
      }
      expect(performance.now() - since).toBeLessThan(2 * 2_000 + BUSY_MS)
      expect(await locks.tryAcquire('long')).toBeNull()
      other.signal('SIGCONT')
      await other.says('lost short of 2000')
      // The longer lock is on a session of its own, which the loss of the other one does not touch.
      await sleep(500)
      expect(other.lines.filter((line) => line.startsWith('lost'))).toEqual(['lost short of 2000'])
      expect(await locks.tryAcquire('long')).toBeNull()
    },
  )

  test.concurrent('a frozen process keeps a lock of 2 s for at most twice its ttl on a connection that held one of a minute before', async (t) => {
    const fixture = await open(t)
    const other = new OtherProcess('after', fixture.url, 'short', '2000')
    t.onTestFinished(() => other.end())
    await other.says('held')
    other.signal('SIGSTOP')
    const since = performance.now()
    await until('the lock is freed', async () => (await fixture.held()) === 0)
    expect(performance.now() - since).toBeLessThan(2 * 2_000 + BUSY_MS)
  })

  test.concurrent('a process that freezes while it waits keeps the lock it is granted for at most twice its ttl', async (t) => {
    const fixture = await open(t)
    const blocker = claim('queued')
    const store = fixture.store()
    await ask(store, blocker)
    const other = new OtherProcess('both', fixture.url, 'long:60000,queued:2000')
    t.onTestFinished(() => other.end())
    await other.says('held long')
    await until('the waiter stands in the queue', async () => (await fixture.waiting()) === 1)
    other.signal('SIGSTOP')
    const since = performance.now()
    await store.release([blocker])
    await until('the lock was granted and freed again', async () => (await ask(store, blocker)).granted === true)
    expect(performance.now() - since).toBeLessThan(2 * 2_000 + BUSY_MS)
  })

  test.concurrent('a killed process frees its locks and its queue entry without waiting for the ttl', async (t) => {
    const fixture = await open(t)
    const holder = new OtherProcess('hold', fixture.url, 'killed')
    await holder.says('held')
    const waiter = new OtherProcess('wait', fixture.url, 'killed')
    await until('the next stands in the queue', async () => (await fixture.waiting()) === 1)
    await waiter.end()
    await until('the killed waiter has left the queue', async () => (await fixture.waiting()) === 0)
    const locks = createLocks(fixture.store())
    const waiting = locks.acquire('killed', { wait: 'forever' })
    await until('another waiter stands in the queue', async () => (await fixture.waiting()) === 1)
    await holder.end()
    expect(await (await waiting).release()).toBe(true)
  })
})
