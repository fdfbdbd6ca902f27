/** Other clients of a pooler get the answers to their own statements, whenever a connection of leasehold ends. */
import pg from 'pg'
import postgresJs from 'postgres'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { driverOf } from '../../../src/clients/postgres/open.js'
import { type PgBouncer, type PostgresServer, startPgBouncer, startPostgres } from '../../../testbed/servers/index.js'

let server: PostgresServer
let bouncer: PgBouncer
beforeAll(async () => {
  server = await startPostgres()
  // One backend: the next client gets the one that leasehold used.
  bouncer = await startPgBouncer({ postgres: server, mode: 'transaction', poolSize: 1 })
})
afterAll(() => Promise.all([bouncer, server].map((one) => one?.stop())))

const clients = {
  pg: () => new pg.Pool({ connectionString: bouncer.url, max: 1 }),
  'postgres.js': () => postgresJs(bouncer.url, { max: 1, prepare: false }),
}

test.each(Object.keys(clients) as (keyof typeof clients)[])(
  'a connection of leasehold (%s) that ends while its second message is under way leaves no answer to others',
  async (kind) => {
    const client = clients[kind]()
    onTestFinished(() => client.end())
    const application = new pg.Client({ connectionString: bouncer.url })
    await application.connect()
    onTestFinished(() => application.end())
    const own = driverOf(client as never).ownConnection(5_000)
    expect(await own.run("select 'first'", 5_000, { afterwards: "select 'second' from pg_sleep(0.3)" })).toBe('first')
    await own.close()
    const said: unknown[] = []
    for (let i = 0; i < 3; i++) said.push((await application.query(`select 'mine ${i}' as said`)).rows[0])
    expect(said).toEqual([{ said: 'mine 0' }, { said: 'mine 1' }, { said: 'mine 2' }])
  },
)
