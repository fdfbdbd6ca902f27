import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../scripts/servers/index.js'
import { createLocks, LockTimeoutError } from '../../../src/index.js'
import { ask, claim, Other, Place, reader, sleep, until } from './place.js'

let server: PostgresServer
let place: Place

beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

beforeEach(async () => {
  place = new Place(await server.createDatabase())
})
afterEach(() => place.close())

describe('connections', () => {
  test('many locks share one connection', async () => {
    const locks = createLocks(place.store())
    const held = await Promise.all(Array.from({ length: 200 }, (_, i) => locks.acquire(`many:${i}`)))
    expect(await place.held()).toBe(200)
    expect(await place.sessions()).toHaveLength(1)
    await Promise.all(held.map((lock) => lock.release()))
    expect(await place.held()).toBe(0)
  })

  test('locks share a connection only if none has twice the ttl of another, whatever maxSessions is', async () => {
    const store = place.store({ maxSessions: 1 })
    const ttls = [2_000, 1_100, 60_000, 40_000, 2_000]
    for (const [i, ttlMs] of ttls.entries()) await ask(store, claim(`class:${i}`, { ttlMs }))
    const rows = await place.look(
      "SELECT pid, count(*)::int AS locks FROM pg_locks WHERE locktype = 'advisory' AND granted GROUP BY pid ORDER BY 2",
    )
    expect(rows.map((row) => row['locks'])).toEqual([2, 3])
  })

  test('who waits finds a session although others are taken by further classes of ttl', async () => {
    const [holder, store] = [place.store(), place.store({ maxSessions: 2 })]
    const blocker = claim('waited')
    await ask(holder, blocker)
    for (const ttlMs of [2_000, 8_000, 60_000]) await ask(store, claim(`held:${ttlMs}`, { ttlMs }))
    const wanted = claim('waited', { blockMs: 10_000 })
    const waiting = ask(store, wanted)
    await until('it stands in the queue', async () => (await place.waiting()) === 1)
    await holder.release([blocker])
    expect((await waiting).granted).toBe(true)
  })

  test('all or none of several classes of ttl leaves nothing behind when one is busy', async () => {
    const [store, other] = [place.store(), place.store()]
    const busy = claim('all:3', { ttlMs: 60_000 })
    await ask(other, busy)
    const claims = [claim('all:1', { ttlMs: 2_000 }), claim('all:2', { ttlMs: 8_000 }), claim('all:3')]
    expect(await store.acquire(claims, { atomic: true })).toMatchObject(claims.map(() => ({ granted: false })))
    expect(await place.held()).toBe(1)
    await other.release([busy])
    expect(await store.acquire(claims, { atomic: true })).toMatchObject(claims.map(() => ({ granted: true })))
    expect(await place.held()).toBe(3)
  })

  test('none is taken out of the pool, so an exhausted pool changes nothing', async () => {
    const pool = place.pool({ max: 1 })
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
    const locks = createLocks(place.store())
    await (await locks.acquire('brief', { ttl: 400 })).release()
    const [pid] = await place.sessions()
    await sleep(900)
    expect(await place.sessions()).toEqual([pid])
    const lock = await locks.acquire('brief', { ttl: 400 })
    expect(await place.sessions()).toEqual([pid])
    expect(await lock.release()).toBe(true)
  })

  test('a statement that failed can be used again, although it was prepared', async () => {
    const store = place.store()
    await ask(store, claim('kept'))
    await place.look('ALTER SEQUENCE leasehold_advisory_token RENAME TO away')
    const refused = await ask(store, claim('failed'))
    expect(refused).toMatchObject({ granted: 'unknown', error: { message: expect.stringContaining('does not exist') } })
    expect(await place.held(), 'what the failed statement had locked is unlocked again').toBe(1)
    await place.look('ALTER SEQUENCE away RENAME TO leasehold_advisory_token')
    expect((await ask(store, claim('failed'))).granted).toBe(true)
    expect(await place.sessions(), 'on the session that holds the other').toHaveLength(1)
  })

  test('closing ends all sessions, and with them what they held', async () => {
    const store = place.store()
    for (const name of ['a', 'b']) expect((await ask(store, claim(name))).granted).toBe(true)
    await store.close()
    expect(await place.held()).toBe(0)
    expect(await place.sessions()).toEqual([])
  })

  test('a process that holds a lock and has nothing else to do may end', async () => {
    const other = new Other('leave', place.url, 'left')
    await other.says('held')
    await other.ended
    expect(await place.held()).toBe(0)
  })
})

describe('waiting', () => {
  test("is done in the server's own queue, first come, first served", async () => {
    const holder = createLocks(place.store())
    const held = await holder.acquire('queue')
    const order: number[] = []
    const waiters: Promise<unknown>[] = []
    for (let i = 0; i < 5; i++) {
      const locks = createLocks(place.store())
      waiters.push(
        locks.withLock('queue', async () => {
          order.push(i)
        }),
      )
      await until('it stands in the queue', async () => (await place.waiting()) === i + 1)
    }
    await held.release()
    await Promise.all(waiters)
    expect(order).toEqual([0, 1, 2, 3, 4])
  })

  test('a place is kept from one question to the next', async () => {
    const [a, b, c] = [place.store(), place.store(), place.store()]
    const held = claim('kept')
    await ask(a, held)
    const first = claim('kept', { blockMs: 90, placeMs: 10_000 })
    expect((await ask(b, first)).granted).toBe(false)
    expect(await place.waiting()).toBe(1)
    const second = ask(c, claim('kept', { blockMs: 10_000 }))
    await until('the second stands behind', async () => (await place.waiting()) === 2)
    await a.release([held])
    const answer = await ask(b, { ...first, blockMs: 5_000 })
    expect(answer.granted).toBe(true)
    await b.release([first])
    expect((await second).granted).toBe(true)
  })

  test('a place whose owner does not come back is given up, and what was granted to it passes on', async () => {
    const [a, b, c] = [place.store(), place.store(), place.store()]
    const held = claim('gone')
    await ask(a, held)
    expect((await ask(b, claim('gone', { blockMs: 60, placeMs: 300 }))).granted).toBe(false)
    const second = ask(c, claim('gone', { blockMs: 10_000 }))
    await until('the second stands behind', async () => (await place.waiting()) === 2)
    await a.release([held])
    expect((await second).granted).toBe(true)
  })

  test('a wait that ends early leaves the queue at once', async () => {
    const [a, b] = [createLocks(place.store()), createLocks(place.store())]
    const held = await a.acquire('early')
    const cancel = new AbortController()
    const waiting = b.acquire('early', { wait: 'forever', signal: cancel.signal }).catch((error: unknown) => error)
    await until('it stands in the queue', async () => (await place.waiting()) === 1)
    cancel.abort(new Error('enough'))
    expect(await waiting).toEqual(new Error('enough'))
    await until('it has left', async () => (await place.waiting()) === 0)
    await held.release()
    expect(await place.held()).toBe(0)
  })

  test('who is in the way is said when the wait has passed', async () => {
    const [a, b] = [createLocks(place.store({}, { application_name: 'billing' })), createLocks(place.store())]
    await a.acquire('told')
    let heldBy: string | undefined
    // Nobody waits for long to learn that: on a busy machine it may take a second try.
    await until('it is said', async () => {
      const error = await b.acquire('told', { wait: 500 }).catch((caught: unknown) => caught)
      expect(error).toBeInstanceOf(LockTimeoutError)
      heldBy = (error as LockTimeoutError).heldBy
      return heldBy !== undefined
    })
    expect(heldBy).toMatch(/^billing \[leasehold\] pid \d+/)
  })

  test('no more sessions than allowed: who finds none to wait on asks again, and is served', async () => {
    const [a, b] = [createLocks(place.store()), createLocks(place.store({ maxSessions: 2 }))]
    const names = ['n1', 'n2', 'n3', 'n4', 'n5']
    const held = await Promise.all(names.map((name) => a.acquire(name)))
    const before = (await place.sessions()).length
    const waiting = Promise.all(names.map((name) => b.acquire(name, { wait: 'forever' })))
    await until('one stands in the queue', async () => (await place.waiting()) === 1)
    expect((await place.sessions()).length - before).toBeLessThanOrEqual(2)
    await Promise.all(held.map((lock) => lock.release()))
    for (const lock of await waiting) expect(await lock.release()).toBe(true)
    expect((await place.sessions()).length - before).toBeLessThanOrEqual(2)
  })

  test('with one session nobody stands in the queue, and all are served', async () => {
    const [a, b] = [createLocks(place.store()), createLocks(place.store({ maxSessions: 1 }))]
    const held = await a.acquire('alone')
    const waiting = b.acquire('alone', { wait: 'forever' })
    await sleep(100)
    expect(await place.waiting()).toBe(0)
    await held.release()
    expect(await (await waiting).release()).toBe(true)
  })

  test('nothing is left behind by waits that end at the moment of the grant, by a timeout or by being given up', async () => {
    // Each statement waits for 15 ms only, and the lock comes free at about that time.
    const [a, b] = [place.store(), place.store({ queueFor: 15 })]
    let granted = 0
    for (let round = 0; round < 120; round++) {
      const held = claim('moment')
      await until('nobody was left behind', async () => (await ask(a, held)).granted === true)
      const wanted = claim('moment', { blockMs: 200, placeMs: 3_000 })
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
    await until('nobody holds it', async () => (await place.held()) === 0)
    expect(granted).toBeGreaterThan(50)
  })

  test('readers who keep coming in one process do not starve a writer in another', async () => {
    const [a, b] = [place.store(), createLocks(place.store())]
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
    await until('the writer stands in the queue', async () => (await place.waiting()) === 1)
    expect(await next()).toBe(false)
    await a.release(readers)
    readers = []
    await (await writer).release()
    expect(await next()).toBe(true)
  })

  test('readers of one process who wait together are let in together', async () => {
    const [a, b] = [createLocks(place.store()), createLocks(place.store())]
    const writing = await a.acquire('hall')
    const waiting = Promise.all(
      Array.from({ length: 20 }, () => b.acquire('hall', { mode: 'shared', wait: 'forever' })),
    )
    await until('they stand in the queue', async () => (await place.waiting()) === 1)
    await writing.release()
    const readers = await waiting
    expect(readers.every((lock) => lock.isHeld)).toBe(true)
    expect(await a.tryAcquire('hall')).toBeNull()
    await Promise.all(readers.map((lock) => lock.release()))
    expect(await place.held()).toBe(0)
  })

  test('all or none completes what its owner already holds in part', async () => {
    const store = place.store()
    const claims = [claim('part:1'), claim('part:2')] as const
    const part = await ask(store, claims[1])
    const all = await store.acquire(claims, { atomic: true })
    expect(all.map((answer) => answer.granted)).toEqual([true, true])
    expect(all[1]).toMatchObject({ token: part.granted === true && part.token })
  })

  test('all or none with readers of one name leaves nothing behind when they are released', async () => {
    const store = place.store()
    const claims = [reader('both'), reader('both'), claim('other')]
    expect((await store.acquire(claims, { atomic: true })).every((answer) => answer.granted === true)).toBe(true)
    await store.release(claims)
    expect(await place.held()).toBe(0)
  })
})
