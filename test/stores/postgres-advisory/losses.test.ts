import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import {
  type PostgresServer,
  type Proxy,
  startPostgres,
  startProxy,
  startStandby,
} from '../../../testbed/servers/index.js'
import { idOfName } from '../../../src/stores/postgres-advisory/keys.js'
import { type Answer, createLocks, type Lock, type LockLostError, StoreUnavailableError } from '../../../src/index.js'
import {
  ask,
  claim,
  OtherProcess,
  AdvisoryFixture,
  reader,
  sleep,
  until,
} from '../../../testbed/postgres-advisory/fixture.js'

let server: PostgresServer
let fixture: AdvisoryFixture

beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

beforeEach(async () => {
  fixture = new AdvisoryFixture(await server.createDatabase())
})
afterEach(() => fixture.close())

/** BUSY_MS: what a busy machine adds. A lock that is kept for as long as the longer one is freed after a minute. */
const BUSY_MS = 15_000

/** Resolves with the reason when the lock is lost. */
function lost(lock: Lock): Promise<string> {
  const { signal } = lock
  const why = (): string => (signal.reason as LockLostError).why
  if (signal.aborted) return Promise.resolve(why())
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(why())))
}

describe('a connection that is lost', () => {
  test('its error is what outage() returns, until a session is opened again', async () => {
    const store = fixture.store()
    const locks = createLocks(store)
    await locks.acquire('a')
    expect(store.outage?.()).toBeUndefined()
    const [pid] = await fixture.sessions()
    await fixture.query('SELECT pg_terminate_backend($1)', [pid])
    await expect.poll(() => store.outage?.()).toBeInstanceOf(StoreUnavailableError)
    expect(String(store.outage?.())).toContain('an administrator ended the connection')
    await locks.acquire('b')
    expect(store.outage?.()).toBeUndefined()
    await locks.close({ grace: 0 })
  })

  test('every lock on the connection is lost at once, and no other lock is', async () => {
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

  test('an acquire whose connection ends is tried again on another connection', async () => {
    const locks = createLocks(fixture.store())
    await (await locks.acquire('first')).release()
    for (let round = 0; round < 5; round++) {
      const [pid] = await fixture.sessions()
      const [lock] = await Promise.all([
        locks.tryAcquire(`asked:${round}`),
        fixture.query('SELECT pg_terminate_backend($1)', [pid]),
      ])
      // The claim is granted before or after the loss: `isHeld` is never true for a lock that the server does not have.
      const [row] = await fixture.query('SELECT pid FROM pg_locks WHERE locktype = $1 AND granted', ['advisory'])
      if (lock?.isHeld) expect(row).toBeDefined()
      await lock?.release()
    }
  })

  test('a wait whose connection ends goes on with another connection', async () => {
    const [a, b] = [createLocks(fixture.store()), createLocks(fixture.store())]
    const held = await a.acquire('waited')
    const waiting = b.acquire('waited', { wait: '20s' })
    const [row] = await until('the waiter stands in the queue', async () => {
      const rows = await fixture.query("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
      return rows.length > 0 && rows
    })
    await fixture.query('SELECT pg_terminate_backend($1)', [row?.['pid']])
    await until('the waiter stands in the queue again', async () => {
      const rows = await fixture.query("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
      return rows.length > 0 && rows[0]?.['pid'] !== row?.['pid']
    })
    await held.release()
    expect(await (await waiting).release()).toBe(true)
  })
})

describe('a network that fails', () => {
  let proxy: Proxy

  beforeEach(async () => {
    proxy = await startProxy(server.port)
  })
  afterEach(() => proxy.stop())

  test('every lock on a connection that the network cuts is lost at once', async () => {
    const locks = createLocks(new AdvisoryFixture(proxy.through(fixture.url)).store())
    const lock = await locks.acquire('cut')
    const told = lost(lock)
    proxy.cut()
    expect(await told).toBe('session')
    await until('the server has freed it', async () => (await fixture.held()) === 0)
    expect(await (await locks.acquire('cut')).release()).toBe(true)
  })

  test.each([false, true])(
    'a grant whose connection ends before the other claims of its call are decided is not answered as held (atomic: %s)',
    async (atomic) => {
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

  test('a reader that joins another one on a connection that ends meanwhile does not hold beside a writer', async () => {
    const store = new AdvisoryFixture(proxy.through(fixture.url)).store()
    const other = fixture.store()
    const writer = claim('shared')
    expect((await ask(other, writer)).granted).toBe(true)
    // On a session of its own, because it was waited for; most locks are on the other, which is used for what comes next.
    const waiting = ask(store, reader('shared', { blockMs: 10_000 }))
    await until('the reader waits', async () => (await fixture.waiting()) === 1)
    const [waiter] = await fixture.query("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
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

  test('a holder behind a silent network gives up before the server grants the lock to the next', async () => {
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

  test('a session that once waited in the queue is given up by silence as soon as any other', async () => {
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

  test('a lock stays held when the network stalls for less than its ttl', async () => {
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
  test('the lock of a frozen process is freed within the ttl, and the process learns of the loss when it wakes', async () => {
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

  test.each([
    ['before a longer one', 'short:2000,long:60000'],
    ['after a longer one', 'long:60000,short:2000'],
    ['as a reader beside a longer one of the same name', 'long:60000,short:60000:shared,short:2000:shared'],
  ])(
    'a frozen process keeps a lock of 2 s taken %s for at most twice its ttl, and keeps the longer one',
    async (_, held) => {
      const other = new OtherProcess('both', fixture.url, held)
      onTestFinished(() => other.end())
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

  test('a frozen process keeps a lock of 2 s for at most twice its ttl on a connection that held one of a minute before', async () => {
    const other = new OtherProcess('after', fixture.url, 'short', '2000')
    onTestFinished(() => other.end())
    await other.says('held')
    other.signal('SIGSTOP')
    const since = performance.now()
    await until('the lock is freed', async () => (await fixture.held()) === 0)
    expect(performance.now() - since).toBeLessThan(2 * 2_000 + BUSY_MS)
  })

  test('a process that freezes while it waits keeps the lock it is granted for at most twice its ttl', async () => {
    const blocker = claim('queued')
    const store = fixture.store()
    await ask(store, blocker)
    const other = new OtherProcess('both', fixture.url, 'long:60000,queued:2000')
    onTestFinished(() => other.end())
    await other.says('held long')
    await until('the waiter stands in the queue', async () => (await fixture.waiting()) === 1)
    other.signal('SIGSTOP')
    const since = performance.now()
    await store.release([blocker])
    await until('the lock was granted and freed again', async () => (await ask(store, blocker)).granted === true)
    expect(performance.now() - since).toBeLessThan(2 * 2_000 + BUSY_MS)
  })

  test('a killed process frees its locks and its queue entry without waiting for the ttl', async () => {
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

describe('a server that restarts, fails over or is full', () => {
  test('a restarted server has lost all locks, holders are told, and waiters get larger tokens', async () => {
    await using own = await startPostgres()
    const here = new AdvisoryFixture(own.url)
    const [a, b] = [createLocks(here.store()), createLocks(here.store())]
    const lock = await a.acquire('restarted')
    const waiting = b.acquire('restarted', { wait: '30s' })
    await until('the next stands in the queue', async () => (await here.waiting()) === 1)
    const told = lost(lock)
    await own.restart({ mode: 'immediate' })
    expect(await told).toBe('session')
    const next = await waiting
    expect(next.fencingToken).toBeGreaterThan(lock.fencingToken)
    expect(await next.release()).toBe(true)
    await here.close()
  })

  test('a failover to a standby ends all locks, holders are told, and tokens go on growing', async () => {
    await using primary = await startPostgres()
    await using standby = await startStandby(primary, { synchronous: true })
    await using proxy = await startProxy(primary.port)
    const here = new AdvisoryFixture(proxy.through(primary.url))
    const store = here.store()
    const locks = createLocks(store)
    const lock = await locks.acquire('failed over')
    const told = lost(lock)
    await primary.kill()
    expect(await told).toBe('session')
    await standby.promote()
    const there = new AdvisoryFixture(standby.url)
    const next = await createLocks(there.store()).acquire('failed over')
    expect(next.fencingToken).toBeGreaterThan(lock.fencingToken)
    await there.close()
    await here.close()
  })

  test('a session whose setup takes too long is given up, and the next one works', async () => {
    const store = fixture.store({ timeout: 300 })
    const later = claim('later')
    // The setup of a session raises the sequence under this lock.
    const { bits } = idOfName('\0leasehold advisory raising')
    await fixture.query('SELECT pg_advisory_lock($1)', [bits])
    const refused = await ask(store, later)
    expect(refused).toMatchObject({ granted: 'unknown', error: { message: expect.stringContaining('not answer') } })
    await fixture.query('SELECT pg_advisory_unlock($1)', [bits])
    await until('the next one works', async () => (await ask(store, later)).granted === true)
  })

  test('a standby is refused, because its locks would exclude nobody on the primary', async () => {
    await using primary = await startPostgres()
    await using standby = await startStandby(primary)
    const here = new AdvisoryFixture(standby.url)
    const error = await createLocks(here.store())
      .tryAcquire('standby')
      .catch((caught: unknown) => caught)
    expect(error).toBeInstanceOf(StoreUnavailableError)
    expect((error as Error).message).toContain('standby')
    await here.close()
  })

  test('a server without room for another lock says so, and held locks stay held and can be released', async () => {
    await using own = await startPostgres({ settings: { max_locks_per_transaction: 10, max_connections: 10 } })
    const here = new AdvisoryFixture(own.url)
    const store = here.store()
    const claims = Array.from({ length: 8_000 }, (_, i) => claim(`full:${i}`))
    const answers: Answer[] = []
    for (let at = 0; at < claims.length; at += 200) {
      answers.push(...(await store.acquire(claims.slice(at, at + 200))))
      if (answers.some((answer) => answer.granted === 'unknown')) break
    }
    const failed = answers.find((answer) => answer.granted === 'unknown') as { error: Error } | undefined
    expect(failed?.error.message).toContain('max_locks_per_transaction')
    const held = claims.filter((_, i) => answers[i]?.granted === true)
    expect(held.length).toBeGreaterThan(100)
    const released = await store.release(held)
    expect(released.every(({ outcome }) => outcome === 'released')).toBe(true)
    expect(await here.held()).toBe(0)
    await here.close()
  })

  test('a waiter that cannot open another session polls, and gets the lock', async () => {
    await using own = await startPostgres({ settings: { max_connections: 12, superuser_reserved_connections: 1 } })
    const here = new AdvisoryFixture(own.url)
    const [a, b] = [createLocks(here.store()), createLocks(here.store())]
    const held = await a.acquire('crowded')
    await (await b.acquire('warm')).release()
    await here.query('CREATE ROLE crowd LOGIN')
    const crowd = here.pool({
      max: 50,
      user: 'crowd',
      connectionString: undefined,
      host: '127.0.0.1',
      port: own.port,
      database: 'postgres',
    })
    const taken = []
    for (;;) {
      const client = await crowd.connect().catch(() => undefined)
      if (!client) break
      taken.push(client)
    }
    const waiting = b.acquire('crowded', { wait: '20s' })
    await sleep(200)
    await held.release()
    expect(await (await waiting).release()).toBe(true)
    for (const client of taken) client.release()
    await here.close()
  })
})

describe('settings of a role or a pool', () => {
  test('settings that would cut a wait short, hide it or make a session read only do not apply to sessions of the store', async () => {
    const role = `strict_${Date.now()}`
    await fixture.query(`CREATE ROLE ${role} LOGIN SUPERUSER`)
    for (const setting of [
      "statement_timeout = '50ms'",
      "lock_timeout = '20ms'",
      "idle_session_timeout = '300ms'",
      "idle_in_transaction_session_timeout = '50ms'",
      "default_transaction_isolation = 'serializable'",
      'default_transaction_read_only = on',
      "search_path = 'nowhere'",
    ]) {
      await fixture.query(`ALTER ROLE ${role} SET ${setting}`)
    }
    const pool = {
      connectionString: fixture.url.replace('postgres@', `${role}@`),
      query_timeout: 40,
      statement_timeout: 30,
    }
    const [a, b] = [createLocks(fixture.store({}, pool)), createLocks(fixture.store({}, pool))]
    const held = await a.acquire('strict')
    const waiting = b.acquire('strict', { wait: '10s' })
    await sleep(700)
    expect(held.isHeld).toBe(true)
    await held.release()
    const next = await waiting
    expect(next.fencingToken).toBeGreaterThan(held.fencingToken)
    await sleep(500)
    expect(await next.release()).toBe(true)
  })

  for (const level of ['repeatable read', 'serializable']) {
    test(`default_transaction_isolation = ${level} changes neither exclusion nor the order of tokens`, async () => {
      const options = `-c default_transaction_isolation=${level.replace(' ', '\\ ')}`
      const stores = Array.from({ length: 4 }, () => createLocks(fixture.store({}, { options })))
      let inside = 0
      let most = 0
      let last = 0n
      await Promise.all(
        stores.flatMap((locks) =>
          Array.from({ length: 5 }, () =>
            locks.withLock('level', async (lock) => {
              most = Math.max(most, ++inside)
              expect(lock.fencingToken).toBeGreaterThan(last)
              last = lock.fencingToken
              await sleep(2)
              inside--
            }),
          ),
        ),
      )
      expect(most).toBe(1)
    })
  }
})
