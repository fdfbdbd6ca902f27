// One of several processes that want the same names: url, library, directory, number of names, seed.
// The critical section is a file that must not exist, so it knows nothing of the store: a process that finds the file of a
// process that still lives, and that still believed in its lock afterwards, has seen two holders.
import { appendFileSync, linkSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { createLocks } from '../../src/locks.js'
import { type Library, storeAt } from './fixture.js'

const [url, library, dir, names, seed] = process.argv.slice(2) as [string, Library, string, string, string]
const log = join(dir, 'log')

let state = Number(seed) | 1
function random(): number {
  state ^= state << 13
  state ^= state >>> 17
  state ^= state << 5
  return (state >>> 0) / 2 ** 32
}

function enter(path: string, token: bigint): void {
  // Linked into place with its content: one that is killed in the middle must not leave a file that says nothing.
  const mine = `${path}.${token}`
  writeFileSync(mine, `${process.pid} ${token}`)
  for (;;) {
    try {
      linkSync(mine, path)
      break
    } catch {
      const [pid = '', other = ''] = readOr(path).split(' ')
      // Just now removed.
      if (pid === '') continue
      if (isAlive(Number(pid))) appendFileSync(log, `met ${path} ${token} ${other}\n`)
      // Otherwise left behind by one who was killed.
      remove(path)
    }
  }
  remove(mine)
}

function readOr(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

function remove(path: string): void {
  try {
    unlinkSync(path)
  } catch {
    // Somebody was faster.
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

const store = storeAt(library, url, { max: 3 })
const locks = createLocks(store, { ttl: '3s', wait: '60s' })

async function work(): Promise<void> {
  for (;;) {
    const path = join(dir, String(Math.floor(random() * Number(names))))
    const lock = await locks.acquire(path)
    enter(path, lock.fencingToken)
    appendFileSync(log, `in ${path} ${lock.fencingToken}\n`)
    if (random() < 0.5) await sleep(random() * 5)
    remove(path)
    if (!lock.isHeld) appendFileSync(log, `lost ${path} ${lock.fencingToken}\n`)
    await lock.release()
  }
}

// Two at a time in each process, so that both lines are used: the process's own and the store's.
await Promise.all([work(), work()])
