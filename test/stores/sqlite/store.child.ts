/** The other side of store-process.ts. */
import { appendFileSync, closeSync, openSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs'
import { loadDriver } from '../../../src/stores/sqlite/driver.js'
import { sqlite } from '../../../src/stores/sqlite/index.js'
import { ALL, type Answer, type StoreEvent } from '../../../src/store.js'
import type { ReceivedEvent, Revoked } from './store-process.js'

const path = process.argv[2] as string
const store = sqlite(path)
const send = (message: unknown): void => void process.send?.(message as never)
const monotonicMs = (): number => Number(process.hrtime.bigint()) / 1e6

const extras: Record<string, (...args: never[]) => unknown> = {
  async subscribe(key: string) {
    const watch = store.watch?.(key, (event: StoreEvent) => {
      const received: ReceivedEvent = { key, event, at: monotonicMs() }
      send({ received })
    })
    return await watch?.ready
  },

  async subscribeToRevocations() {
    const watch = store.watchRevoked?.((lease) => {
      const revoked: Revoked = { lease, at: monotonicMs() }
      send({ revoked })
    })
    return await watch?.ready
  },

  /** Acquires the lock again and again and increments a number in a file under it. The file `.inside` proves exclusion once more. */
  async count(file: string, times: number) {
    const key = 'lock:counter'
    for (let i = 0; i < times; ) {
      const owner = `${process.pid}/${i}`
      const [answer] = (await store.acquire([{ key, owner, weight: ALL, capacity: ALL, ttlMs: 30_000 }])) as [Answer]
      if (answer.granted !== true) {
        await new Promise((resolve) => setTimeout(resolve, Math.random() * 3))
        continue
      }
      closeSync(openSync(`${file}.inside`, 'wx'))
      const count = Number(readFileSync(file, 'utf8'))
      await new Promise((resolve) => setImmediate(resolve))
      writeFileSync(file, String(count + 1))
      appendFileSync(`${file}.tokens`, `${answer.token}\n`)
      unlinkSync(`${file}.inside`)
      await store.release([{ key, owner }])
      i++
    }
  },

  /** Begins a transaction as the store does, and stays in it for ever. */
  stayInTransaction() {
    const { DatabaseSync } = loadDriver()
    const db = new DatabaseSync(path)
    db.exec("BEGIN IMMEDIATE; UPDATE state SET swept_to = 'half done'")
    Object.assign(globalThis, { db })
  },

  /** Without waiting for anything. */
  exitAfterRelease(key: string, owner: string) {
    void store.release([{ key, owner }])
    process.exit(0)
  },
}

async function answer({ id, method, args }: { id: number; method: string; args: never[] }): Promise<void> {
  try {
    const run = extras[method] ?? (store[method as 'acquire'] as (...args: never[]) => unknown).bind(store)
    send({ id, result: await run(...args) })
  } catch (error) {
    send({ id, error: `${(error as Error).name}: ${(error as Error).message}` })
  }
}

process.on('message', (question) => void answer(question as never))
process.on('disconnect', () => process.exit())
send('ready')
