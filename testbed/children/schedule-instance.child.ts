/**
 * A process whose clock is wrong, with a job every second. Arguments: kind of store, its URL, error of the clock in ms.
 */
import type { StoreKind } from '../store-fixtures.js'

const [kind, at, skewText] = process.argv.slice(2) as [Exclude<StoreKind, 'memory'>, string, string]
const skew = Number(skewText)
const RealDate = Date

/** Replaced before any other code reads the clock. */
globalThis.Date = class extends RealDate {
  constructor(...args: unknown[]) {
    if (args.length === 0) super(RealDate.now() + skew)
    else super(...(args as [number]))
  }

  static override now(): number {
    return RealDate.now() + skew
  }
} as DateConstructor

const { createLocks } = await import('../../src/index.js')
const { storeAt } = await import('../store-fixtures.js')

const store = storeAt(kind, at)
const locks = createLocks(store)
const schedule = locks.schedule('second', '* * * * * *', async ({ tick }) => {
  process.send?.({ ran: tick.getTime(), behind: tick.getTime() - ((await store.now?.()) ?? 0) })
  await new Promise((resolve) => setTimeout(resolve, 5))
})
schedule.on('elsewhere', ({ tick }) => process.send?.({ saw: tick.getTime() }))
schedule.on('skipped', ({ tick, reason }) => process.send?.({ skipped: tick.getTime(), reason }))
process.once('message', () => void locks.close().then(() => process.exit(0)))
