/** A release and its notification: two transactions of one message, of which only the first decides. */
import pg from 'pg'
import postgresJs from 'postgres'
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { driverOf } from '../../../src/clients/postgres/open.js'
import { inTwoTransactions, type OwnConnection } from '../../../src/clients/postgres/own-connection.js'
import { createLocks } from '../../../src/index.js'
import { migrate, postgres } from '../../../src/stores/postgres/index.js'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'

let server: PostgresServer
let pool: pg.Pool
beforeAll(async () => {
  server = await startPostgres()
  pool = new pg.Pool({ connectionString: server.url })
  await migrate(pool)
  await pool.query(`create table numbers (n integer primary key);
    create table noted (what text primary key, n integer references numbers deferrable initially deferred)`)
})
beforeEach(() => pool.query('truncate noted'))
afterAll(async () => {
  await pool?.end()
  await server?.stop()
})

const clients = {
  pg: (options = '') => new pg.Pool({ connectionString: server.url, max: 2, options }),
  'postgres.js': (options = '') => postgresJs(server.url, { max: 2, ...(options && { connection: { options } }) }),
}

describe.each(Object.keys(clients) as (keyof typeof clients)[])('with %s', (kind) => {
  function open(): OwnConnection {
    const client = clients[kind]()
    const own = driverOf(client as never).ownConnection(5_000)
    onTestFinished(async () => {
      await own.close()
      await client.end()
    })
    return own
  }

  const noted = async (): Promise<string[]> =>
    (await pool.query<{ what: string }>('select what from noted order by 1')).rows.map(({ what }) => what)

  const note = (what: string, n = 'null'): string => `insert into noted values ('${what}', ${n})`

  test('both are done when the first is answered, which is the answer', async () => {
    const own = open()
    const afterwards = "insert into noted select 'second' from pg_sleep(0.2)"
    const answer = await own.run(`${note('first')};select 'first'`, 5_000, { afterwards })
    expect([answer, await noted()]).toEqual(['first', ['first', 'second']])
  })

  test('a second that fails undoes neither the first nor its answer, and the connection goes on', async () => {
    const own = open()
    const afterwards = `with second as (${note('second')} returning 1) select 1 / 0 from second`
    expect(await own.run(`${note('first')};select 'first'`, 5_000, { afterwards })).toBe('first')
    // Fails when it is committed.
    expect(await own.run(`${note('third')};select 'third'`, 5_000, { afterwards: note('fourth', '1') })).toBe('third')
    expect(await noted()).toEqual(['first', 'third'])
    expect(await own.run("select 'next'", 5_000)).toBe('next')
  })

  test.each([
    ['in a statement', `${note('first')};select 1/0`],
    ['at its commit', `${note('first', '1')};select 'first'`],
  ])('a first that fails %s is an error, and the second is not begun', async (_, first) => {
    const own = open()
    await expect(own.run(first, 5_000, { afterwards: note('second') })).rejects.toThrow(/zero|foreign key/)
    expect(await noted()).toEqual([])
    // A session left in a transaction would undo or refuse this.
    expect(await own.run(`${note('later')};select 'later'`, 5_000, { afterwards: 'select 1' })).toBe('later')
    expect(await noted()).toEqual(['later'])
  })

  test('a release is answered, and heartbeats go on, while another session keeps the lock of NOTIFY', async () => {
    const client = clients[kind]('-c synchronous_commit=local')
    const store = postgres(client as never)
    const locks = createLocks(store, { ttl: '30s', wait: '20s' })
    onTestFinished(async () => {
      await locks.close({ grace: 0 })
      await store.close()
      await client.end()
    })
    const [held, other] = [await locks.acquire(`turn ${kind}`), await locks.acquire(`other ${kind}`)]
    const waiting = createLocks(postgres(pool), { ttl: '30s', wait: '20s' })
    onTestFinished(() => waiting.close({ grace: 0 }))
    const next = waiting.acquire(held.name)
    await expect.poll(async () => (await locks.inspect(held.name)).waiters).toHaveLength(1)
    await keepNotifyLocked()
    expect(await held.release()).toBe(true)
    await other.extend('30s')
    expect((await next).fencingToken).toBeGreaterThan(held.fencingToken)
  })
})

/** A transaction with a NOTIFY whose commit waits for a standby that does not exist. */
async function keepNotifyLocked(): Promise<void> {
  await pool.query("alter system set synchronous_standby_names = 'nobody'")
  await pool.query('select pg_reload_conf()')
  const stuck = new pg.Client({ connectionString: server.url })
  await stuck.connect()
  const { rows } = await stuck.query<{ pid: number }>('select pg_backend_pid() as pid')
  const watch = new pg.Client({ connectionString: server.url, options: '-c synchronous_commit=local' })
  await watch.connect()
  let over = false
  onTestFinished(async () => {
    over = true
    await watch.query('alter system reset synchronous_standby_names')
    await watch.query('select pg_reload_conf()')
    await notifying
    await Promise.all([stuck.end(), watch.end()])
  })
  // Commits begin to wait when the server's checkpointer has read the setting too.
  const notify = async (): Promise<void> => {
    while (!over) await stuck.query("notify anything, 'x'").catch(() => {})
  }
  const notifying = notify()
  const event = 'select wait_event from pg_stat_activity where pid = $1'
  await expect
    .poll(async () => (await watch.query(event, [rows[0]?.pid])).rows, { timeout: 10_000 })
    .toEqual([{ wait_event: 'SyncRep' }])
}

test('two transactions in one message cause no warning', async () => {
  const client = new pg.Client({ connectionString: server.url })
  await client.connect()
  onTestFinished(() => client.end())
  const warnings: unknown[] = []
  client.on('notice', ({ message }) => warnings.push(message))
  await client.query(
    inTwoTransactions(`set local lock_timeout = 1;select 'first'`, `set local lock_timeout = 1;select 'second'`),
  )
  expect(warnings).toEqual([])
  await client.query('commit')
  expect(warnings).toEqual(['there is no transaction in progress'])
})

test('messages whose NOTIFY failed (its queue is full) do not pile up in the session', async () => {
  const client = new pg.Client({ connectionString: server.url })
  await client.connect()
  onTestFinished(() => client.end())
  const received: unknown[] = []
  client.on('notification', ({ payload }) => received.push(payload))
  await client.query('listen pile')
  for (let i = 0; i < 50; i++) {
    const deferred = `select leasehold_send(E'pile ${i}a\\n', true), leasehold_send(E'pile ${i}b\\n', true)`
    await expect(client.query(inTwoTransactions(deferred, 'select leasehold_flush(), 1 / 0'))).rejects.toThrow('zero')
  }
  const { rows } = await client.query<{ kept: string }>("select current_setting('leasehold.deferred') as kept")
  expect(rows[0]?.kept.length).toBeLessThan(100)
  await client.query('select leasehold_flush()')
  expect(received).toEqual(['49a', '49b'])
})
