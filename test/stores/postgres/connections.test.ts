/** Which connections are used for what, and how many. */
import { type AddressInfo, createServer } from 'node:net'
import { Pool } from 'pg'
import postgresJs from 'postgres'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres, startProxy } from '../../../testbed/servers/index.js'
import { driverOf } from '../../../src/clients/postgres/open.js'
import { createLocks } from '../../../src/locks.js'
import { ALL, type Store } from '../../../src/store.js'
import { migrate, type PostgresClient, postgres } from '../../../src/stores/postgres/index.js'
import { clientOf, type Library } from '../../../testbed/postgres/fixture.js'

let server: PostgresServer

beforeAll(async () => {
  server = await startPostgres()
})

afterAll(() => server.stop())

async function database(): Promise<string> {
  const url = await server.createDatabase()
  const pool = new Pool({ connectionString: url, max: 1 })
  await migrate(pool)
  await pool.end()
  return url
}

const slow = (client: unknown, seconds: number): Promise<unknown> => {
  const sql = `select pg_sleep(${seconds})`
  const { query, unsafe } = client as { query?: (text: string) => Promise<unknown>; unsafe: typeof query }
  return (query ? query.call(client, sql) : unsafe?.call(client, sql)) as Promise<unknown>
}

/** The last locks on the store are closed. The next ones come after its connection was given up, which takes half a second. */
function becomeIdleAndBack(store: Store): void {
  store.idle?.()
  setTimeout(() => store.onPossibleLoss?.(() => {}), 700)
}

describe.each(['pg', 'postgres.js'] as Library[])('with %s', (library) => {
  test.concurrent('ten slow queries under ten locks on a pool of ten lose none of them', async () => {
    const { client, end } = clientOf(library, await database(), 10)
    const store = postgres(client)
    const locks = createLocks(store, { ttl: '4s', wait: '30s' })
    const work = Array.from({ length: 10 }, (_, i) => locks.withLock(`report:${i}`, () => slow(client, 6)))
    expect((await Promise.allSettled(work)).map(({ status }) => status)).toEqual(work.map(() => 'fulfilled'))
    await locks.close()
    await store.close()
    await end()
  })

  test.concurrent('a process that holds and waits, with three stores on one client, has two connections besides its pool', async ({
    expect,
  }) => {
    const url = await database()
    const { client, end } = clientOf(library, url, 2)
    const stores = [1, 2, 3].map(() => postgres(client))
    const locks = stores.map((store) => createLocks(store, { ttl: '10s', wait: '10s' }))
    const held = await Promise.all(locks.map((each, i) => each.acquire(`own ${i}`)))
    const waiting = locks.map((each, i) => each.acquire(`own ${(i + 1) % 3}`))
    for (const i of [0, 1, 2]) await expect.poll(async () => (await locks[i]?.waiters(`own ${i}`))?.length).toBe(1)
    await Promise.all(held.map((lock) => lock.extend('10s')))
    const name = new URL(url).pathname.slice(1)
    const count = await server.psql(`select count(*) from pg_stat_activity where datname = '${name}'`)
    expect(Number(count)).toBeLessThanOrEqual(2 + 2)
    await Promise.all(held.map((lock) => lock.release()))
    for (const lock of await Promise.all(waiting)) await lock.release()
    await Promise.all(locks.map((each) => each.close()))
    await Promise.all(stores.map((store) => store.close()))
    await end()
    await expect.poll(() => server.psql(`select count(*) from pg_stat_activity where datname = '${name}'`)).toBe('0')
  })

  test.concurrent('a store that is closed while calls are under way leaves no connection behind', async ({
    expect,
  }) => {
    const url = await database()
    const { client, end } = clientOf(library, url, 3)
    const store = postgres(client)
    const claims = Array.from({ length: 300 }, (_, i) => ({
      ...{ key: `lock:closing ${i}`, owner: `owner ${i}` },
      ...{ weight: ALL, capacity: ALL, ttlMs: 30_000 },
    }))
    for (let i = 0; i < 300; i += 100) await store.acquire(claims.slice(i, i + 100))
    const blocker = new Pool({ connectionString: url, max: 1 })
    await blocker.query(`begin; select acquire_lock('late', 'sql')`)
    const late = store.acquire([{ ...(claims[0] as (typeof claims)[0]), key: 'lock:late' }])
    const released = claims.map((claim) => store.release([claim]))
    await store.close()
    expect((await Promise.all(released)).flat().filter(({ outcome }) => outcome !== 'released')).toEqual([])
    await blocker.query('rollback')
    expect(await late).toMatchObject([{ granted: true }])
    await blocker.end()
    await end()
    const name = new URL(url).pathname.slice(1)
    await expect
      .poll(() => server.psql(`select count(*) from pg_stat_activity where datname = '${name}'`), { timeout: 5_000 })
      .toBe('0')
  })

  test.concurrent('a renewal is answered although the connection for it was given up while it was being opened', async () => {
    const proxy = await startProxy(server.port)
    const { client, end } = clientOf(library, proxy.through(await database()))
    const store = postgres(client, { listen: false })
    const lease = { key: 'lock:a', owner: 'a' }
    await store.now?.()
    // Opening takes at least 1.2 s: longer than a store that becomes idle waits for what is under way.
    proxy.delay(300)
    expect(await store.acquire([{ ...lease, weight: ALL, capacity: ALL, ttlMs: 60_000 }])).toMatchObject([
      { granted: true },
    ])
    becomeIdleAndBack(store)
    await new Promise((resolve) => setTimeout(resolve, 800))
    const renewed = store.renew([{ ...lease, ttlMs: 60_000 }])
    proxy.delay(0)
    expect(await renewed).toMatchObject([{ outcome: 'ours' }])
    await store.close()
    await end()
    await proxy.stop()
  })

  test.concurrent('heartbeats and releases take the pool where no further connection can be had', async () => {
    const url = await database()
    const role = `few_${library.replace('.', '')}`
    await server.psql(
      `create role ${role} login connection limit 2; alter database "${new URL(url).pathname.slice(1)}" owner to ${role};`,
    )
    await server.psql(`grant all on all tables in schema public to ${role}`, new URL(url).pathname.slice(1))
    const { client, end } = clientOf(library, url.replace('postgres@', `${role}@`), 2)
    await Promise.all([slow(client, 0.3), slow(client, 0.3)])
    const store = postgres(client, { listen: false })
    const locks = createLocks(store, { ttl: '4s' })
    const lock = await locks.acquire('a')
    await slow(client, 6)
    expect(lock.isHeld).toBe(true)
    expect(await lock.release()).toBe(true)
    await locks.close()
    await store.close()
    await end()
  })
})

test.concurrent('a connection that postgres.js would close as idle answers the renewal that arrives just then', async () => {
  const idleMs = 20
  const sql = postgresJs(await database(), { idle_timeout: idleMs / 1_000, onnotice: () => {}, fetch_types: false })
  const store = postgres(sql as unknown as PostgresClient, { listen: false })
  const lease = { key: 'lock:a', owner: 'a' }
  await store.acquire([{ ...lease, weight: ALL, capacity: ALL, ttlMs: 60_000 }])
  const outcomes = new Map<string, number>()
  for (let i = 0; i < 80; i++) {
    const [renewed] = await store.renew([{ ...lease, ttlMs: 60_000 }])
    const outcome = renewed?.outcome === 'unknown' ? String(renewed.error) : String(renewed?.outcome)
    outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1)
    await new Promise((resolve) => setTimeout(resolve, idleMs - 2 + (i % 5)))
  }
  expect([...outcomes]).toEqual([['ours', 80]])
  await store.close()
  await sql.end()
})

test.concurrent('an answer that comes after the last locks were closed leaves no connection open', async ({
  expect,
}) => {
  const url = await database()
  const proxy = await startProxy(server.port)
  const pool = new Pool({ connectionString: proxy.through(url), max: 1, application_name: 'late' })
  pool.on('error', () => {})
  const store = postgres(pool, { timeout: '500ms' })
  const locks = createLocks(store, { wait: 0 })
  await (await locks.acquire('before')).release()
  proxy.stall('replies')
  await expect(locks.tryAcquire('late')).rejects.toThrow(/postgres/)
  await locks.close()
  await proxy.heal()
  const beside = new Pool({ connectionString: url, max: 2 })
  const others = createLocks(postgres(beside), { wait: '30s' })
  // Free again: the late grant was released.
  await (await others.acquire('late')).release()
  const open = "select count(*)::int as n from pg_stat_activity where application_name = 'late'"
  await expect.poll(async () => (await beside.query(open)).rows[0].n, { timeout: 10_000 }).toBe(pool.totalCount)
  await others.close()
  await beside.end()
  await pool.end()
  await store.close()
  await proxy.stop()
})

test.concurrent('a server that ends each connection as it becomes ready is not connected to without end', async ({
  expect,
}) => {
  const message = (type: string, body: string): Buffer => {
    const head = Buffer.alloc(5)
    head.write(type)
    head.writeInt32BE(body.length + 4, 1)
    return Buffer.concat([head, Buffer.from(body, 'latin1')])
  }
  const ready = [message('R', '\0\0\0\0'), message('Z', 'I'), message('E', 'SFATAL\0C57P01\0Mshutting down\0\0')]
  let connections = 0
  const ending = createServer((socket) => {
    connections++
    socket.on('error', () => {})
    socket.once('data', () => socket.end(Buffer.concat(ready)))
  })
  await new Promise<void>((resolve) => ending.listen(0, '127.0.0.1', resolve))
  const { port } = ending.address() as AddressInfo
  const pool = new Pool({ host: '127.0.0.1', port, user: 'x', database: 'x' })
  const own = driverOf(pool).ownConnection(1_000)
  await expect(own.run('SELECT 1', 200)).rejects.toThrow()
  expect(connections).toBeLessThan(5)
  await own.close()
  await pool.end()
  await new Promise((resolve) => ending.close(resolve))
})
