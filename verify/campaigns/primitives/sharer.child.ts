// Reads, writes and takes permits at random, and reports what it believes to hold.
import { setTimeout as sleep } from 'node:timers/promises'
import { createLocks, type Lock } from '../../../src/index.js'
import { openStore } from '../../../src/open-store.js'
import { clock } from './history.js'

/** `pages` is read and written, `permits` are taken. */
export type SharerReport =
  | { type: 'ready' }
  | { type: 'believes'; id: string; of: 'pages' | 'permits'; weight: number; at: number }
  | { type: 'ended'; id: string }

const [, , url, permits, writer] = process.argv as [string, string, string, string, string]
const say = (line: SharerReport): boolean => process.stdout.write(`${JSON.stringify(line)}\n`)
const store = await openStore(url)
const locks = createLocks(store, { ttl: '500ms', wait: 'forever' })
const pages = locks.readWrite('pages', store.features.queue ? {} : { starvation: 'accepted' })
const pool = locks.semaphore('permits', Number(permits))

process.stdin.on('close', () => process.exit()).resume()
say({ type: 'ready' })

async function believe(lock: Lock, of: 'pages' | 'permits', weight: number): Promise<void> {
  const until = clock() + Math.random() * 10_000
  for (;;) {
    const at = clock()
    if (!lock.isHeld) break
    say({ type: 'believes', id: lock.holder, of, weight, at })
    if (at >= until) break
    await sleep(2)
  }
  say({ type: 'ended', id: lock.holder })
  await lock.release()
}

async function keepReading(): Promise<void> {
  for (;;) {
    const writes = Math.random() < 0.25
    const lock = await (writes ? pages.acquireWrite() : pages.acquireRead())
    await believe(lock, 'pages', writes ? Number(writer) : 1)
    await sleep(Math.random() * 5)
  }
}

async function keepTaking(): Promise<void> {
  for (;;) {
    const weight = store.features.counting && Math.random() < 0.3 ? 2 : 1
    await believe(await pool.acquire({ weight }), 'permits', weight)
    await sleep(Math.random() * 5)
  }
}

await Promise.all([keepReading(), keepTaking()])
