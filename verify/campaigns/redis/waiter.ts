// A process of the campaign `redis-waiters`: so many instances on one store object, all waiting for the name they are told.
import { Redis } from 'ioredis'
import { createLocks } from '../../../src/locks.js'
import { redis } from '../../../src/stores/redis/index.js'

/** What the campaign hears of each waiter that was served. */
export interface Served {
  token: string
  holder: string
  at: number
}

const [url = '', instances = '1'] = process.argv.slice(2)
const client = new Redis(url)
client.on('error', () => {})
const store = redis(client)
const all = Array.from({ length: Number(instances) }, () => createLocks(store, { ttl: '1m', wait: 'forever' }))
for (const locks of all) locks.on('error', ({ error }) => process.send?.({ error: String(error) }))

async function waitFor(name: string): Promise<void> {
  const served = await Promise.all(
    all.map(async (locks): Promise<Served> => {
      const lock = await locks.acquire(name)
      const at = performance.timeOrigin + performance.now()
      await lock.release()
      return { token: String(lock.fencingToken), holder: lock.holder, at }
    }),
  )
  process.send?.({ served })
}

process.on('message', (name: string) => void waitFor(name))
process.send?.({ ready: true })
