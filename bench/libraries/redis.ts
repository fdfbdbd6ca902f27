// Locks on one Redis: ours, the bare commands, and the libraries that do the same.
import type { Redis } from 'ioredis'
import type * as library from '../../src/index.js'
import type * as redisStore from '../../src/stores/redis/index.js'
import type { Context } from '../harness/types.js'
import type { Locker, OpenLocker } from './locker.js'

export const TTL_MS = 30_000
/** A waiter that waits longer has starved, and its library counts as failed. */
export const WAIT_MS = 60_000

export type ClientName = 'ioredis' | 'ioredis5'

export interface RedisOptions {
  client?: ClientName
  /** For libraries that poll: their best sensible interval instead of the default one. */
  retryMs?: number
  ttlMs?: number
  waitMs?: number
}

export const RELEASE_SCRIPT =
  "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

export async function connect({ address }: Context, client: ClientName = 'ioredis', nth = 0): Promise<Redis> {
  const { Redis: Client } = (await import(client)) as typeof import('ioredis')
  const connection = new Client(address.urls[nth] as string, { lazyConnect: true })
  await connection.connect()
  return connection
}

export async function openLeasehold(
  context: Context,
  { client, ttlMs = TTL_MS, waitMs = WAIT_MS }: RedisOptions = {},
): Promise<library.Locks> {
  const { createLocks } = await context.leasehold<typeof library>('index.js')
  const { redis } = await context.leasehold<typeof redisStore>('stores/redis/index.js')
  return createLocks(redis(await connect(context, client)), { ttl: ttlMs, wait: waitMs })
}

export const leasehold =
  (options: RedisOptions = {}): OpenLocker =>
  async (context) => {
    const locks = await openLeasehold(context, options)
    return {
      async acquire(name) {
        const lock = await locks.acquire(name)
        return () => lock.release()
      },
    }
  }

/** SET NX PX and compare-and-delete: no token, no waiting, no renewal. */
export const bare =
  ({ client }: RedisOptions = {}): OpenLocker =>
  async (context): Promise<Locker> => {
    const redis = await connect(context, client)
    const sha = String(await redis.script('LOAD', RELEASE_SCRIPT))
    let owners = 0
    return {
      async acquire(name) {
        const owner = `${context.prefix}/${owners++}`
        if ((await redis.set(name, owner, 'PX', TTL_MS, 'NX')) !== 'OK') throw new Error(`${name} is held`)
        return () => redis.evalsha(sha, 1, name, owner)
      },
    }
  }

interface Redlock4 {
  lock(name: string, ttlMs: number): Promise<{ unlock(): Promise<unknown> }>
}

interface RetryOptions {
  retryCount: number
  retryDelay: number
  retryJitter: number
}

const retryOptions = (retryMs: number | undefined): Partial<RetryOptions> =>
  retryMs === undefined
    ? {}
    : { retryCount: Math.ceil(WAIT_MS / retryMs), retryDelay: retryMs, retryJitter: Math.min(retryMs / 2, 100) }

export const redlock4 =
  ({ client, retryMs }: RedisOptions = {}): OpenLocker =>
  async (context): Promise<Locker> => {
    const Redlock = context.peer<new (clients: Redis[], options: object) => Redlock4>('redlock4')
    const redlock = new Redlock([await connect(context, client)], retryOptions(retryMs))
    return {
      async acquire(name) {
        const lock = await redlock.lock(name, TTL_MS)
        return () => lock.unlock()
      },
    }
  }

interface Redlock5 {
  acquire(names: string[], ttlMs: number): Promise<{ release(): Promise<unknown> }>
}

export const redlock5 =
  ({ client, retryMs }: RedisOptions = {}): OpenLocker =>
  async (context): Promise<Locker> => {
    const { default: Redlock } = context.peer<{ default: new (clients: Redis[], options: object) => Redlock5 }>(
      'redlock5',
    )
    const redlock = new Redlock([await connect(context, client)], retryOptions(retryMs))
    return {
      async acquire(name) {
        const lock = await redlock.acquire([name], TTL_MS)
        return () => lock.release()
      },
    }
  }

interface SemaphoreMutex {
  acquire(): Promise<void>
  release(): Promise<void>
}

export const redisSemaphore =
  ({ client, retryMs, ttlMs = TTL_MS, waitMs = WAIT_MS }: RedisOptions = {}): OpenLocker =>
  async (context): Promise<Locker> => {
    const { Mutex } = context.peer<{ Mutex: new (client: Redis, name: string, options: object) => SemaphoreMutex }>(
      'redis-semaphore',
    )
    const redis = await connect(context, client)
    const retry = retryMs === undefined ? {} : { retryInterval: retryMs }
    const options = { lockTimeout: ttlMs, acquireTimeout: waitMs, refreshInterval: ttlMs / 3, ...retry }
    return {
      async acquire(name) {
        const mutex = new Mutex(redis, name, options)
        await mutex.acquire()
        return () => mutex.release()
      },
    }
  }

interface VerrouModule {
  LockFactory: new (
    store: unknown,
    options?: object,
  ) => { createLock(name: string, ttlMs: number): { acquire(): Promise<boolean>; release(): Promise<void> } }
}

export const verrou =
  ({ client, retryMs }: RedisOptions = {}): OpenLocker =>
  async (context): Promise<Locker> => {
    const { LockFactory } = context.peer<VerrouModule>('@verrou/core')
    const { redisStore } = context.peer<{
      redisStore(options: object): { factory(): unknown }
    }>('@verrou/core/drivers/redis')
    const store = redisStore({ connection: await connect(context, client) }).factory()
    const factory = new LockFactory(store, retryMs === undefined ? {} : { retry: { delay: retryMs } })
    return {
      async acquire(name) {
        const lock = factory.createLock(name, TTL_MS)
        if (!(await lock.acquire())) throw new Error(`verrou did not get ${name}`)
        return () => lock.release()
      },
    }
  }

interface Universal {
  createLock(options: object): { acquire(): Promise<object>; release(handle: object): Promise<boolean> }
  IoredisAdapter: new (client: Redis) => object
}

export const redlockUniversal =
  ({ client, retryMs }: RedisOptions = {}): OpenLocker =>
  async (context): Promise<Locker> => {
    const { createLock, IoredisAdapter } = context.peer<Universal>('redlock-universal')
    const adapter = new IoredisAdapter(await connect(context, client))
    const retry = retryMs === undefined ? {} : { retryAttempts: 100, retryDelay: retryMs }
    return {
      async acquire(name) {
        // Its lean mode is the fastest one it offers.
        const lock = createLock({ adapter, key: name, ttl: TTL_MS, performance: 'lean', ...retry })
        const handle = await lock.acquire()
        return () => lock.release(handle)
      },
    }
  }
