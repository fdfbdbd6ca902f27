import { Pool } from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres, startProxy } from '../../../testbed/servers/index.js'
import { createLocks, LockTimeoutError } from '../../../src/index.js'
import { advisory } from '../../../src/stores/postgres-advisory/index.js'
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

describe('connections', () => {
  test('many locks share one connection', async () => {
    const locks = createLocks(fixture.store())
    const held = await Promise.all(Array.from({ length: 200 }, (_, i) => locks.acquire(`many:${i}`)))
    expect(await fixture.held()).toBe(200)
    expect(await fixture.sessions()).toHaveLength(1)
    await Promise.all(held.map((lock) => lock.release()))
    expect(await fixture.held()).toBe(0)
  })

  test('close() of the last locks ends each session as soon as nothing is asked of it, whatever it was doing', async ({
    expect,
  }) => {
    await using proxy = await startProxy(server.port)
    const name = new URL(fixture.url).pathname
    await ask(fixture.store(), claim('lock:busy'))
    proxy.delay(20)
    // Sessions are opened, waited on and cancelled at these moments.
    const moments = [40, 80, 120, 160, 200, 240, 280, 320, 400, 480]
    const pools = await Promise.all(
      moments.map(async (ms) => {
        const pool = new Pool({ connectionString: proxy.through(fixture.url), max: 1, application_name: 'closing' })
        const locks = createLocks(advisory(pool))
        const refused = locks.acquire('busy', { wait: '20s' }).catch(() => {})
        await sleep(ms)
        await locks.close({ grace: 0 })
        await refused
        return pool
      }),
    )
    const open = `select count(*) from pg_stat_activity where application_name like 'closing%' and datname = '${name.slice(1)}'`
    await expect.poll(() => server.psql(open), { timeout: 15_000 }).toBe('0')
    await Promise.all(pools.map((pool) => pool.end()))
  })

  test('locks share a connection only if none has twice the ttl of another, whatever maxSessions is', async () => {
    const store = fixture.store({ maxSessions: 1 })
    const ttls = [2_000, 1_100, 60_000, 40_000, 2_000]
    for (const [i, ttlMs] of ttls.entries()) await ask(store, claim(`class:${i}`, { ttlMs }))
    const rows = await fixture.query(
      "SELECT pid, count(*)::int AS locks FROM pg_locks WHERE locktype = 'advisory' AND granted GROUP BY pid ORDER BY 2",
    )
    expect(rows.map((row) => row['locks'])).toEqual([2, 3])
  })

  test('a waiter finds a session although others are taken by further classes of ttl', async () => {
    const [holder, store] = [fixture.store(), fixture.store({ maxSessions: 2 })]
    const blocker = claim('waited')
    await ask(holder, blocker)
    for (const ttlMs of [2_000, 8_000, 60_000]) await ask(store, claim(`held:${ttlMs}`, { ttlMs }))
    const wanted = claim('waited', { blockMs: 10_000 })
    const waiting = ask(store, wanted)
    await until('the waiter stands in the queue', async () => (await fixture.waiting()) === 1)
    await holder.release([blocker])
    expect((await waiting).granted).toBe(true)
  })

  test('an atomic acquire of several classes of ttl leaves nothing behind when one is busy', async () => {
    const [store, other] = [fixture.store(), fixture.store()]
    const busy = claim('all:3', { ttlMs: 60_000 })
    await ask(other, busy)
    const claims = [claim('all:1', { ttlMs: 2_000 }), claim('all:2', { ttlMs: 8_000 }), claim('all:3')]
    expect(await store.acquire(claims, { atomic: true })).toMatchObject(claims.map(() => ({ granted: false })))
    expect(await fixture.held()).toBe(1)
    await other.release([busy])
    expect(await store.acquire(claims, { atomic: true })).toMatchObject(claims.map(() => ({ granted: true })))
    expect(await fixture.held()).toBe(3)
  })

  test('the store takes no connection out of the pool, so an exhausted pool changes nothing', async () => {
    const pool = fixture.pool({ max: 1 })
    const taken = await pool.connect()
    const { advisory } = await import('../../../src/stores/postgres-advisory/index.js')
    const store = advisory(pool)
    const locks = createLocks(store)
    const lock = await locks.acquire('apart')
    expect(pool.totalCount).toBe(1)
    expect(pool.waitingCount).toBe(0)
    expect(await lock.release()).toBe(true)
    taken.release()
    await store.close()
  })

  test('a session that holds nothing any more outlives the last ttl', async () => {
    const locks = createLocks(fixture.store())
    await (await locks.acquire('brief', { ttl: 1_500 })).release()
    const [pid] = await fixture.sessions()
    await sleep(2_500)
    expect(await fixture.sessions()).toEqual([pid])
    const lock = await locks.acquire('brief')
    expect(await fixture.sessions()).toEqual([pid])
    expect(await lock.release()).toBe(true)
  })

  test('a prepared statement that failed can be used again', async () => {
    const store = fixture.store()
    await ask(store, claim('kept'))
    await fixture.query('ALTER SEQUENCE leasehold_advisory_token RENAME TO away')
    const refused = await ask(store, claim('failed'))
    expect(refused).toMatchObject({ granted: 'unknown', error: { message: expect.stringContaining('does not exist') } })
    expect(await fixture.held(), 'the lock of the failed statement is unlocked again').toBe(1)
    await fixture.query('ALTER SEQUENCE away RENAME TO leasehold_advisory_token')
    expect((await ask(store, claim('failed'))).granted).toBe(true)
    expect(await fixture.sessions(), 'the retry runs on the session that holds the other lock').toHaveLength(1)
  })

  test('close() ends all sessions and with them what they hold', async () => {
    const store = fixture.store()
    for (const name of ['a', 'b']) expect((await ask(store, claim(name))).granted).toBe(true)
    await store.close()
    expect(await fixture.held()).toBe(0)
    expect(await fixture.sessions()).toEqual([])
  })

  test('a process that holds a lock and has nothing else to do may end', async () => {
    const other = new OtherProcess('leave', fixture.url, 'left')
    await other.says('held')
    await other.ended
    expect(await fixture.held()).toBe(0)
  })
})

describe('waiting', () => {
  test("waiters stand in the server's own queue, first come, first served", async () => {
    const holder = createLocks(fixture.store())
    const held = await holder.acquire('queue')
    const order: number[] = []
    const waiters: Promise<unknown>[] = []
    for (let i = 0; i < 5; i++) {
      const locks = createLocks(fixture.store())
      waiters.push(
        locks.withLock('queue', async () => {
          order.push(i)
        }),
      )
      await until('the waiter stands in the queue', async () => (await fixture.waiting()) === i + 1)
    }
    await held.release()
    await Promise.all(waiters)
    expect(order).toEqual([0, 1, 2, 3, 4])
  })

  test('a queue entry is kept from one request to the next', async () => {
    const [a, b, c] = [fixture.store(), fixture.store(), fixture.store()]
    const held = claim('kept')
    await ask(a, held)
    const first = claim('kept', { blockMs: 90, queueMs: 10_000 })
    expect((await ask(b, first)).granted).toBe(false)
    expect(await fixture.waiting()).toBe(1)
    const second = ask(c, claim('kept', { blockMs: 10_000 }))
    await until('the second stands behind', async () => (await fixture.waiting()) === 2)
    await a.release([held])
    const answer = await ask(b, { ...first, blockMs: 5_000 })
    expect(answer.granted).toBe(true)
    await b.release([first])
    expect((await second).granted).toBe(true)
  })

  test('a queue entry whose owner does not ask again is given up, and its grant passes to the next waiter', async () => {
    const [a, b, c] = [fixture.store(), fixture.store(), fixture.store()]
    const held = claim('gone')
    await ask(a, held)
    expect((await ask(b, claim('gone', { blockMs: 60, queueMs: 3_000 }))).granted).toBe(false)
    const second = ask(c, claim('gone', { blockMs: 40_000 }))
    await until('the second stands behind', async () => (await fixture.waiting()) === 2)
    await a.release([held])
    expect((await second).granted).toBe(true)
  })

  test('a wait that ends early leaves the queue at once', async () => {
    const [a, b] = [createLocks(fixture.store()), createLocks(fixture.store())]
    const held = await a.acquire('early')
    const cancel = new AbortController()
    const waiting = b.acquire('early', { wait: 'forever', signal: cancel.signal }).catch((error: unknown) => error)
    await until('the waiter stands in the queue', async () => (await fixture.waiting()) === 1)
    cancel.abort(new Error('enough'))
    expect(await waiting).toEqual(new Error('enough'))
    await until('the waiter has left', async () => (await fixture.waiting()) === 0)
    await held.release()
    expect(await fixture.held()).toBe(0)
  })

  test('a wait that times out says who holds the lock', async () => {
    const [a, b] = [createLocks(fixture.store({}, { application_name: 'billing' })), createLocks(fixture.store())]
    await a.acquire('told')
    let heldBy: string | undefined
    // The store asks for the holder for 500 ms at most: on a busy machine it may take a second try.
    await until('the error names the holder', async () => {
      const error = await b.acquire('told', { wait: 500 }).catch((caught: unknown) => caught)
      if (!(error instanceof LockTimeoutError)) return false
      heldBy = error.heldBy
      return heldBy !== undefined
    })
    expect(heldBy).toMatch(/^billing \[leasehold\] pid \d+/)
  })

  test('a waiter without a session to wait on polls, and no more than maxSessions are opened', async () => {
    const [a, b] = [createLocks(fixture.store()), createLocks(fixture.store({ maxSessions: 2 }))]
    const names = ['n1', 'n2', 'n3', 'n4', 'n5']
    const held = await Promise.all(names.map((name) => a.acquire(name)))
    const before = (await fixture.sessions()).length
    const waiting = Promise.all(names.map((name) => b.acquire(name, { wait: 'forever' })))
    await until('one stands in the queue', async () => (await fixture.waiting()) === 1)
    expect((await fixture.sessions()).length - before).toBeLessThanOrEqual(2)
    await Promise.all(held.map((lock) => lock.release()))
    for (const lock of await waiting) expect(await lock.release()).toBe(true)
    expect((await fixture.sessions()).length - before).toBeLessThanOrEqual(2)
  })

  test('with maxSessions 1 a waiter polls instead of standing in the queue, and gets the lock', async () => {
    const [a, b] = [createLocks(fixture.store()), createLocks(fixture.store({ maxSessions: 1 }))]
    const held = await a.acquire('alone')
    const waiting = b.acquire('alone', { wait: 'forever' })
    await sleep(100)
    expect(await fixture.waiting()).toBe(0)
    await held.release()
    expect(await (await waiting).release()).toBe(true)
  })

  test('a wait that times out or is given up at the moment of its grant leaves nothing behind', async () => {
    // Each statement waits for 15 ms only, and the lock is released at about that time.
    const [a, b] = [fixture.store(), fixture.store({ queueFor: 15 })]
    let granted = 0
    for (let round = 0; round < 120; round++) {
      const held = claim('moment')
      await until('no wait was left behind', async () => (await ask(a, held)).granted === true)
      const wanted = claim('moment', { blockMs: 2_000, queueMs: 3_000 })
      const waiting = ask(b, wanted)
      await sleep(13 + Math.random() * 6)
      const [released] = await Promise.all([
        a.release([held]),
        round % 2 ? sleep(Math.random() * 2).then(() => b.release([wanted])) : undefined,
      ])
      expect(released).toEqual([{ outcome: 'released' }])
      const answer = await waiting
      expect(answer.granted).not.toBe('unknown')
      if (answer.granted) granted++
      await b.release([wanted])
    }
    await until('nobody holds it', async () => (await fixture.held()) === 0)
    expect(granted).toBeGreaterThan(50)
  })

  test('a cancellation that comes too late hits no other wait on the same session', async () => {
    const [a, b, c] = [fixture.store(), fixture.store({ timeout: 20_000 }), fixture.store()]
    const [first, second] = [claim('first'), claim('second')]
    await a.acquire([first, second])
    const own = new Set(await fixture.sessions())
    await ask(b, claim('other'))
    const asking = (await fixture.sessions()).find((pid) => !own.has(pid)) as number
    await ask(b, claim('longer', { ttlMs: 60_000 }))
    const given = claim('first', { blockMs: 20_000 })
    const waiting = ask(b, given)
    await until('it stands in the queue', async () => (await fixture.waiting()) === 1)
    // The session that has to cancel is frozen, and the wait is granted meanwhile.
    process.kill(asking, 'SIGSTOP')
    const order: string[] = []
    let early: Promise<unknown>
    let late: Promise<unknown>
    try {
      expect(await b.release([given])).toEqual([{ outcome: 'released' }])
      await a.release([first])
      expect((await waiting).granted).toBe(false)
      await until('the grant that nobody wants is unlocked', async () => (await fixture.held()) === 3)
      early = ask(b, claim('second', { blockMs: 20_000, ttlMs: 60_000 })).then(() => order.push('early'))
      await until('the next stands in the queue', async () => (await fixture.waiting()) === 1)
      late = ask(c, claim('second', { blockMs: 20_000 })).then(() => order.push('late'))
      await until('another stands behind it', async () => (await fixture.waiting()) === 2)
    } finally {
      process.kill(asking, 'SIGCONT')
    }
    await sleep(300)
    await a.release([second])
    await Promise.race([early, late])
    expect(order).toEqual(['early'])
  })

  test('a lock whose unlock is cancelled does not stay behind', async () => {
    const store = fixture.store()
    const [kept, held] = [claim('kept', { ttlMs: 600_000 }), claim('cancelled', { ttlMs: 600_000 })]
    for (const each of [kept, held]) expect((await ask(store, each)).granted).toBe(true)
    const [pid] = await fixture.sessions()
    // The first unlock of a session looks its function up, and waits for the catalog here.
    await fixture.query('BEGIN')
    await fixture.query('LOCK TABLE pg_proc')
    const releasing = store.release([held])
    await until('the unlock waits', async () => {
      const waiting = await fixture.query('SELECT FROM pg_locks WHERE pid = $1 AND NOT granted', [pid])
      return waiting.length === 1
    })
    await fixture.query('SELECT pg_cancel_backend($1)', [pid])
    await fixture.query('COMMIT')
    const released = await releasing
    expect(await fixture.held()).toBe(1)
    expect(released).toEqual([{ outcome: 'released' }])
    expect(await store.renew([kept])).toMatchObject([{ outcome: 'ours' }])
  })

  test('readers that keep coming in one process do not starve a writer in another', async () => {
    const [a, b] = [fixture.store(), createLocks(fixture.store())]
    let readers: ReturnType<typeof reader>[] = []
    const next = async (): Promise<boolean> => {
      const one = reader('shelf')
      if ((await ask(a, one)).granted !== true) return false
      readers.push(one)
      return true
    }
    expect(await next()).toBe(true)
    expect(await next()).toBe(true)
    const writer = b.acquire('shelf', { wait: 'forever' })
    await until('the writer stands in the queue', async () => (await fixture.waiting()) === 1)
    expect(await next()).toBe(false)
    await a.release(readers)
    readers = []
    await (await writer).release()
    expect(await next()).toBe(true)
  })

  test('readers of one process that wait together are granted together', async () => {
    const [a, b] = [createLocks(fixture.store()), createLocks(fixture.store())]
    const writing = await a.acquire('hall')
    const waiting = Promise.all(
      Array.from({ length: 20 }, () => b.acquire('hall', { mode: 'shared', wait: 'forever' })),
    )
    await until('the readers stand in the queue', async () => (await fixture.waiting()) === 1)
    await writing.release()
    const readers = await waiting
    expect(readers.every((lock) => lock.isHeld)).toBe(true)
    expect(await a.tryAcquire('hall')).toBeNull()
    await Promise.all(readers.map((lock) => lock.release()))
    expect(await fixture.held()).toBe(0)
  })

  test('an atomic acquire completes what its owner already holds in part', async () => {
    const store = fixture.store()
    const claims = [claim('part:1'), claim('part:2')] as const
    const part = await ask(store, claims[1])
    const all = await store.acquire(claims, { atomic: true })
    expect(all.map((answer) => answer.granted)).toEqual([true, true])
    expect(all[1]).toMatchObject({ token: part.granted === true && part.token })
  })

  test('an atomic acquire with two readers of one name leaves nothing behind when they are released', async () => {
    const store = fixture.store()
    const claims = [reader('both'), reader('both'), claim('other')]
    expect((await store.acquire(claims, { atomic: true })).every((answer) => answer.granted === true)).toBe(true)
    await store.release(claims)
    expect(await fixture.held()).toBe(0)
  })
})
