// Locks on etcd. All libraries use the same one of its nodes: a node that leads is nearer than one that follows.
import type * as library from '../../src/index.js'
import type * as etcdStore from '../../src/stores/etcd/index.js'
import type { Context } from '../harness/types.js'
import type { OpenLocker } from './locker.js'

/** What is used of the etcd3 package: its bare calls, which go through @grpc/grpc-js, its lock, and its watcher. */
interface Etcd3Client {
  leaseClient: { leaseGrant(request: { TTL: number }): Promise<{ ID: string }> }
  kv: {
    txn(request: object): Promise<{ succeeded: boolean }>
    deleteRange(request: { key: Buffer }): Promise<unknown>
  }
  lock(name: string): { ttl(seconds: number): { acquire(): Promise<unknown> }; release(): Promise<void> }
  watch(): { key(name: string): { create(): Promise<{ on(event: 'delete', listener: () => void): void }> } }
}

const TTL_S = 30

function openEtcd3(context: Context): Etcd3Client {
  const { Etcd3 } = context.peer<{ Etcd3: new (options: object) => Etcd3Client }>('etcd3')
  return new Etcd3({ hosts: [context.address.urls[0]] })
}

/** The n-th deletion of a name, whenever it is asked for: a deletion between two looks must not be missed. */
class Deletions {
  readonly #client: Etcd3Client
  readonly #names = new Map<string, Promise<{ count: number; wake: () => void }>>()

  constructor(client: Etcd3Client) {
    this.#client = client
  }

  async of(name: string): Promise<{ count: number; wake: () => void }> {
    let state = this.#names.get(name)
    if (!state) {
      state = this.#client
        .watch()
        .key(name)
        .create()
        .then((watcher) => {
          const known = { count: 0, wake: () => {} }
          watcher.on('delete', () => {
            known.count++
            known.wake()
          })
          return known
        })
      this.#names.set(name, state)
    }
    return state
  }

  /** Tries, and tries again after each deletion. */
  async until<T>(name: string, attempt: () => Promise<T | undefined>): Promise<T> {
    const state = await this.of(name)
    for (;;) {
      const seen = state.count
      const result = await attempt()
      if (result !== undefined) return result
      if (state.count === seen) await new Promise<void>((resolve) => (state.wake = resolve))
    }
  }
}

/** `leasePerLock`: as every library without a session does; otherwise one lease for the whole process. */
export const bareEtcd =
  ({ leasePerLock, waits }: { leasePerLock: boolean; waits: boolean }): OpenLocker =>
  async (context) => {
    const client = openEtcd3(context)
    const deletions = new Deletions(client)
    const value = Buffer.from(context.prefix)
    const grant = async (): Promise<string> => (await client.leaseClient.leaseGrant({ TTL: TTL_S * 20 })).ID
    const session = leasePerLock ? undefined : await grant()
    return {
      async acquire(name) {
        const key = Buffer.from(name)
        const lease = session ?? (await grant())
        const attempt = async (): Promise<true | undefined> => {
          const { succeeded } = await client.kv.txn({
            compare: [{ key, target: 'Create', result: 'Equal', create_revision: '0' }],
            success: [{ request_put: { key, value, lease } }],
          })
          return succeeded || undefined
        }
        if (waits) await deletions.until(name, attempt)
        else if (!(await attempt())) throw new Error(`${name} is held`)
        return () => client.kv.deleteRange({ key })
      },
    }
  }

export const etcd3 =
  ({ waits }: { waits: boolean }): OpenLocker =>
  async (context) => {
    const client = openEtcd3(context)
    const deletions = new Deletions(client)
    return {
      async acquire(name) {
        let lock = client.lock(name)
        const attempt = async (): Promise<true | undefined> => {
          // A lock that was refused cannot be asked for again.
          lock = client.lock(name)
          try {
            await lock.ttl(TTL_S).acquire()
            return true
          } catch (error) {
            if (waits && (error as Error).constructor.name === 'EtcdLockFailedError') return undefined
            throw error
          }
        }
        if (waits) await deletions.until(name, attempt)
        else await attempt()
        return () => lock.release()
      },
    }
  }

export const leaseholdEtcd =
  ({ ttlS = TTL_S, autoRenew = true }: { ttlS?: number; autoRenew?: boolean } = {}): OpenLocker =>
  async (context) => {
    const { createLocks } = await context.leasehold<typeof library>('index.js')
    const { etcd } = await context.leasehold<typeof etcdStore>('stores/etcd/index.js')
    const locks = createLocks(etcd([context.address.urls[0] as string]), { ttl: ttlS * 1_000, wait: '1m' })
    return {
      async acquire(name) {
        const lock = await locks.acquire(name, { autoRenew })
        return () => lock.release()
      },
    }
  }

/** The same package with another ttl, for locks that are held. */
export const etcd3With =
  (ttlS: number): OpenLocker =>
  async (context) => {
    const client = openEtcd3(context)
    return {
      async acquire(name) {
        const lock = client.lock(name)
        await lock.ttl(ttlS).acquire()
        return () => lock.release()
      },
    }
  }
