// One process among several that take the same locks while nodes of the cluster die. Records what it was granted, and until when
// it trusted it, by a clock that all processes of the machine share.
//
//   worker.ts <log> <ttlMs> <store URL>
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { createLocks, openStore } from '../../../src/index.js'
import type { HistoryEntry } from '../../../testbed/lock-history.js'

const [log = '', ttlText = '', url = ''] = process.argv.slice(2)
const ttlMs = Number(ttlText)
const NAMES = ['a', 'b', 'c', 'd']

const now = (): number => Number(process.hrtime.bigint()) / 1e6

let outages = 0
const locks = createLocks(await openStore(url), { ttl: ttlMs, wait: '5s' })
for (;;) {
  const name = NAMES[Math.floor(Math.random() * NAMES.length)] as string
  const shared = Math.random() < 0.25
  // Some locks are never released. They must not be renewed, or they would be held until the handle is collected.
  const forgets = Math.random() < 0.005
  const startedAt = now()
  try {
    const lock = await locks.acquire(name, {
      mode: shared ? 'shared' : 'exclusive',
      ttl: ttlMs * (0.3 + 0.7 * Math.random()),
      wait: Math.random() < 0.3 ? 0 : '5s',
      autoRenew: !forgets && Math.random() < 0.9,
    })
    const grantedAt = now()
    let until = grantedAt
    // Some are held for so long that they have to be renewed, through whatever happens meanwhile.
    const holdMs = Math.random() < 0.02 ? ttlMs * 2 : Math.random() * 20
    while (now() - grantedAt < holdMs) {
      const at = now()
      if (!lock.isHeld) break
      until = at
      await sleep(Math.min(holdMs, 10))
    }
    const token = String(lock.fencingToken)
    const entry: HistoryEntry = { name, shared, token, startedAt, grantedAt, until, pid: process.pid, outages }
    appendFileSync(log, `${JSON.stringify(entry)}\n`)
    if (!forgets) await lock.release()
  } catch (error) {
    const { code } = error as { code?: string }
    if (code === 'STORE_UNAVAILABLE') outages++
    else if (code !== 'LOCK_TIMEOUT' && code !== 'LOCK_LOST') throw error
  }
}
