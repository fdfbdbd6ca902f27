// 200 locks of ours and a foreign one among many other keys.
import { Redis } from 'ioredis'
import { median } from '../../../bench/harness/statistics.js'
import { createLocks, type HolderView, type Store } from '../../../src/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import type { RedisServer } from '../../../testbed/servers/index.js'

export interface Listing {
  /** Reading the index of our own locks. */
  indexMs: number
  /** With the walk over all keys, which finds foreign ones. */
  walkMs: number
  found: number
  foreign: number
}

async function timed(store: Store): Promise<[number, readonly HolderView[]]> {
  const began = performance.now()
  const views = (await store.holders?.('lock:shop:')) ?? []
  return [performance.now() - began, views]
}

/** The server has to allow DEBUG. */
export async function listing(server: RedisServer, keys: number): Promise<Listing> {
  const client = new Redis(server.url)
  for (let done = 0; done < keys; done += 100_000)
    await client.call('DEBUG', 'POPULATE', '100000', `other${done}`, '10')
  const [plain, whole] = [redis(client, { listForeign: false }), redis(client, { timeout: '30s' })]
  const locks = createLocks(plain)
  await Promise.all(Array.from({ length: 200 }, (_, i) => locks.acquire(`shop:${i}`)))
  await client.set('lock:shop:foreign', 'somebody', 'PX', 600_000)
  await timed(plain)
  const times: number[] = []
  for (let i = 0; i < 9; i++) times.push((await timed(plain))[0])
  const [walkMs, views] = await timed(whole)
  await locks.releaseAll()
  await locks.close()
  client.disconnect()
  return {
    indexMs: median(times),
    walkMs,
    found: views.length,
    foreign: views.filter(({ foreign }) => foreign).length,
  }
}
