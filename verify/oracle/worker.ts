// One process that wants the lock. It uses the public API only; its arguments say which copy of it.
import { appendFileSync, linkSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { type OracleRecord, machineClock, occupant } from './record.js'

interface Orders {
  /** The translated src/. */
  source: string
  store: string
  folder: string
  name: string
  ttlMs: number
  /** Share of requests that are shared. */
  shared: number
  /** Longest time in the critical section. */
  stayMs: number
  /** Whether files witness who is inside. False where a frozen holder may rightly be overtaken while it is inside. */
  witness: boolean
}

const orders = JSON.parse(process.argv[2] as string) as Orders
const { createLocks, openStore } = (await import(
  pathToFileURL(join(orders.source, 'index.js')).href
)) as typeof import('../../src/index.js')
const log = join(orders.folder, `history-${process.pid}-${Date.now()}.jsonl`)
const write = (line: OracleRecord): void => appendFileSync(log, `${JSON.stringify(line)}\n`)
const locks = createLocks(await openStore(orders.store), { ttl: orders.ttlMs, wait: '20s' })
const inside = join(orders.folder, 'inside')

process.on('disconnect', () => process.exit())
process.on('message', () => process.exit())

type Held = Awaited<ReturnType<typeof locks.acquire>>

async function stay(lock: Held, mode: 'exclusive' | 'shared'): Promise<void> {
  const id = lock.holder
  write({ type: 'began', id, pid: process.pid, mode, token: String(lock.fencingToken), at: machineClock() })
  const until = machineClock() + Math.random() * orders.stayMs
  if (orders.witness && mode === 'exclusive') enter(id)
  for (;;) {
    const at = machineClock()
    if (!lock.isHeld) break
    write({ type: 'believed', id, at })
    if (at >= until) break
    await sleep(Math.random() * 3)
  }
  if (orders.witness && mode === 'exclusive') rmSync(inside, { force: true })
  write({ type: 'ended', id, at: machineClock() })
}

/** Only one process can create a file, so a second one proves a violation. */
function enter(id: string): void {
  while (!create(id)) {
    const other = occupant(inside)
    // The file was removed in this moment.
    if (!other) continue
    if (!dies(other.pid)) return write({ type: 'collision', id, at: machineClock(), with: other.id })
    // A lock of a session is free as soon as its holder is dead, before its file can have been removed.
    rmSync(inside, { force: true })
  }
}

/** The kernel closes the connections of a killed process a moment before the process is gone. */
function dies(pid: number): boolean {
  const until = machineClock() + 200
  while (isAlive(pid)) if (machineClock() > until) return false
  return true
}

/**
 * Returns false if the file exists. Created together with its content: a process that is killed in between must not
 * leave an empty file.
 */
function create(id: string): boolean {
  const mine = `${inside}.${process.pid}`
  writeFileSync(mine, `${process.pid} ${id}`)
  try {
    linkSync(mine, inside)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  } finally {
    rmSync(mine)
  }
}

function isAlive(pid: number): boolean {
  try {
    return !/^\d+ \(.*\) Z/s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}

process.send?.('ready')
for (;;) {
  const mode = Math.random() < orders.shared ? 'shared' : 'exclusive'
  try {
    const lock = await locks.acquire(orders.name, { mode })
    await stay(lock, mode).finally(() => void lock.release())
  } catch {
    // Busy for too long, or the store was unavailable: not a wrong answer. Try again.
    await sleep(10)
  }
}
