/**
 * Invalid calls, each with a secret in it. Whatever they throw is searched in every form in which it may end up in a
 * log.
 */
import { inspect } from 'node:util'
import { Cluster, Redis } from 'ioredis'
import pg from 'pg'
import postgresJs from 'postgres'
import { createClient, createCluster } from 'redis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type PostgresServer, type RedisServer, startPostgres, startRedis } from '../../testbed/servers/index.js'
import {
  createLocks,
  InvalidOptionError,
  LeaseholdError,
  memory,
  openStore,
  type Store,
  StoreUnavailableError,
} from '../../src/index.js'
import { advisory } from '../../src/stores/postgres-advisory/index.js'
import { postgres } from '../../src/stores/postgres/index.js'
import { redis } from '../../src/stores/redis/index.js'
import { etcd } from '../../src/stores/etcd/index.js'
import { redlock } from '../../src/stores/redlock/index.js'
import { sqlite } from '../../src/stores/sqlite/index.js'
import { redact } from '../../src/util/redact.js'

const SECRET = 'hunter2'
/** A secret with characters that end the credentials of a URL too early. */
const TRICKY = `${SECRET}@${SECRET}`
const URLS = [
  `redis://admin:${SECRET}@db/0`,
  `redis://admin:${TRICKY}@db`,
  `redis://admin:${SECRET}/x@db`,
  `redis://admin:${SECRET}?@db`,
  `rediss+cluster://:${TRICKY}@a:1,b:2`,
  `redis+sentinel://:${SECRET}@a:1,b:2/main`,
  `redlock://:${TRICKY}@a:1,b:2,c:3`,
  `postgres://admin:${TRICKY}@db/app?sslmode=no`,
  `postgres://db/app?user=admin&password=${SECRET}`,
]

let server: RedisServer
let database: PostgresServer
const closing: (() => unknown)[] = []
beforeAll(async () => {
  ;[server, database] = await Promise.all([startRedis({ password: 'right' }), startPostgres()])
})
afterAll(async () => {
  for (const close of closing.reverse()) await close()
  await Promise.all([server?.stop(), database?.stop()])
})

const lazy = { lazyConnect: true, password: SECRET }
const loose = (value: unknown): never => value as never
const pool = new pg.Pool({ connectionString: `postgres://admin:${SECRET}@127.0.0.1:1/x` })
const client = new Redis({ host: '127.0.0.1', port: 1, ...lazy })
const cluster = new Cluster([{ host: '127.0.0.1', port: 1 }], { lazyConnect: true, redisOptions: { password: SECRET } })
const node = createClient({ url: `redis://:${SECRET}@127.0.0.1:1` })
const nodeCluster = createCluster({ rootNodes: [{ url: `redis://:${SECRET}@127.0.0.1:1` }] })
const sql = postgresJs(`postgres://admin:${SECRET}@127.0.0.1:1/x`)
const locks = createLocks(memory())

const WRONG_CALLS: [string, () => unknown][] = [
  ...URLS.flatMap((url): [string, () => unknown][] => [
    [`createLocks(${redact(url)})`, () => createLocks(loose(url))],
    [`openStore with an unknown scheme in ${redact(url)}`, () => openStore(url.replace(/^[a-z+]+/, 'nosuch'))],
  ]),
  ...URLS.slice(0, 6).map((url): [string, () => unknown] => [`redis(${redact(url)})`, () => redis(loose(url))]),
  ...URLS.slice(0, 7).map((url): [string, () => unknown] => [
    `openStore without the second slash of ${redact(url)}`,
    () => openStore(url.replace('://', ':/')),
  ]),
  ['createLocks(ioredis)', () => createLocks(loose(client))],
  ['createLocks(ioredis cluster)', () => createLocks(loose(cluster))],
  ['createLocks(node-redis)', () => createLocks(loose(node))],
  ['createLocks(node-redis cluster)', () => createLocks(loose(nodeCluster))],
  ['createLocks(pg Pool)', () => createLocks(loose(pool))],
  ['createLocks(postgres.js)', () => createLocks(loose(sql))],
  ['createLocks(settings)', () => createLocks(loose({ url: URLS[0], password: SECRET }))],
  ['createLocks with a URL as options', () => createLocks(memory(), loose(URLS[0]))],
  ['createLocks with a password as option', () => createLocks(memory(), loose({ password: SECRET }))],
  ['redis(pool)', () => redis(loose(pool))],
  ['redis(settings)', () => redis(loose({ host: 'db', password: SECRET }))],
  ['redis(multi)', () => redis(loose(client.multi()))],
  ['redis with a URL as prefix', () => redis(client, { timeout: loose(URLS[0]) })],
  ['redlock(URL)', () => redlock(loose(URLS[0]), { maxTtl: '1m' })],
  ['redlock(URLs)', () => redlock(loose([URLS[0], URLS[1], URLS[2]]), { maxTtl: '1m' })],
  ['redlock(pools)', () => redlock(loose([pool, pool, sql]), { maxTtl: '1m' })],
  ['redlock with a cluster', () => redlock(loose([client, cluster, node]), { maxTtl: '1m' })],
  ['redlock with a URL as maxTtl', () => redlock(loose([client, node, 7]), { maxTtl: loose(URLS[1]) })],
  ['postgres(URL)', () => postgres(loose(URLS[7]))],
  ['postgres(ioredis)', () => postgres(loose(client))],
  ['postgres(settings)', () => postgres(loose({ connectionString: URLS[7] }))],
  ['postgres(Client)', () => postgres(loose(new pg.Client(URLS[7])))],
  ['postgres with a URL as timeout', () => postgres(pool, { timeout: loose(URLS[7]) })],
  ['advisory(URL)', () => advisory(loose(URLS[7]))],
  ['advisory(postgres.js)', () => advisory(loose(sql))],
  ['sqlite(URL)', () => sqlite(URLS[7] as string)],
  ['openStore with text before the URL', () => openStore(`url=${URLS[0]}`)],
  ['openStore without a scheme', () => openStore(`admin:${SECRET}@db:6379`)],
  ['openStore with key=value pairs', () => openStore(`host=db user=admin password=${SECRET}`)],
  ['openStore(settings)', () => openStore(loose({ password: SECRET }))],
  ['openStore with a bad escape', () => openStore(`redis://admin:${SECRET}%zz@db`)],
  ['openStore with a bad escape, redlock', () => openStore(`redlock://admin:${SECRET}%zz@a:1,b:1,c:1`)],
  ['openStore with a bad escape, etcd', () => openStore(`etcd://admin:${SECRET}%zz@a:1`)],
  ['etcd(URL)', () => etcd(`etcd://admin:${SECRET}@a:1`)],
  ['etcd with a user in a host', () => etcd([`admin:${SECRET}@a:1`])],
  ['etcd with a text as credentials', () => etcd(['a'], { credentials: loose(`admin:${SECRET}`) })],
  ['openStore with a bad port', () => openStore(`redis://admin:${TRICKY}@db:port`)],
  ['openStore with a password and no host', () => openStore(`redis://:${SECRET}`)],
  ['openStore with a user, a password and no host', () => openStore(`redis://admin:${SECRET}`)],
  ['openStore with a password and no host, redlock', () => openStore(`redlock://a:1,b:${SECRET}`)],
  ['openStore with a password and no host, etcd', () => openStore(`etcd://admin:${SECRET}/x`)],
  ['openStore with an unknown parameter', () => openStore(`redis://admin:${TRICKY}@db?prefx=a`)],
  ['metadata that is too long', () => locks.acquire('a', { metadata: { key: SECRET.repeat(2_000) } })],
  ['a ttl that is a URL', () => locks.acquire('a', { ttl: loose(URLS[0]) })],
]

/** Every form in which an error ends up in a log. */
function shown(error: unknown): string {
  const facts = error as Record<string, unknown>
  const own = Object.getOwnPropertyNames(facts).map((name) => `${name}: ${inspect(facts[name], { depth: 9 })}`)
  return [String(error), JSON.stringify(error), inspect(error, { depth: 9, showHidden: true }), ...own].join('\n')
}

test.each(WRONG_CALLS)('%s is rejected without its secret', async (_, call) => {
  const error = await new Promise((resolve) => resolve(call())).then(
    () => expect.fail('it was accepted'),
    (thrown: unknown) => thrown,
  )
  expect(error).toBeInstanceOf(LeaseholdError)
  expect(shown(error)).not.toContain(SECRET)
})

test('the list has more than forty invalid calls', () => expect(WRONG_CALLS.length).toBeGreaterThan(40))

async function failureOf(store: Store): Promise<unknown> {
  closing.push(() => store.close())
  const own = createLocks(store)
  closing.push(() => own.close({ grace: 0 }))
  const errors: unknown[] = []
  own.on('error', (facts) => errors.push(facts.error))
  const error = await own.acquire('a', { wait: 400 }).then(
    () => expect.fail('it was granted'),
    (thrown: unknown) => thrown,
  )
  return [error, errors]
}

const wrong = (port: number): Redis => {
  const made = new Redis({ host: '127.0.0.1', port, password: TRICKY, maxRetriesPerRequest: 0, retryStrategy: null })
  made.on('error', () => {})
  closing.push(() => made.disconnect())
  return made
}

test.each<[string, () => Promise<Store> | Store]>([
  ['ioredis', () => redis(wrong(server.port))],
  ['redis://', () => openStore(`redis://:${encodeURIComponent(TRICKY)}@127.0.0.1:${server.port}`)],
  ['redis:// with an @ that is not escaped', () => openStore(`redis://:${TRICKY}@127.0.0.1:${server.port}`)],
  ['redis+cluster://', () => openStore(`redis+cluster://:${TRICKY}@127.0.0.1:${server.port}`)],
  ['redis+sentinel://', () => openStore(`redis+sentinel://:${TRICKY}@127.0.0.1:${server.port}/main`)],
  [
    'redlock()',
    () =>
      redlock(
        [1, 2, 3].map(() => wrong(server.port)),
        { maxTtl: '1m' },
      ),
  ],
  [
    'redlock://',
    () => openStore(`redlock://:${TRICKY}@127.0.0.1:${server.port},localhost:${server.port},127.0.0.2:${server.port}`),
  ],
  ['postgres://', () => openStore(`postgres://nobody:${TRICKY}@127.0.0.1:${database.port}/none`)],
  ['postgres+advisory://', () => openStore(`postgres+advisory://nobody:${TRICKY}@127.0.0.1:${database.port}/none`)],
])('an error of a server that rejects the password of %s does not contain the password', async (_, open) => {
  const failure = await failureOf(await open())
  expect(shown(failure)).toMatch(/STORE_UNAVAILABLE|UNSUPPORTED/)
  expect(shown(failure)).not.toContain(SECRET)
  for (const error of (failure as [unknown, unknown[]])[1]) expect(shown(error)).not.toContain(SECRET)
})

test.each([
  `redis://:${TRICKY}@127.0.0.1:1`,
  `redis+cluster://:${TRICKY}@127.0.0.1:1`,
  `redis+sentinel://:${TRICKY}@127.0.0.1:1/main`,
  `redlock://:${TRICKY}@127.0.0.1:1,localhost:1,127.0.0.2:1`,
  `postgres://admin:${TRICKY}@127.0.0.1:1/x`,
  `postgres://127.0.0.1:1/x?user=admin&password=${SECRET}`,
  `postgres+advisory://admin:${TRICKY}@127.0.0.1:1/x`,
  `etcd://admin:${TRICKY}@127.0.0.1:1`,
])(
  'a server that cannot be reached at %s is told of without the password, by the store and the locks too',
  async (url) => {
    const store = await openStore(url)
    const failure = await failureOf(store)
    expect(shown(failure)).toMatch(/STORE_UNAVAILABLE|UNSUPPORTED/)
    for (const error of [failure, ...(failure as [unknown, unknown[]])[1]]) expect(shown(error)).not.toContain(SECRET)
    expect(inspect(store)).not.toContain(SECRET)
    expect(inspect(createLocks(store))).not.toContain(SECRET)
    expect(JSON.stringify(createLocks(store))).not.toContain(SECRET)
  },
)

test('error.value keeps plain values and describes all others', () => {
  expect(new InvalidOptionError('ttl', 7, 'more').value).toBe(7)
  expect(new InvalidOptionError('ttl', '7 bananas', 'a duration').value).toBe('7 bananas')
  expect(new InvalidOptionError('client', client, 'a store').value).toMatch(/^an object of class/)
  expect(new InvalidOptionError('password', SECRET, 'a string').value).toBe('…')
})

test('an error of a client library that carries no secret is the cause itself', () => {
  const cause = Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:1'), { code: 'ECONNREFUSED', port: 1 })
  cause.stack = `${cause.stack}\n    at file:///app/node_modules/@scope/client.js:1:1`
  expect(new StoreUnavailableError('down', { cause }).cause).toBe(cause)
})

test.each(['x', 'a:', '?', '&', 'x=', '@', 'a://', '%'])(
  'a million repetitions of %j are described at once',
  (part) => {
    const began = performance.now()
    const error = new InvalidOptionError('name', part.repeat(1_000_000), 'a name')
    expect(error.message.length).toBeLessThan(200)
    expect(redact(part.repeat(1_000_000)).length).toBeGreaterThan(0)
    expect(performance.now() - began).toBeLessThan(3_000)
  },
)

test.each(['@', '&', '#', '?', '&password=', '/@', ' ', '\t', '\n', ' @', ':', ';'])(
  'no part of a password with %j in it is shown, wherever in a URL it is',
  (special) => {
    const password = `hunt${special}er2x`
    const urls = [
      `redis://user:${password}@127.0.0.1:1/0`,
      `postgres://db/shop?password=${password}`,
      `postgres://db/shop?sslmode=require&password=${password}&x=1`,
      `redis:user:${password}@127.0.0.1`,
      `postgres:db/shop?password=${password}`,
      `redlock://user:${password}@a:1,user:${password}@b:2,user:${password}@c:3`,
    ]
    for (const url of urls) {
      const error = new InvalidOptionError('store', url, 'a URL')
      expect(`${error.message} ${String(error.value)}`).not.toMatch(/hunt|er2x/)
    }
  },
)

test('what cannot be a port is hidden, and ports and addresses stay readable', () => {
  const valueOf = (url: string): unknown => new InvalidOptionError('store', url, 'a URL').value
  expect(valueOf('redis://admin:hunter2')).toBe('redis://admin:…')
  expect(valueOf('redis:admin:hunter2/0')).toBe('redis:admin:…')
  expect(valueOf('redlock://a:1,b:hun/ter2')).toBe('redlock://a:1,b:…')
  for (const url of ['redis://db:6379/0?x=a:b', 'redis://[::1]:6379', 'redlock://a:1,b:2/x', 'mysql://db/a:b']) {
    expect(valueOf(url)).toBe(url)
  }
})

test('the text around a password stays readable', () => {
  expect(redact(`cannot reach redis://admin:${TRICKY}@db:6379/0?x=1 today`)).toBe(
    'cannot reach redis://…@db:6379/0?x=1 today',
  )
  expect(redact('redis://user:a hunter2 b@db:6379/0?password=hunter2')).toBe('redis://…@db:6379/0?password=…')
  expect(redact(`redis://${' '.repeat(1_000_000)}`)).toContain('redis://')
  expect(redact('connect ECONNREFUSED 127.0.0.1:6379')).toBe('connect ECONNREFUSED 127.0.0.1:6379')
  expect(redact('redis://[user:password@]host[:port]')).toBe('redis://[user:password@]host[:port]')
  expect(redact(`redis://[user:password@]${TRICKY}@db`)).not.toContain(SECRET)
})
