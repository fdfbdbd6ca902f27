/** A process on a machine whose clock is wrong by so much, with a job every second: kind of store, where it is, skew in ms. */
import type { Kind } from '../limiter/places.js'

const [kind, at, skewText] = process.argv.slice(2) as [Exclude<Kind, 'memory'>, string, string]
const skew = Number(skewText)
const RealDate = Date

/** Before anything else looks at the clock. */
globalThis.Date = class extends RealDate {
  constructor(...args: unknown[]) {
    if (args.length === 0) super(RealDate.now() + skew)
    else super(...(args as [number]))
  }

  static override now(): number {
    return RealDate.now() + skew
  }
} as DateConstructor

const { createLocks } = await import('../../../src/index.js')
const { storeAt } = await import('../limiter/places.js')

const store = storeAt(kind, at)
const locks = createLocks(store)
const schedule = locks.schedule('second', '* * * * * *', async ({ tick }) => {
  process.send?.({ ran: tick.getTime(), behind: tick.getTime() - ((await store.now?.()) ?? 0) })
  await new Promise((resolve) => setTimeout(resolve, 5))
})
schedule.on('elsewhere', ({ tick }) => process.send?.({ saw: tick.getTime() }))
schedule.on('skipped', ({ tick, reason }) => process.send?.({ skipped: tick.getTime(), reason }))
process.once('message', () => void locks.close().then(() => process.exit(0)))
