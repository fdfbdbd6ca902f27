// One process of two that hold hundreds of locks for as long as they can while nodes of the cluster die: each takes what the other
// loses. Records each lock, and until when it trusted it, by a clock that all processes of the machine share.
//
//   keeper.ts <log> <ttlMs> <store URL> <number of names>
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { createLocks, type Lock, openStore } from '../../../src/index.js'
import type { HistoryEntry } from '../../../testbed/lock-history.js'

const [log = '', ttlText = '', url = '', namesText = ''] = process.argv.slice(2)
const NAMES = Array.from({ length: Number(namesText) }, (_, i) => `kept:${i}`)
/** Share of the locks that are released by choice in each look, so that both processes are granted some all the time. */
const RELEASED_SHARE = 0.002
const LOOK_MS = 10
/** Names that are tried in each look: all of them at once would leave no time to look at those that are held. */
const TRIED = 40

interface Kept {
  lock: Lock
  startedAt: number
  grantedAt: number
  until: number
}

const now = (): number => Number(process.hrtime.bigint()) / 1e6
const locks = createLocks(await openStore(url), { ttl: Number(ttlText) })
const held = new Map<string, Kept>()
let outages = 0
let isEnding = false

function record(name: string, { lock, startedAt, grantedAt, until }: Kept): void {
  const token = String(lock.fencingToken)
  const entry: HistoryEntry = { name, shared: false, token, startedAt, grantedAt, until, pid: process.pid, outages }
  appendFileSync(log, `${JSON.stringify(entry)}\n`)
  held.delete(name)
}

async function take(name: string): Promise<void> {
  const startedAt = now()
  try {
    const lock = await locks.tryAcquire(name)
    const grantedAt = now()
    if (lock) held.set(name, { lock, startedAt, grantedAt, until: grantedAt })
  } catch (error) {
    const { code } = error as { code?: string }
    if (code !== 'STORE_UNAVAILABLE') throw error
    outages++
  }
}

function look(): void {
  for (const [name, kept] of held) {
    const at = now()
    if (!kept.lock.isHeld) record(name, kept)
    else {
      kept.until = at
      if (Math.random() >= RELEASED_SHARE) continue
      record(name, kept)
      kept.lock.release().catch(() => {})
    }
  }
}

async function takeWhatIsFree(): Promise<never> {
  for (let next = 0; ; next = (next + TRIED) % NAMES.length) {
    await Promise.all(NAMES.slice(next, next + TRIED).map((name) => (held.has(name) ? undefined : take(name))))
    await sleep(LOOK_MS)
  }
}

// What is still held in the end counts too.
process.on('SIGTERM', () => (isEnding = true))
takeWhatIsFree().catch((error: unknown) => {
  console.error(error)
  process.exit(1)
})
while (!isEnding) {
  look()
  await sleep(LOOK_MS)
}
look()
for (const [name, kept] of held) record(name, kept)
process.exit(0)
