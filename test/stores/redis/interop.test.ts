/** The plain key `lock:<name>` is common ground: a program that uses it, in any language, excludes us, and we exclude it. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import { createLocks, type Locks, LockTimeoutError } from '../../../src/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import { ioredis } from '../../../testbed/redis/fixtures.js'

const run = promisify(execFile)

/** What is used of redlock@5, whose types its own package does not export. */
type Redlock5 = new (
  clients: unknown[],
  options: object,
) => { acquire(names: string[], ttl: number): Promise<{ value: string; release(): Promise<unknown> }> }
const { default: Redlock } = (await import('redlock5' as string)) as { default: Redlock5 }

let server: RedisServer
let connection: ReturnType<(typeof ioredis)[6]>
let locks: Locks

beforeAll(async () => {
  server = await startRedis()
  connection = ioredis[6](server.url)
  locks = createLocks(redis(connection.client))
})

afterEach(async () => {
  await locks.releaseAll()
  await connection.client.flushall()
})

afterAll(async () => {
  await locks.close()
  connection.end()
  await server.stop()
})

/** Runs Python with Debian's redis-py, `r` being a connection to the server. */
async function python(code: string): Promise<string> {
  const source = `import redis\nr = redis.Redis(port=${server.port})\n${code}`
  const { stdout } = await run('/usr/bin/python3', ['-c', source])
  return stdout.trim()
}

test("a lock held by redis-py's Lock excludes us, and inspect shows it with its remaining time", async () => {
  const token = await python(`
l = r.lock('lock:shared', timeout=30)
assert l.acquire(blocking=False)
print(l.local.token.decode())`)
  expect(await locks.tryAcquire('shared')).toBeNull()
  const { holders } = await locks.inspect('shared')
  expect(holders).toHaveLength(1)
  expect(holders[0]).toMatchObject({ holder: token, foreign: true })
  const left = Number(holders[0]?.expiresAt) - Date.now()
  expect(left).toBeGreaterThan(20_000)
  expect(left).toBeLessThanOrEqual(30_100)
})

test("a lock that we hold excludes redis-py's Lock, and the other way round after each release", async () => {
  const lock = await locks.acquire('shared')
  expect(await connection.client.get('lock:shared')).toBe(lock.holder)
  const attempt = `print(r.lock('lock:shared', timeout=30).acquire(blocking=False))`
  expect(await python(attempt)).toBe('False')
  await lock.release()
  expect(await python(attempt)).toBe('True')
  expect(await locks.tryAcquire('shared')).toBeNull()
})

test('while readers hold, redis-py stays out until the last of them has left', async () => {
  const readers = [await locks.acquire('shared', { mode: 'shared' }), await locks.acquire('shared', { mode: 'shared' })]
  const attempt = `
l = r.lock('lock:shared', timeout=30)
print(l.acquire(blocking=False))
try: l.release()
except Exception: pass`
  expect(await python(attempt)).toBe('False')
  await readers[0]?.release()
  expect(await python(attempt)).toBe('False')
  await readers[1]?.release()
  expect(await python(attempt)).toBe('True')
})

test('a waiter gets a lock of redis-py soon after its release, although no notification is sent', async () => {
  await connection.client.set('lock:shared', 'by-hand', 'PX', 60_000)
  // Shorter than the key lasts: without polls the wait would be in vain.
  const waiting = locks.acquire('shared', { wait: '40s' })
  await expect.poll(async () => (await locks.waiters('shared')).length).toBe(1)
  await python(`
l = r.lock('lock:shared', timeout=60)
l.local.token = b'by-hand'
l.release()`)
  expect((await waiting).isHeld).toBe(true)
})

test('redlock@5 excludes us and we exclude it', async () => {
  const redlock = new Redlock([connection.client], { retryCount: 0 })
  const theirs = await redlock.acquire(['lock:job'], 30_000)
  expect(await locks.tryAcquire('job')).toBeNull()
  expect((await locks.inspect('job')).holders).toMatchObject([{ holder: theirs.value, foreign: true }])
  await theirs.release()
  const ours = await locks.acquire('job')
  await expect(redlock.acquire(['lock:job'], 30_000)).rejects.toThrow()
  expect(ours.isHeld).toBe(true)
  await ours.release()
  const again = await redlock.acquire(['lock:job'], 30_000)
  await again.release()
})

test('SET NX PX and compare-and-delete by hand, as in so many codebases, exclude us and we exclude them', async () => {
  const { client } = connection
  const deleteIfMine = `if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end`
  expect(await client.set('lock:order:1', 'me', 'PX', 30_000, 'NX')).toBe('OK')
  expect(await locks.tryAcquire('order:1')).toBeNull()
  expect(await client.eval(deleteIfMine, 1, 'lock:order:1', 'me')).toBe(1)
  const lock = await locks.acquire('order:1')
  expect(await client.set('lock:order:1', 'me', 'PX', 30_000, 'NX')).toBeNull()
  expect(await client.eval(deleteIfMine, 1, 'lock:order:1', 'me')).toBe(0)
  expect(await lock.release()).toBe(true)
})

test('a key without expiry, and one of another type, are holders, not errors, and other locks of the batch are granted', async () => {
  const { client } = connection
  await client.set('lock:for-ever', 'somebody')
  await client.rpush('lock:list', 'x')
  const attempts = ['a', 'for-ever', 'list', 'b'].map((name) => locks.tryAcquire(name))
  const [a, forEver, list, b] = await Promise.all(attempts)
  expect([a?.isHeld, forEver, list, b?.isHeld]).toEqual([true, null, null, true])
  const [eternal] = (await locks.inspect('for-ever')).holders
  expect(eternal).toMatchObject({ holder: 'somebody', foreign: true })
  expect(eternal?.expiresAt).toBeUndefined()
  expect((await locks.inspect('list')).holders).toMatchObject([{ holder: '(list)', foreign: true }])
  const error = await locks.acquire('list', { wait: 1_500 }).catch((reason: unknown) => reason)
  expect(error).toBeInstanceOf(LockTimeoutError)
  expect(error).toMatchObject({ heldBy: '(list)' })
})

test('forceRelease ends a foreign lock, and the queue behind it moves on', async () => {
  await connection.client.set('lock:stuck', 'somebody', 'PX', 60_000)
  const waiting = locks.acquire('stuck', { wait: '10s' })
  await expect.poll(async () => (await locks.waiters('stuck')).length).toBe(1)
  expect(await locks.forceRelease('stuck')).toMatchObject([{ holder: 'somebody' }])
  expect((await waiting).isHeld).toBe(true)
})

test('the next heartbeat notices that a foreign program deleted our key, and all who share it lose it', async () => {
  const lock = await locks.acquire('mine', { ttl: '6s' })
  const reader = await locks.acquire('ours', { ttl: '6s', mode: 'shared' })
  await connection.client.del('lock:mine', 'lock:ours')
  await connection.client.set('lock:ours', 'a foreign writer', 'PX', 60_000)
  await expect.poll(() => [lock.isHeld, reader.isHeld], { interval: 5 }).toEqual([false, false])
  expect(lock.signal.reason).toMatchObject({ why: 'gone' })
  expect(reader.signal.reason).toMatchObject({ why: 'gone' })
  expect(await connection.client.get('lock:ours')).toBe('a foreign writer')
})

test('readers from before a foreign writer do not hold again after it', async () => {
  const { client } = connection
  const before = await locks.acquire('page', { mode: 'shared', ttl: '60s', autoRenew: false })
  await client.set('lock:page', 'a foreign writer', 'PX', 60_000)
  await client.del('lock:page')
  const after = await locks.acquire('page', { mode: 'shared', ttl: '60s' })
  expect((await locks.inspect('page')).holders.map(({ holder }) => holder)).toEqual([after.holder])
  expect(await before.release()).toBe(false)
  await after.release()
  expect((await locks.acquire('page', { wait: 0 })).isHeld).toBe(true)
})
