/** The generated lists of stores (`npm run matrix`), compared with what calls really refuse. No store connects here. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import pg from 'pg'
import { afterAll, expect, test } from 'vitest'
import { createLocks, type Locks, memory, type Store, UnsupportedError } from '../../src/index.js'
import { SUPPORTED_BY } from '../../src/primitives/supported-by.js'
import { advisory } from '../../src/stores/postgres-advisory/index.js'
import { postgres } from '../../src/stores/postgres/index.js'
import { redis } from '../../src/stores/redis/index.js'
import { redlock } from '../../src/stores/redlock/index.js'
import { sqlite } from '../../src/stores/sqlite/index.js'

const folder = mkdtempSync(join(tmpdir(), 'leasehold-matrix-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const client = (): Redis => new Redis({ lazyConnect: true })
const stores: [string, () => Store][] = [
  ['memory', memory],
  ['sqlite', () => sqlite(join(folder, 'locks.db'))],
  ['redis', () => redis(client())],
  ['redlock', () => redlock([client(), client(), client()])],
  ['postgres', () => postgres(new pg.Pool())],
  ['postgres-advisory', () => advisory(new pg.Pool())],
]

const wrong = 7 as never
/** Where the store supports a call, a wrong argument ends it before it asks the server. */
const calls: Record<'readWrite' | 'weights' | 'election' | 'limiter' | 'schedule', (locks: Locks) => unknown> = {
  readWrite: (locks) => locks.readWrite('a'),
  weights: (locks) => locks.semaphore('a', 2).acquire({ weight: 2, mode: wrong } as never),
  election: (locks) => locks.election('a'),
  limiter: (locks) => locks.limiter('a', { limit: 1, per: '1s' }),
  schedule: (locks) => locks.schedule('a', '* * * * *', wrong),
}

async function errorOf(call: () => unknown): Promise<unknown> {
  try {
    await call()
    return undefined
  } catch (error) {
    return error
  }
}

test.each(stores)(
  '%s refuses exactly what the support matrix says, and names the stores that can',
  async (name, open) => {
    const store = open()
    const locks = createLocks(store)
    for (const [key, call] of Object.entries(calls)) {
      const supporters = SUPPORTED_BY[key as keyof typeof calls]
      const error = await errorOf(() => call(locks))
      const isListed = supporters.split(/, | or /).includes(store.name)
      expect([name, key, error instanceof UnsupportedError]).toEqual([name, key, !isListed])
      if (!isListed) expect((error as Error).message).toContain(supporters)
    }
    await locks.close({ grace: 0 })
    await store.close()
  },
)
