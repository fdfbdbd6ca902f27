/**
 * A process that takes continuously, with many takes in flight. Arguments: kind of store, its URL, what to do as JSON.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { createLocks, type LimiterOptions } from '../../../src/index.js'
import { type StoreKind, storeAt } from '../../../testbed/store-fixtures.js'

/** When a take was sent and answered, on the clock that all processes of a machine share. */
export type Taken = [sentAt: number, answeredAt: number]

export interface TakerReport {
  taken: Taken[]
  /** How often the store did not answer in time. */
  outages: number
}

export interface Taking {
  name: string
  options: LimiterOptions
  inFlight: number
  seconds: number
}

const monotonicMs = (): number => Number(process.hrtime.bigint()) / 1e6

const [kind, at, text] = process.argv.slice(2) as [Exclude<StoreKind, 'memory'>, string, string]
const { name, options, inFlight, seconds } = JSON.parse(text) as Taking
const store = storeAt(kind, at)
const locks = createLocks(store)
const limiter = locks.limiter(name, options)
// Connects before the time counts.
await locks.limiter(`${name}-warm`, options).take('key')
process.send?.('ready')
await new Promise((resolve) => process.once('message', resolve))

const taken: Taken[] = []
const end = monotonicMs() + seconds * 1_000
let outages = 0
const worker = async (): Promise<void> => {
  while (monotonicMs() < end) {
    const sentAt = monotonicMs()
    const answer = await limiter.take('key').catch(() => {
      outages++
      return { allowed: false, retryAfterMs: 10 }
    })
    if (answer.allowed) taken.push([sentAt, monotonicMs()])
    else await sleep(Math.max(Math.min(answer.retryAfterMs, end - monotonicMs()), 1))
  }
}
await Promise.all(Array.from({ length: inFlight }, worker))
process.send?.({ taken, outages } satisfies TakerReport, () => process.exit(0))
