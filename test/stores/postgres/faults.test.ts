import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { Pool } from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import {
  type PgBouncer,
  type PostgresServer,
  type Proxy,
  startPgBouncer,
  startPostgres,
  startProxy,
  startStandby,
} from '../../../testbed/servers/index.js'
import { program } from '../../../testbed/programs.js'
import { StoreUnavailableError } from '../../../src/errors.js'
import { createLocks, type Locks } from '../../../src/locks.js'
import { ALL, type Claim, type Store, type StoreEvent } from '../../../src/store.js'
import { migrate, type PostgresOptions, postgres } from '../../../src/stores/postgres/index.js'
import { schemaNames } from '../../../src/stores/postgres/schema.js'
import { onlyTheNextWakes } from '../../../testbed/hand-off.js'
import { type Library, storeAt } from '../../../testbed/postgres/fixture.js'

let server: PostgresServer
let pool: Pool

beforeAll(async () => {
  server = await startPostgres()
  pool = new Pool({ connectionString: server.url })
  pool.on('error', () => {})
  await migrate(pool)
})

afterAll(async () => {
  await pool.end()
  await server.stop()
})

const closing: (() => Promise<unknown>)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close()
})

function open(
  library: Library,
  url = server.url,
  options: PostgresOptions & { max?: number } = {},
): { store: Store; locks: Locks } {
  const store = storeAt(library, url, options)
  const locks = createLocks(store, { ttl: '30s', wait: '20s' })
  closing.push(
    () => store.close(),
    () => locks.close({ grace: 0 }),
  )
  return { store, locks }
}

let counter = 0
const newName = () => `faults-${process.pid}-${++counter}`
const claimOf = (name: string, owner = 'us'): Claim => ({
  key: `lock:${name}`,
  owner,
  weight: ALL,
  capacity: ALL,
  ttlMs: 60_000,
})

/** All connections but the one that asks. */
const terminateAll = () =>
  server.psql(
    'select count(pg_terminate_backend(pid)) from pg_stat_activity where pid <> pg_backend_pid() and backend_type = $$client backend$$',
  )

/** As soon as the server answers. */
const again = (attempt: () => Promise<unknown>) =>
  expect
    .poll(
      () =>
        attempt().then(
          () => true,
          () => false,
        ),
      { timeout: 40_000 },
    )
    .toBe(true)

const waiting = (locks: Locks, name: string) => expect.poll(async () => (await locks.waiters(name)).length).toBe(1)

describe.each(['pg', 'postgres.js'] as Library[])('with %s', (library) => {
  test('the lock is still held after all backends were terminated, events arrive again, and onPossibleLoss fires', async () => {
    const { store, locks } = open(library)
    const other = open(library)
    const name = newName()
    const lock = await locks.acquire(name)
    const events: StoreEvent[] = []
    const watch = other.store.watch?.(`lock:${name}`, (event) => events.push(event))
    expect(await watch?.ready).toBe(true)
    let doubts = 0
    other.store.onPossibleLoss?.(() => doubts++)
    await terminateAll()
    await expect
      .poll(() =>
        lock.extend('30s').then(
          () => true,
          () => false,
        ),
      )
      .toBe(true)
    expect(lock.isHeld).toBe(true)
    await expect.poll(() => other.locks.tryAcquire(name).catch(() => 'down')).toBeNull()
    await expect.poll(() => doubts > 0 && watch?.live()).toBe(true)
    const next = other.locks.acquire(name)
    await waiting(locks, name)
    expect(await lock.release()).toBe(true)
    expect((await next).fencingToken).toBeGreaterThan(lock.fencingToken)
    await expect.poll(() => events.some((event) => event.type === 'granted')).toBe(true)
    expect(store.name).toBe('postgres')
  })

  test('backends that are terminated again and again cost no lock', async () => {
    const { locks } = open(library)
    const lock = await locks.acquire(newName(), { ttl: '6s' })
    let over = false
    const work = Array.from({ length: 4 }, async () => {
      const name = newName()
      while (!over) await locks.withLock(name, async () => {}).catch(() => {})
    })
    for (let i = 0; i < 20; i++) {
      await new Promise((resolve) => setTimeout(resolve, 400))
      await terminateAll()
    }
    over = true
    await Promise.all(work)
    expect(lock.isHeld).toBe(true)
    await again(() => lock.extend('6s'))
    expect(await lock.release()).toBe(true)
  })

  test('a hand-off wakes only the waiter that gets the lock, however many others wait', async () => {
    await onlyTheNextWakes(
      [1, 2, 3].map(() => open(library).store),
      `lock:${newName()}`,
    )
  })
})

const libraries: Library[] = ['pg', 'postgres.js']

test('an immediate restart of the server ends no lock, and a waiter gets it afterwards', async () => {
  const ready = await Promise.all(
    libraries.map(async (library) => {
      const [holder, waiter, name] = [open(library), open(library), newName()]
      const lock = await holder.locks.acquire(name)
      const next = waiter.locks.acquire(name)
      await waiting(holder.locks, name)
      return { lock, next, waiter, name }
    }),
  )
  await server.restart({ mode: 'immediate' })
  for (const { lock, next, waiter, name } of ready) {
    await again(() => lock.extend('30s'))
    expect(await waiter.locks.tryAcquire(name)).toBeNull()
    expect(await lock.release()).toBe(true)
    expect((await next).fencingToken).toBeGreaterThan(lock.fencingToken)
  }
})

test('tokens grow over kill -9 of the server, with synchronous_commit on and off; meanwhile a try rejects at once and a wait goes on', async () => {
  const all = ['on', 'off'].map((commit, i) =>
    open(libraries[i] as Library, `${server.url}?options=-csynchronous_commit%3D${commit}`),
  )
  const names = [newName(), newName()]
  const last = new Map<string, bigint>()
  /** One name after the other: holding one while waiting for the next, two could wait for each other. */
  const takeAll = async ({ locks }: { locks: Locks }): Promise<void> => {
    for (const name of names) {
      // With synchronous_commit off a crash may undo a release: the lock is then held until its time has passed.
      const lock = await locks.acquire(name, { ttl: '1s' })
      expect(lock.fencingToken).toBeGreaterThan(last.get(name) ?? 0n)
      last.set(name, lock.fencingToken)
      await again(() => lock.release())
    }
  }
  for (const each of all) await takeAll(each)
  for (let round = 0; round < 2; round++) {
    await server.kill()
    for (const { locks } of all) await expect(locks.tryAcquire(newName())).rejects.toThrow(StoreUnavailableError)
    const asked = all.map(takeAll)
    await server.restart()
    await Promise.all(asked)
  }
})

test('tokens grow although the clock of the server went back and the rows were deleted meanwhile', async () => {
  const name = newName()
  const { store } = open('pg')
  const future = BigInt(Date.now()) * 1_000n + 3_600_000_000n
  await store.acquire([claimOf(name)])
  await pool.query('update leasehold_leases set token = $2, sweep_at = now() where key = $1', [
    `lock:${name}`,
    future.toString(),
  ])
  await store.release([claimOf(name)])
  await pool.query('select leasehold_sweep()')
  expect((await pool.query('select 1 from leasehold_leases where key = $1', [`lock:${name}`])).rows).toEqual([])
  const [answer] = await store.acquire([claimOf(name, 'later')])
  expect(answer?.granted === true && answer.token > future).toBe(true)
})

test('an exhausted pool is an outage with its reason, and nothing is granted after the caller has gone', async () => {
  const small = new Pool({ connectionString: server.url, max: 2 })
  const store = postgres(small, { timeout: '300ms' })
  const locks = createLocks(store)
  const name = newName()
  await (await locks.acquire(name)).release()
  const taken = [await small.connect(), await small.connect()]
  await expect(locks.tryAcquire(name)).rejects.toThrow(/all 2 connections of the pool were in use/)
  for (const client of taken) client.release()
  await expect.poll(async () => (await locks.inspect(name)).holders).toEqual([])
  expect((await locks.acquire(name)).isHeld).toBe(true)
  await locks.close({ grace: 0 })
  await store.close()
  await small.end()
})

test('a role’s statement_timeout does not cut a call short, and the store’s own does', async () => {
  await server.psql(`create role hasty login superuser; alter role hasty set statement_timeout = '20ms'`)
  const { store } = open('pg', server.url.replace('postgres@', 'hasty@'), { timeout: '5s' })
  const name = newName()
  await store.acquire([claimOf(name, 'before')])
  const client = await pool.connect()
  await client.query('begin')
  await client.query(`select release_lock($1, 'before')`, [name])
  const asked = store.acquire([claimOf(name)])
  await expect
    .poll(() => server.psql(`select count(*) from pg_locks where locktype = 'advisory' and not granted`))
    .toBe('1')
  await client.query('select pg_sleep(0.1)')
  await client.query('commit')
  expect(await asked).toMatchObject([{ granted: true }])
  await client.query('begin')
  await client.query('lock table leasehold_leases in access exclusive mode')
  await expect(store.renew([{ ...claimOf(name) }])).rejects.toThrow(/another transaction holds/)
  await client.query('rollback')
  client.release()
})

describe('through a network that fails', () => {
  let proxy: Proxy
  beforeAll(async () => {
    proxy = await startProxy(server.port)
  })
  afterAll(() => proxy.stop())

  test('calls whose packets are dropped end, their connections are given up, and calls work again afterwards', async () => {
    const { locks, store } = open('pg', proxy.through(server.url), { timeout: '300ms', max: 3 })
    const direct = open('pg')
    const name = newName()
    const lock = await locks.acquire(name)
    const watch = store.watch?.(`lock:${name}`, () => {})
    await expect.poll(() => watch?.live()).toBe(true)
    proxy.blackhole()
    const asked = await Promise.allSettled(Array.from({ length: 5 }, () => locks.tryAcquire(newName())))
    expect(asked.every((outcome) => outcome.status === 'rejected')).toBe(true)
    expect(await direct.locks.tryAcquire(name)).toBeNull()
    await proxy.heal()
    await expect
      .poll(() =>
        lock.extend('30s').then(
          () => true,
          () => false,
        ),
      )
      .toBe(true)
    await expect.poll(() => watch?.live()).toBe(true)
    expect(await lock.release()).toBe(true)
  })

  test('a listening connection that is cut is opened again', async () => {
    for (const library of ['pg', 'postgres.js'] as Library[]) {
      const { store } = open(library, proxy.through(server.url))
      const events: StoreEvent[] = []
      const name = newName()
      const watch = store.watch?.(`lock:${name}`, (event) => events.push(event))
      expect(await watch?.ready).toBe(true)
      // Anybody may say anything on any channel.
      const { channel } = schemaNames('public')
      for (const nonsense of ['', '{', '[1]', '["a","granted","o","x"]', 'null', '"s"'])
        await pool.query('select pg_notify($1, $2)', [channel, nonsense])
      proxy.cut()
      const direct = open('pg').store
      await expect
        .poll(async () => {
          await direct.acquire([{ ...claimOf(name), announce: true }])
          await direct.release([claimOf(name)])
          return watch?.live() && events.length > 0
        })
        .toBe(true)
    }
  })
})

describe('behind PgBouncer in transaction mode', () => {
  let bouncer: PgBouncer
  beforeAll(async () => {
    bouncer = await startPgBouncer({ postgres: server, mode: 'transaction', poolSize: 4 })
  })
  afterAll(() => bouncer.stop())

  test.each(['pg', 'postgres.js'] as Library[])(
    'a store on %s notices that no event arrives, and its waiters get the lock all the same',
    async (library) => {
      const [a, b] = [open(library, bouncer.url), open(library, bouncer.url)]
      const name = newName()
      const watch = b.store.watch?.(`lock:${name}`, () => {})
      expect(await watch?.ready).toBe(false)
      expect(watch?.live()).toBe(false)
      const lock = await a.locks.acquire(name)
      const next = b.locks.acquire(name)
      await waiting(a.locks, name)
      await lock.release()
      expect((await next).fencingToken).toBeGreaterThan(lock.fencingToken)
    },
  )

  test('claims at the same moment exclude each other', async () => {
    const both = [open('pg', bouncer.url), open('postgres.js', bouncer.url)]
    const name = newName()
    let inside = 0
    let count = 0
    const work = async ({ locks }: { locks: Locks }): Promise<void> => {
      for (let i = 0; i < 5; i++) {
        await locks.withLock(name, async () => {
          expect(++inside).toBe(1)
          await new Promise((resolve) => setTimeout(resolve, 2))
          count++
          inside--
        })
      }
    }
    await Promise.all([...both, ...both].map(work))
    expect(count).toBe(20)
  })
})

test('a read-only standby is an outage with its reason, for every call', async () => {
  const standby = await startStandby(server)
  const { store, locks } = open('pg', standby.url)
  const name = newName()
  const reason = /takes no writes/
  await expect(locks.tryAcquire(name)).rejects.toThrow(reason)
  await expect(store.renew([claimOf(name)])).rejects.toThrow(reason)
  await expect(store.release([claimOf(name)])).rejects.toThrow(reason)
  const writer = open('pg')
  const lock = await writer.locks.acquire(name)
  await expect.poll(async () => (await locks.holders(name)).length).toBe(1)
  await expect(locks.tryAcquire(name), 'what it knows may be old').rejects.toThrow(reason)
  expect(lock.isHeld).toBe(true)
  await standby.stop()
})

test('a process that holds, waits and listens ends when it has nothing else to do', async () => {
  const script = program(new URL('./idle-process.ts', import.meta.url))
  const child = spawn(process.execPath, [script, server.url], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const [code] = await once(child, 'exit')
  expect(code).toBe(0)
})
