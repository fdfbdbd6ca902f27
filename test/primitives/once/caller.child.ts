/** A process that calls `once` and tells what happens: kind of store, where it is, key, how long the work takes. */
import { createLocks } from '../../../src/index.js'
import { type Kind, storeAt } from '../limiter/places.js'

const [kind, at, key, workMs] = process.argv.slice(2) as [Exclude<Kind, 'memory'>, string, string, string]
const locks = createLocks(storeAt(kind, at), { ttl: '1s', wait: '20s' })
const result = await locks.once(key, async () => {
  process.send?.({ running: process.pid })
  await new Promise((resolve) => setTimeout(resolve, Number(workMs)))
  return { by: process.pid }
})
process.send?.({ result })
process.disconnect?.()
process.exit(0)
