/** What goes wrong with a server or a connection, and what a lock makes of it. */
import type { EventEmitter } from 'node:events'
import { afterEach, describe, expect, test } from 'vitest'
import { type RedisOptions, type RedisServer, startProxy, startRedis } from '../../../testbed/servers/index.js'
import { createLocks, StoreUnavailableError } from '../../../src/index.js'
import { ALL, type Claim, type Store } from '../../../src/store.js'
import { type RedisStoreOptions, redis } from '../../../src/stores/redis/index.js'
import { type Connection, eventually, ioredis, nodeRedis } from '../../../testbed/redis/fixtures.js'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean()
})

async function server(options: RedisOptions = {}): Promise<RedisServer> {
  const started = await startRedis(options)
  cleanups.push(() => started.stop())
  return started
}

function on<C extends Connection>(connection: C, options?: RedisStoreOptions): { client: C['client']; store: Store } {
  cleanups.push(connection.end)
  const store = redis(connection.client, options)
  cleanups.push(() => store.close())
  return { client: connection.client, store }
}

let counter = 0
function claim(key: string, over: Partial<Claim> = {}): Claim {
  return { key, owner: `test/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

async function granted(store: Store, what: Claim): Promise<bigint> {
  const [answer] = await store.acquire([what])
  if (answer?.granted !== true) throw new Error(`not granted: ${JSON.stringify(answer)}`)
  return answer.token
}

/** Why an attempt could not be decided, whether the call rejected or the item failed. */
async function undecided(asked: Promise<unknown[]> | unknown[]): Promise<Error> {
  const answers = await Promise.resolve(asked).catch((error: unknown) => [{ error }])
  const { error } = answers[0] as { error?: unknown }
  expect(error).toBeInstanceOf(StoreUnavailableError)
  return error as Error
}

const clients = {
  'ioredis 6': async (url: string, options?: object) => ioredis[6](url, options),
  'ioredis 5': async (url: string, options?: object) => ioredis[5](url, options),
  'node-redis': async (url: string) => nodeRedis(url),
}

describe.each(Object.entries(clients))('%s', (_name, connect) => {
  test('locks work on after SCRIPT FLUSH', async () => {
    const { url, command } = await bound()
    const { store } = on(await connect(url))
    const key = 'lock:a'
    for (let i = 0; i < 3; i++) {
      const lease = claim(key)
      await granted(store, lease)
      await command('SCRIPT', 'FLUSH')
      expect(await store.renew([{ ...lease, ttlMs: 30_000 }])).toMatchObject([{ outcome: 'ours' }])
      await command('SCRIPT', 'FLUSH')
      expect(await store.release([lease])).toEqual([{ outcome: 'released' }])
      await command('SCRIPT', 'FLUSH')
    }
  })

  test('a restart without data under a held lock is noticed at the reconnect, not at the next heartbeat', async () => {
    const started = await server()
    const { client, store } = on(await connect(started.url))
    const locks = createLocks(store)
    const lock = await locks.acquire('job', { ttl: '60s' })
    const lost = new Promise((resolve) => lock.signal.addEventListener('abort', resolve))
    const back = new Promise((resolve) => (client as EventEmitter).once('ready', resolve))
    await started.restart({ keepData: false })
    await back
    const reconnectedAt = performance.now()
    await lost
    // The heartbeat would be due 20 s after the grant. How fast exactly is measured by `npm run prove -- redis`.
    expect(performance.now() - reconnectedAt).toBeLessThan(10_000)
    expect(lock.signal.reason).toMatchObject({ why: 'gone' })
  })

  test('a restart with data is survived, and tokens grow over expiry, FLUSHALL and lost data', async () => {
    const started = await server({ appendonly: true })
    const { store } = on(await connect(started.url))
    const lease = claim('lock:a')
    let last = await granted(store, lease)
    const grows = async (): Promise<void> => {
      const token = await granted(store, claim('lock:a', { ttlMs: 20 }))
      expect(token).toBeGreaterThan(last)
      last = token
    }
    await started.restart({ keepData: true })
    expect(await eventually(() => store.renew([{ ...lease, ttlMs: 30_000 }]))).toMatchObject([{ outcome: 'ours' }])
    await store.release([lease])
    await grows()
    await started.command('FLUSHALL')
    await grows()
    await expect.poll(() => started.command('EXISTS', 'lock:a')).toBe(0)
    await grows()
    await started.restart({ keepData: false })
    await eventually(() => store.release([lease]))
    await grows()
  })

  test('held locks stay held when every client is killed, and waiters are served', async () => {
    const started = await server()
    const { store } = on(await connect(started.url))
    const { store: other } = on(await connect(started.url))
    const [a, b] = [createLocks(store), createLocks(other)]
    const lock = await a.acquire('job')
    const waiting = b.acquire('job', { wait: '20s' })
    await expect.poll(async () => (await a.waiters('job')).length).toBe(1)
    await started.command('CLIENT', 'KILL', 'TYPE', 'normal')
    await started.command('CLIENT', 'KILL', 'TYPE', 'pubsub')
    await expect.poll(async () => (await eventually(() => store.inspect?.('lock:job')))?.holders.length).toBe(1)
    expect(lock.isHeld).toBe(true)
    expect(await lock.release()).toBe(true)
    expect((await waiting).fencingToken).toBeGreaterThan(lock.fencingToken)
  })

  test('an attempt on a client that is not connected fails in time and is never carried out', async () => {
    const started = await server()
    const proxy = await startProxy(started.port)
    cleanups.push(() => proxy.stop())
    const { client, store } = on(await connect(proxy.through(started.url)), { timeout: 300 })
    await eventually(() => granted(store, claim(`lock:warm:${++counter}`)))
    const away = new Promise((resolve) => {
      for (const event of ['close', 'reconnecting']) (client as EventEmitter).once(event, resolve)
    })
    await proxy.refuse()
    await away
    const error = await undecided(store.acquire([claim('lock:late')]))
    expect(error.message).toMatch(/ECONNREFUSED 127\.0\.0\.1:\d+; not connected within \d+ms/)
    await proxy.heal()
    await eventually(() => store.now?.())
    expect(await started.command('EXISTS', 'lock:late')).toBe(0)
  })

  test('a request that arrives after its caller gave up is not granted', async () => {
    const started = await server()
    const proxy = await startProxy(started.port)
    cleanups.push(() => proxy.stop())
    const { store } = on(await connect(proxy.through(started.url)), { timeout: 200 })
    await eventually(() => granted(store, claim(`lock:warm:${++counter}`)))
    proxy.stall('requests')
    const asked = Promise.resolve(store.acquire([claim('lock:late')])).then(
      () => undefined,
      (error: unknown) => error,
    )
    await new Promise((resolve) => setTimeout(resolve, 400))
    await proxy.heal()
    expect(await asked).toBeInstanceOf(StoreUnavailableError)
    expect(await started.command('EXISTS', 'lock:late')).toBe(0)
    await eventually(() => granted(store, claim(`lock:on-time:${++counter}`)))
  })

  test('a read-only replica is unavailable, and what it does not know of is not called gone', async () => {
    const started = await server()
    const { store } = on(await connect(started.url))
    const lease = claim('lock:a')
    await granted(store, lease)
    await started.command('REPLICAOF', '127.0.0.1', '1')
    await started.command('CONFIG', 'SET', 'replica-serve-stale-data', 'yes')
    expect((await undecided(store.acquire([claim('lock:b')]))).message).toMatch(/read-only replica/)
    const unknown = claim('lock:c')
    expect(await store.renew([{ ...unknown, ttlMs: 1_000 }])).toMatchObject([{ outcome: 'unknown' }])
    expect(await store.release([unknown])).toMatchObject([{ outcome: 'unknown' }])
    await undecided(store.release([lease]))
    await started.command('REPLICAOF', 'NO', 'ONE')
    expect(await store.release([lease])).toEqual([{ outcome: 'released' }])
  })

  test('a server out of memory grants nothing and says so; held locks can be renewed, released and handed off', async () => {
    const started = await server()
    const { store } = on(await connect(started.url))
    const lease = claim('lock:a')
    await granted(store, lease)
    const waiting = claim('lock:a', { queueMs: 30_000 })
    await store.acquire([waiting])
    await started.command('CONFIG', 'SET', 'maxmemory', '1')
    expect((await undecided(store.acquire([claim('lock:b')]))).message).toMatch(/out of memory/)
    expect(await store.renew([{ ...lease, ttlMs: 30_000 }])).toMatchObject([{ outcome: 'ours' }])
    expect(await store.release([lease])).toEqual([{ outcome: 'released' }])
    await started.command('CONFIG', 'SET', 'maxmemory', '0')
    await granted(store, waiting)
  })

  test('a server that evicts is refused with the reason, and accepted on request', async () => {
    const started = await server({ args: ['--maxmemory', '4mb', '--maxmemory-policy', 'allkeys-lru'] })
    const script = "for i = 1, 8000 do redis.call('SET', 'filler:' .. i, string.rep('x', 1000)) end"
    await started.command('EVAL', script, '0')
    const { store } = on(await connect(started.url))
    expect((await undecided(store.acquire([claim('lock:a')]))).message).toMatch(/evicts keys.*allkeys-lru/)
    const { store: willing } = on(await connect(started.url), { allowEviction: true })
    await granted(willing, claim('lock:a'))
  })

  test('a server that begins to evict refuses locks within seconds, and grants them again when it stops', async () => {
    const started = await server({ args: ['--maxmemory', '64mb', '--maxmemory-policy', 'allkeys-random'] })
    const { store } = on(await connect(started.url))
    await granted(store, claim('lock:before'))
    const used = Number(/used_memory:(\d+)/.exec(String(await started.command('INFO', 'memory')))?.[1])
    await started.command('CONFIG', 'SET', 'maxmemory', String(used + 200_000))
    const fill = "for i = 1, 2000 do redis.call('SET', 'filler:' .. i, string.rep('x', 1000)) end"
    await started.command('EVAL', fill, '0')
    const began = performance.now()
    const outcome = async (): Promise<string> => {
      try {
        await store.acquire([claim(`lock:${++counter}`)])
        return 'granted'
      } catch (error) {
        return (error as Error).message
      }
    }
    await expect.poll(outcome, { interval: 20 }).toMatch(/evicts keys/)
    expect(performance.now() - began).toBeLessThan(15_000)
    await started.command('CONFIG', 'SET', 'maxmemory', '0')
    await eventually(() => granted(store, claim('lock:after')))
  })

  test('a closed client is unavailable at once', async () => {
    const started = await server()
    const connection = await connect(started.url)
    const { store } = on(connection, { timeout: '50s' })
    await granted(store, claim('lock:a'))
    await connection.end()
    const askedAt = performance.now()
    await undecided(store.acquire([claim('lock:b')]))
    expect(performance.now() - askedAt, 'not after the timeout').toBeLessThan(10_000)
  })
})

async function bound(): Promise<{ url: string; command: RedisServer['command'] }> {
  const started = await server()
  return { url: started.url, command: (...args) => started.command(...args) }
}

test('ioredis asks again after a lost reply, and finds its own grant', async () => {
  const started = await server()
  const proxy = await startProxy(started.port)
  cleanups.push(() => proxy.stop())
  const { store } = on(ioredis[6](proxy.through(started.url)))
  await granted(store, claim('lock:warm'))
  proxy.blackhole('replies')
  const wanted = [claim('lock:a'), claim('lock:b', { weight: 1 })]
  const asked = Promise.all(wanted.map((one) => store.acquire([one])))
  await expect.poll(() => started.command('EXISTS', 'lock:a', 'lock:b')).toBe(2)
  await proxy.heal()
  expect(await asked).toMatchObject([[{ granted: true }], [{ granted: true }]])
  expect(await store.release(wanted)).toEqual([{ outcome: 'released' }, { outcome: 'released' }])
})

test('a wrong or missing password, and a user without the right, are named as the reason', async () => {
  const started = await server({ password: 'secret' })
  const bare = `redis://127.0.0.1:${started.port}`
  const { store } = on(ioredis[6](bare), { timeout: 400 })
  expect((await undecided(store.acquire([claim('lock:a')]))).message).toMatch(/wants a password: NOAUTH/)
  const { store: wrong } = on(ioredis[6](bare, { password: 'guess' }), { timeout: 400 })
  expect((await undecided(wrong.acquire([claim('lock:a')]))).message).toMatch(/does not accept the password: WRONGPASS/)
  await started.command('ACL', 'SETUSER', 'reader', 'on', '>pw', '+@read', '+@connection', '+info', '~*')
  const { store: powerless } = on(ioredis[6](bare, { username: 'reader', password: 'pw' }))
  expect((await undecided(powerless.acquire([claim('lock:a')]))).message).toMatch(/does not permit.*NOPERM/)
})

test('a server that is still loading is unavailable, and says so', async () => {
  const started = await server({
    args: ['--key-load-delay', '2000', '--loading-process-events-interval-bytes', '1024'],
  })
  const connection = on(ioredis[6](started.url, { enableReadyCheck: false, retryStrategy: () => 20 }))
  await granted(connection.store, claim('lock:a'))
  await started.command('EVAL', "for i = 1, 1500 do redis.call('SET', 'k' .. i, i) end", '0')
  const restarted = started.restart({ keepData: true })
  let said = ''
  const deadline = performance.now() + 20_000
  while (!/still loading/.test(said) && performance.now() < deadline) {
    const outcome = await Promise.resolve(connection.store.acquire([claim('lock:b')])).catch((error: Error) => error)
    if (!(outcome instanceof Error)) continue
    expect(outcome).toBeInstanceOf(StoreUnavailableError)
    said = outcome.message
  }
  expect(said).toMatch(/still loading its data: LOADING/)
  await restarted
})

test('one claim of a batch that the server refuses fails alone', async () => {
  const started = await server()
  await started.command('ACL', 'SETUSER', 'half', 'on', '>pw', '+@all', '&*', '~leasehold:*', '~lock:mine:*')
  const { store } = on(ioredis[6](`redis://half:pw@127.0.0.1:${started.port}`))
  // Declared keys are checked before the script runs: so the batch goes to a claim whose side keys are out of bounds.
  const answers = await Promise.resolve(store.acquire([claim('lock:mine:1'), claim('lock:mine:2')]))
  expect(answers.map(({ granted }) => granted)).toEqual([true, true])
  await undecided(store.acquire([claim('lock:mine:3'), claim('lock:other')]))
  expect(await started.command('EXISTS', 'lock:mine:3', 'lock:other')).toBe(0)
})
