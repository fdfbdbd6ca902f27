/**
 * A process in which many callers call `runOnce` at the same time. Arguments: kind of store, its URL, key, callers,
 * duration of the work.
 */
import { randomUUID } from 'node:crypto'
import { createLocks } from '../../src/index.js'
import { type StoreKind, storeAt } from '../store-fixtures.js'

const [kind, at, key, callers, workMs] = process.argv.slice(2) as [Exclude<StoreKind, 'memory'>, ...string[]]
const locks = createLocks(storeAt(kind, at as string), { ttl: '1s', wait: '60s' })
const call = (): Promise<string> =>
  locks.runOnce(key as string, async () => {
    const run = randomUUID()
    process.send?.({ running: run })
    await new Promise((resolve) => setTimeout(resolve, Number(workMs)))
    return run
  })
const results = await Promise.all(Array.from({ length: Number(callers) }, call))
process.send?.({ results }, () => process.exit(0))
