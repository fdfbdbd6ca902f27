import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { ALL, type Answer, type Claim, type Grant, type Store } from '../../../src/store.js'
import { type SqliteDatabase, loadDriver } from '../../../src/stores/sqlite/driver.js'
import { type SqliteOptions, sqlite } from '../../../src/stores/sqlite/index.js'
import { StoreProcess } from './store-process.js'

/** A directory for one test. */
export function directory(): string {
  const path = mkdtempSync(join(tmpdir(), 'leasehold-sqlite-'))
  onTestFinished(() => rmSync(path, { recursive: true, force: true }))
  return path
}

export function open(path: string, options?: SqliteOptions): Store {
  const store = sqlite(path, options)
  onTestFinished(() => store.close())
  return store
}

export async function start(path: string): Promise<StoreProcess> {
  const child = await StoreProcess.start(path)
  onTestFinished(() => child.kill())
  return child
}

/** An exclusive lock, unless told otherwise. */
export function claim(key: string, owner: string, more: Partial<Claim> = {}): Claim {
  return { key, owner, weight: ALL, capacity: ALL, ttlMs: 30_000, ...more }
}

export async function ask(store: Store, wanted: Claim): Promise<Answer> {
  const [answer] = await store.acquire([wanted])
  return answer as Answer
}

export async function granted(store: Store, wanted: Claim): Promise<Grant> {
  const answer = await ask(store, wanted)
  if (answer.granted !== true)
    throw new Error(`refused: ${JSON.stringify(answer, (_, v) => (typeof v === 'bigint' ? String(v) : v))}`)
  return answer
}

/**
 * The file as SQLite itself sees it, to read and to change. Through the same library as the store: two in one process
 * would drop each other's locks on the file.
 */
export function raw(path: string): SqliteDatabase {
  const { DatabaseSync } = loadDriver()
  const db = new DatabaseSync(path)
  db.exec('PRAGMA busy_timeout = 2000')
  return db
}

export function count(path: string, table: string): number {
  const db = raw(path)
  try {
    return (db.prepare(`SELECT count(*) AS n FROM ${table}`).get() as { n: number }).n
  } finally {
    db.close()
  }
}

/** Polls until the condition is true. */
export async function until(what: string, isSo: () => unknown, withinMs = 30_000): Promise<void> {
  const deadline = performance.now() + withinMs
  while (!(await isSo())) {
    if (performance.now() > deadline) throw new Error(`${what}: not within ${withinMs} ms`)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}

/** A machine whose clock and boot the test sets. */
export function toyMachine(boot = 'boot-1', at = 1_000_000): { boot: string; at: number; now: () => number } {
  const machine = { boot, at, now: () => machine.at }
  return machine
}
