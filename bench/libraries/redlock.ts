// Locks on five independent Redis servers.
import type { Redis } from 'ioredis'
import type * as library from '../../src/index.js'
import type * as redlockStore from '../../src/stores/redlock/index.js'
import type { Context } from '../harness/types.js'
import type { OpenLocker } from './locker.js'
import { connect, RELEASE_SCRIPT, TTL_MS, WAIT_MS } from './redis.js'

/** An error event without a listener ends the process, and two of the servers are killed in one scenario. */
const connectAll = (context: Context): Promise<Redis[]> =>
  Promise.all(
    context.address.urls.map(async (_, nth) => {
      const client = await connect(context, 'ioredis', nth)
      return client.on('error', () => {})
    }),
  )

export const leaseholdRedlock: OpenLocker = async (context) => {
  const { createLocks } = await context.leasehold<typeof library>('index.js')
  const { redlock } = await context.leasehold<typeof redlockStore>('stores/redlock/index.js')
  const locks = createLocks(redlock(await connectAll(context), { maxTtl: '1m' }), { ttl: TTL_MS, wait: WAIT_MS })
  return {
    async acquire(name) {
      const lock = await locks.acquire(name)
      return () => lock.release()
    },
  }
}

/** One round of SET NX and one of compare-and-delete, each over when a majority agrees. No token. */
export const bareQuorum: OpenLocker = async (context) => {
  const clients = await connectAll(context)
  const majority = Math.floor(clients.length / 2) + 1
  const shas = await Promise.all(clients.map((client) => client.script('LOAD', RELEASE_SCRIPT)))
  let owners = 0
  const most = (calls: Promise<unknown>[]): Promise<void> =>
    new Promise((resolve, reject) => {
      let [agreed, failed] = [0, 0]
      for (const call of calls) {
        call.then(
          () => ++agreed === majority && resolve(),
          () => ++failed === majority && reject(new Error('no majority answers')),
        )
      }
    })
  return {
    async acquire(name) {
      const owner = `${context.prefix}/${owners++}`
      await most(clients.map((client) => client.set(name, owner, 'PX', TTL_MS, 'NX')))
      return () => most(clients.map((client, i) => client.evalsha(String(shas[i]), 1, name, owner)))
    },
  }
}

export const redlock4Quorum: OpenLocker = async (context) => {
  const Redlock =
    context.peer<
      new (
        clients: Redis[],
      ) => { lock(name: string, ttlMs: number): Promise<{ unlock(): Promise<unknown> }> }
    >('redlock4')
  const redlock = new Redlock(await connectAll(context))
  return {
    async acquire(name) {
      const lock = await redlock.lock(name, TTL_MS)
      return () => lock.unlock()
    },
  }
}

export const redlock5Quorum: OpenLocker = async (context) => {
  const { default: Redlock } = context.peer<{
    default: new (
      clients: Redis[],
    ) => { acquire(names: string[], ttlMs: number): Promise<{ release(): Promise<unknown> }> }
  }>('redlock5')
  const redlock = new Redlock(await connectAll(context))
  return {
    async acquire(name) {
      const lock = await redlock.acquire([name], TTL_MS)
      return () => lock.release()
    },
  }
}

export const redisSemaphoreQuorum: OpenLocker = async (context) => {
  const { RedlockMutex } = context.peer<{
    RedlockMutex: new (
      clients: Redis[],
      name: string,
      options: object,
    ) => { acquire(): Promise<void>; release(): Promise<void> }
  }>('redis-semaphore')
  const clients = await connectAll(context)
  return {
    async acquire(name) {
      const mutex = new RedlockMutex(clients, name, { lockTimeout: TTL_MS })
      await mutex.acquire()
      return () => mutex.release()
    },
  }
}

export const redlockUniversalQuorum: OpenLocker = async (context) => {
  const { RedLock, IoredisAdapter } = context.peer<{
    RedLock: new (options: object) => { acquire(): Promise<object>; release(handle: object): Promise<boolean> }
    IoredisAdapter: new (client: Redis) => object
  }>('redlock-universal')
  const adapters = (await connectAll(context)).map((client) => new IoredisAdapter(client))
  return {
    async acquire(name) {
      const lock = new RedLock({ adapters, key: name, ttl: TTL_MS })
      const handle = await lock.acquire()
      return () => lock.release(handle)
    },
  }
}
