/** The libraries that people come from, installed where `npm run bench` has them, with one way of calling them. */
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { ROOT } from '../../../testbed/programs.js'

const BENCH = join(ROOT, 'bench')
const load = createRequire(join(BENCH, 'package.json'))

/** One attempt: how to release, or undefined if it is busy. */
export type Peer = (name: string, ttlMs: number) => Promise<(() => Promise<unknown>) | undefined>

export function installPeers(): void {
  if (existsSync(join(BENCH, 'node_modules'))) return
  // One of them asks for a newer Node than it needs.
  const args = ['ci', '--no-audit', '--no-fund', '--engine-strict=false']
  const { status } = spawnSync('npm', args, { cwd: BENCH, stdio: ['ignore', 'inherit', 'inherit'] })
  if (status !== 0) throw new Error('the libraries in bench/package.json could not be installed')
}

export function redlock5(clients: readonly unknown[], keyOf: (name: string) => string): Peer {
  const { default: Redlock, ExecutionError } = load('redlock5') as {
    default: new (
      clients: readonly unknown[],
      options: object,
    ) => {
      on(event: 'error', listener: () => void): void
      acquire(keys: string[], ttlMs: number): Promise<{ release(): Promise<unknown> }>
    }
    ExecutionError: new () => Error
  }
  const made = new Redlock(clients, { retryCount: 0 })
  // redlock emits an error for every busy key, too.
  made.on('error', () => {})
  return async (name, ttlMs) => {
    try {
      const lock = await made.acquire([keyOf(name)], ttlMs)
      return () => lock.release()
    } catch (error) {
      if (error instanceof ExecutionError) return undefined
      throw error
    }
  }
}

export function redisSemaphoreMutex(client: unknown): Peer {
  const { Mutex } = load('redis-semaphore') as {
    Mutex: new (
      client: unknown,
      name: string,
      options: object,
    ) => { tryAcquire(): Promise<boolean>; release(): Promise<void> }
  }
  return async (name, ttlMs) => {
    const mutex = new Mutex(client, name, { lockTimeout: ttlMs, acquireAttemptsLimit: 1 })
    return (await mutex.tryAcquire()) ? () => mutex.release() : undefined
  }
}

export function verrou(connection: unknown, keyOf: (name: string) => string): Peer {
  const made = (async () => {
    const { Verrou } = (await import(load.resolve('@verrou/core'))) as {
      Verrou: new (
        options: object,
      ) => {
        createLock(
          name: string,
          ttlMs: number,
        ): { acquireImmediately(): Promise<boolean | [boolean, unknown]>; release(): Promise<unknown> }
      }
    }
    const { redisStore } = (await import(load.resolve('@verrou/core/drivers/redis'))) as {
      redisStore: (options: object) => unknown
    }
    return new Verrou({ default: 'redis', stores: { redis: { driver: redisStore({ connection }) } } })
  })()
  return async (name, ttlMs) => {
    const lock = (await made).createLock(keyOf(name), ttlMs)
    const [got] = [await lock.acquireImmediately()].flat()
    return got ? () => lock.release() : undefined
  }
}
