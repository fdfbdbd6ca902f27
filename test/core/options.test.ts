/**
 * Options and events that do not exist, or have no effect on a call, are rejected. An ignored typo would never be
 * noticed.
 */
import { Redis } from 'ioredis'
import pg from 'pg'
import { expect, test } from 'vitest'
import {
  createLocks,
  DistributedLock,
  InvalidOptionError,
  memory,
  openStore,
  UnsupportedError,
} from '../../src/index.js'
import { advisory, lockInTransaction } from '../../src/stores/postgres-advisory/index.js'
import { guard, guardedWrite, migrate, migrationSql, postgres } from '../../src/stores/postgres/index.js'
import { redis } from '../../src/stores/redis/index.js'
import { etcd } from '../../src/stores/etcd/index.js'
import { redlock } from '../../src/stores/redlock/index.js'
import { sqlite } from '../../src/stores/sqlite/index.js'

const locks = createLocks(memory())
const clients = [1, 2, 3].map(() => new Redis({ lazyConnect: true }))
const pool = new pg.Pool()
const loose = (value: unknown): never => value as never

const UNKNOWN: [string, string, () => unknown][] = [
  [
    'createLocks',
    '"tll" (did you mean "ttl"? known: ttl, wait, namespace, onCall, publish)',
    () => createLocks(memory(), loose({ tll: 1 })),
  ],
  ['acquire', '"waitt" (did you mean "wait"? known: ttl, wait, signal,', () => locks.acquire('a', loose({ waitt: 1 }))],
  ['acquire', '"nested"', () => locks.acquire('a', loose({ nested: 'wait' }))],
  ['acquire', '"weight"', () => locks.acquire('a', loose({ weight: 1 }))],
  ['tryAcquire', '"wait"', () => locks.tryAcquire('a', loose({ wait: 1 }))],
  ['withLock', '"metdata" (did you mean "metadata"?', () => locks.withLock('a', () => 1, loose({ metdata: 1 }))],
  ['withLocks', '"tTL" (did you mean "ttl"?', () => locks.withLocks(['a'], () => 1, loose({ tTL: 1 }))],
  ['acquireAll', '"nested"', () => locks.acquireAll(['a'], loose({ nested: 'wait' }))],
  ['wrap', '"autorenew" (did you mean "autoRenew"?', () => locks.wrap('a', () => 1, loose({ autorenew: false }))()],
  ['readWrite', '"starving"', () => locks.readWrite('a', loose({ starving: 1 }))],
  ['acquireRead', '"nested"', () => locks.readWrite('a').acquireRead(loose({ nested: 'wait' }))],
  ['semaphore', '"wieght" (did you mean "weight"?', () => locks.semaphore('a', 2).acquire(loose({ wieght: 1 }))],
  ['semaphore', '"wait"', () => locks.semaphore('a', 2).tryAcquire(loose({ wait: 1 }))],
  ['election', '"vlaue" (did you mean "value"?', () => locks.election('a', loose({ vlaue: 1 }))],
  ['election.run', '"singal" (did you mean "signal"?', () => locks.election('a').run(() => 1, loose({ singal: 1 }))],
  ['limiter', '"brust" (did you mean "burst"?', () => locks.limiter('a', loose({ limit: 1, per: 1, brust: 1 }))],
  [
    'limiter.wait',
    '"costs" (did you mean "cost"?',
    () => locks.limiter('a', { limit: 1, per: 1 }).wait('a', loose({ costs: 1 })),
  ],
  ['runOnce', '"metadata"', () => locks.runOnce('a', () => 1, loose({ metadata: 1 }))],
  [
    'schedule',
    '"timeZone" (did you mean "timezone"?',
    () => locks.schedule('a', '* * * * *', () => 1, loose({ timeZone: 1 })),
  ],
  ['inspect', '"knid" (did you mean "kind"?', () => locks.inspect('a', loose({ knid: 1 }))],
  ['holders', '"name"', () => locks.holders('a', loose({ name: 1 }))],
  ['close', '"grase" (did you mean "grace"?', () => locks.close(loose({ grase: 1 }))],
  ['DistributedLock', '"ttl"', () => new DistributedLock().acquire('a', loose({ ttl: 1 }))],
  ['memory', '"maxKeys"', () => memory(loose({ maxKeys: 1 }))],
  ['sqlite', '"timeout"', () => sqlite('a.db', loose({ timeout: 1 }))],
  ['redis', '"prefx" (did you mean "prefix"?', () => redis(clients[0] as Redis, loose({ prefx: 1 }))],
  ['redlock', '"maxttl" (did you mean "maxTtl"?', () => redlock(clients, loose({ maxttl: 1 }))],
  ['postgres', '"shema" (did you mean "schema"?', () => postgres(pool, loose({ shema: 1 }))],
  ['advisory', '"max"', () => advisory(pool, loose({ max: 1 }))],
  ['etcd', '"credentialz" (did you mean "credentials"?', () => etcd(['a'], loose({ credentialz: 1 }))],
  ['lockInTransaction', '"ttl"', () => lockInTransaction(loose({}), 'a', loose({ ttl: 1 }))],
  ['guard', '"fencingToken"', () => guard(loose({}), loose({ resource: 'a', fencingToken: 1n }))],
  ['migrate', '"shema" (did you mean "schema"?', () => migrate(pool, loose({ shema: 1 }))],
  ['migrationSql', '"adpot" (did you mean "adopt"?', () => migrationSql(loose({ adpot: 1 }))],
  ['redis://', '"prefx" (did you mean "prefix"?', () => openStore('redis://db?prefx=a')],
  ['redlock://', '"maxttl" (did you mean "maxTtl"?', () => openStore('redlock://a,b,c?maxttl=1m')],
  ['postgres://', '"shema" (did you mean "schema"?', () => openStore('postgres://db?shema=a')],
  ['postgres+advisory://', '"schma" (did you mean "schema"?', () => openStore('postgres+advisory://db?schma=a')],
  ['etcds://', '"crt" (did you mean "cert"?', () => openStore('etcds://a?crt=a')],
]

test.each(UNKNOWN)('%s rejects the unknown option %s', async (_, message, call) => {
  const error = await new Promise((resolve) => resolve(call())).then(
    () => expect.fail('it was accepted'),
    (thrown: unknown) => thrown as Error,
  )
  expect(error).toBeInstanceOf(InvalidOptionError)
  expect(error.message).toContain(`unknown option ${message}`)
})

test.each([0, false, '', null])('options that are %j are refused', async (options) => {
  const config = locks.readWrite('a')
  const calls = [
    () => locks.acquire('a', loose(options)),
    () => locks.withLock('a', () => 1, loose(options)),
    () => config.read(() => 1, loose(options)),
    () => config.write(() => 1, loose(options)),
    () => config.acquireRead(loose(options)),
  ]
  for (const call of calls) await expect(call()).rejects.toThrow('options takes an object')
})

test('guardedWrite without a function that writes is refused, before it opens a transaction', async () => {
  const unguarded = guardedWrite(pool, { resource: 'a', token: 1n }, loose(undefined))
  await expect(unguarded).rejects.toThrow('write takes a function')
})

test('the client library keeps the URL parameters that belong to it', async () => {
  const store = await openStore(
    'postgres://db/app?sslmode=disable&connect_timeout=3&application_name=shop&schema=locks',
  )
  await store.close()
})

test('an unknown event is rejected, with a suggestion', () => {
  expect(() => locks.on(loose('lsot'), () => {})).toThrow('unknown event "lsot" (did you mean "lost"? known: acquired,')
  expect(() => locks.off(loose('lsot'), () => {})).toThrow('unknown event "lsot"')
  expect(() => locks.on('lost', loose(undefined))).toThrow('listener takes a function')
  const job = locks.schedule('tick', '0 0 1 1 *', () => {})
  expect(() => job.on(loose('fialed'), () => {})).toThrow('unknown event "fialed" (did you mean "failed"?')
  return job.stop()
})

test('an unknown kind is rejected, with a suggestion', async () => {
  await expect(locks.inspect('a', { kind: 'semaphor' })).rejects.toThrow(
    'unknown kind "semaphor" (did you mean "semaphore"? known: lock, semaphore, election, run-once, schedule, stats)',
  )
})

test('an option that is undefined is treated as absent', async () => {
  // These lines compile under exactOptionalPropertyTypes, which this project uses.
  const maybe = undefined as '1s' | undefined
  const own = createLocks(memory(), { ttl: maybe, wait: maybe, namespace: undefined })
  await own.withLock('a', () => {}, {
    ttl: maybe,
    wait: maybe,
    signal: undefined,
    metadata: undefined,
    nested: undefined,
  })
  await own.semaphore('a', 1).use(() => {}, { weight: undefined, maxHold: maybe })
  await own.runOnce('a', () => {}, { retain: maybe })
  await own.limiter('a', { limit: 1, per: '1s', burst: undefined, onStoreError: undefined }).take('a')
  own.election('a', { ttl: maybe, drain: maybe })
  await own.schedule('a', '0 0 1 1 *', () => {}, { timezone: undefined, maxHold: maybe }).stop()
  await own.close({ grace: undefined })
})

test('a namespace must not contain a colon, because two namespaces could collide', () => {
  expect(() => createLocks(memory(), { namespace: 'a:b' })).toThrow("namespace takes a name without ':'")
})

test('a file may have the name 100%.db', async () => {
  const store = await openStore('sqlite:/tmp/leasehold-100%.db')
  await store.close()
})

test('redlock needs no maxTtl, rejects schedules when they are created, and requires runOnce to say how long to remember', async () => {
  const store = redlock(clients)
  expect(store.maxTtlMs).toBe(60_000)
  const own = createLocks(store)
  expect(() => own.schedule('a', '* * * * *', () => {})).toThrow(UnsupportedError)
  await expect(own.runOnce('a', () => 1)).rejects.toThrow(
    'retain takes a duration of at most 1m on the redlock store, which keeps nothing for longer',
  )
  await store.close()
})
