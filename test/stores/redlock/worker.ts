// One process among several that take the same locks while servers die. Records what it was granted, and until when it
// trusted it, by a clock that all processes of the machine share.
//
//   tsx test/stores/redlock/worker.ts <log> <maxTtlMs> <port,port,…>
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createLocks, type Locks } from '../../../src/index.js'
import { redlock } from '../../../src/stores/redlock/index.js'
import type { HistoryEntry } from '../../../testbed/lock-history.js'

const [log = '', maxTtl = '', ports = ''] = process.argv.slice(2)
const NAMES = ['a', 'b', 'c', 'd']

const now = (): number => Number(process.hrtime.bigint()) / 1e6

/** Starts with an empty memory, as a new process would, without the time that takes. */
function begin(): { locks: Locks; end: () => Promise<void> } {
  const clients = ports.split(',').map((port) => {
    const client = new Redis(Number(port), '127.0.0.1', { retryStrategy: () => 50 })
    client.on('error', () => {})
    return client
  })
  const store = redlock(clients, { maxTtl: Number(maxTtl), nodeTimeout: 300 })
  const locks = createLocks(store, { ttl: Number(maxTtl), wait: '5s' })
  const end = async (): Promise<void> => {
    await locks.close({ grace: 0 })
    await store.close()
    for (const client of clients) client.disconnect()
  }
  return { locks, end }
}

let outages = 0
let { locks, end } = begin()
for (;;) {
  if (Math.random() < 0.02) {
    await end()
    ;({ locks, end } = begin())
  }
  const name = NAMES[Math.floor(Math.random() * NAMES.length)] as string
  const shared = Math.random() < 0.25
  // Some locks are never released. They must not be renewed, or they would be held until the handle is collected.
  const forgets = Math.random() < 0.01
  const startedAt = now()
  try {
    const lock = await locks.acquire(name, {
      mode: shared ? 'shared' : 'exclusive',
      ttl: Number(maxTtl) * (0.2 + 0.8 * Math.random()),
      wait: Math.random() < 0.3 ? 0 : '5s',
      autoRenew: !forgets,
    })
    const grantedAt = now()
    let until = grantedAt
    // Some are held for so long that they have to be renewed.
    const holdMs = Math.random() < 0.01 ? Number(maxTtl) * 1.2 : Math.random() * 20
    while (now() - grantedAt < holdMs && lock.isHeld) {
      until = now()
      await sleep(Math.min(holdMs, 20))
    }
    if (lock.isHeld) until = now()
    const token = String(lock.fencingToken)
    const entry: HistoryEntry = { name, shared, token, startedAt, grantedAt, until, pid: process.pid, outages }
    appendFileSync(log, `${JSON.stringify(entry)}\n`)
    if (!forgets) await lock.release()
  } catch (error) {
    const { code } = error as { code?: string }
    if (code === 'STORE_UNAVAILABLE') outages++
    else if (code !== 'LOCK_TIMEOUT') throw error
  }
}
