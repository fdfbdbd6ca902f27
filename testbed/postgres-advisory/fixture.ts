/** A database for the tests of this folder, and ways to look at its locks from outside. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import pg from 'pg'
import { program } from '../programs.js'
import type { Lock, LockLostError } from '../../src/index.js'
import { ALL, type Answer, type Claim, type Store } from '../../src/store.js'
import { type AdvisoryOptions, advisory } from '../../src/stores/postgres-advisory/index.js'

/** PATIENCE_MS: how long `until` polls. Longer than anything here takes on a busy machine. */
const PATIENCE_MS = 30_000

/** Polls until `look` returns something truthy. */
export async function until<T>(
  what: string,
  look: () => T | Promise<T>,
): Promise<Exclude<T, undefined | false | null>> {
  const deadline = performance.now() + PATIENCE_MS
  for (;;) {
    const seen = await look()
    if (seen) return seen as Exclude<T, undefined | false | null>
    if (performance.now() > deadline) throw new Error(`waited ${PATIENCE_MS} ms in vain until ${what}`)
    await sleep(10)
  }
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

let counter = 0

export function claim(name: string, over: Partial<Claim> = {}): Claim {
  return { key: `lock:${name}`, owner: `owner/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

export function reader(name: string, over: Partial<Claim> = {}): Claim {
  return claim(name, { weight: 1, ...over })
}

export async function ask(store: Store, wanted: Claim): Promise<Answer> {
  return (await store.acquire([wanted]))[0] as Answer
}

/** Resolves with the reason when the lock is lost. */
export function lost(lock: Lock): Promise<string> {
  const { signal } = lock
  const why = (): string => (signal.reason as LockLostError).why
  if (signal.aborted) return Promise.resolve(why())
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(why())))
}

/** One database, its stores, and a connection that observes both. */
export class AdvisoryFixture {
  readonly url: string
  readonly #pools: pg.Pool[] = []
  readonly #stores: Store[] = []
  #observer: pg.Client | undefined

  constructor(url: string) {
    this.url = url
  }

  pool(over: pg.PoolConfig = {}): pg.Pool {
    const pool = new pg.Pool({ connectionString: this.url, ...over })
    pool.on('error', () => {})
    this.#pools.push(pool)
    return pool
  }

  /** A store with a pool of its own, as another process would have. */
  store(options: AdvisoryOptions = {}, pool: pg.PoolConfig = {}): Store {
    const store = advisory(this.pool(pool), options)
    this.#stores.push(store)
    return store
  }

  async query(sql: string, values: unknown[] = []): Promise<Record<string, unknown>[]> {
    if (!this.#observer) {
      this.#observer = new pg.Client({ connectionString: this.url })
      this.#observer.on('error', () => {
        this.#observer = undefined
      })
      await this.#observer.connect()
    }
    return (await this.#observer.query(sql, values)).rows
  }

  async count(condition: string): Promise<number> {
    return (await this.pids(condition)).length
  }

  /** Process IDs of the backends that hold or wait for an advisory lock of this database, once for each lock. */
  async pids(condition: string): Promise<number[]> {
    const rows = await this.query(`SELECT pid FROM pg_locks WHERE locktype = 'advisory'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND ${condition}`)
    return rows.map((row) => row['pid'] as number)
  }

  held(): Promise<number> {
    return this.count('granted')
  }

  waiting(): Promise<number> {
    return this.count('NOT granted')
  }

  /** Process IDs of the backends of sessions that leasehold opened. */
  async sessions(): Promise<number[]> {
    const rows = await this.query(
      "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%[leasehold]'",
    )
    return rows.map((row) => row['pid'] as number)
  }

  async close(): Promise<void> {
    await Promise.all(this.#stores.map((store) => store.close()))
    await Promise.all(this.#pools.filter((pool) => !pool.ended).map((pool) => pool.end()))
    await this.#observer?.end()
  }
}

/** Another process that holds or waits, and prints what it does line by line. */
export class OtherProcess {
  readonly #child: ChildProcess
  readonly lines: string[] = []

  constructor(...args: string[]) {
    const script = program(new URL('./other-process.ts', import.meta.url))
    this.#child = spawn(process.execPath, [script, ...args], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    createInterface({ input: this.#child.stdout as NodeJS.ReadableStream }).on('line', (line) => this.lines.push(line))
  }

  says(word: string): Promise<string> {
    return until(`the other process says ${word}`, () => this.lines.find((line) => line.startsWith(word)))
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal)
  }

  get ended(): Promise<unknown> {
    return this.#child.exitCode === null && this.#child.signalCode === null
      ? once(this.#child, 'exit')
      : Promise.resolve()
  }

  async end(): Promise<void> {
    const { ended } = this
    this.#child.kill('SIGKILL')
    await ended
  }
}
