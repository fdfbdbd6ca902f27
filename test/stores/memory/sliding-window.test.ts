import { join } from 'node:path'
import { expect, test } from 'vitest'
import { realWorld } from '../../../src/util/world.js'
import type { Store, TakeAnswer } from '../../../src/store.js'
import { memory } from '../../../src/stores/memory/index.js'
import { directory, open, raw, toyMachine } from '../sqlite/fixture.js'

const [limit, perMs] = [700, 1_000_000]
const limits = [{ algorithm: 'sliding-window', limit, perMs, burst: limit }] as const

/** A store whose time is set by the test. */
interface Timed {
  store: Store
  set: (at: number) => void
  /** How many takes it remembers of the one key. */
  remembered?: () => number
}

const stores: Record<string, () => Timed> = {
  memory: () => {
    let now = 0
    const store = memory({ world: { ...realWorld, now: () => now } })
    return { store, set: (at) => (now = at) }
  },
  SQLite: () => {
    const path = join(directory(), 'locks.db')
    const machine = toyMachine()
    const started = machine.at
    return {
      store: open(path, { machine }),
      set: (at) => (machine.at = started + at),
      remembered: () => {
        const db = raw(path)
        const row = db.prepare('SELECT meters FROM meters').get() as { meters: string }
        db.close()
        return Math.floor(((JSON.parse(row.meters) as number[][])[0]?.length ?? 0) / 2)
      },
    }
  },
}

test.each(Object.entries(stores))(
  '%s: a sliding window keeps a bounded number of entries, and never more than its limit passes in any stretch',
  async (_name, make) => {
    const { store, set, remembered } = make()
    const passed: number[] = []
    const exact: number[] = []
    let [at, seed, longest] = [0, 1, 0]
    for (let i = 0; i < 3_000; i++) {
      seed = (seed * 48_271) % 2_147_483_647
      // Bursts and lulls, some longer than the window.
      at += seed % 400 === 0 ? seed % 1_500_000 : seed % 1_500
      set(at)
      const [answer] = (await store.take?.([{ key: 'limiter:w', limits, cost: 1 }])) ?? []
      if ((answer as TakeAnswer).allowed) passed.push(at)
      if (exact.filter((before) => before > at - perMs).length < limit) exact.push(at)
      if (i % 50 === 0) longest = Math.max(longest, remembered?.() ?? 257)
    }
    expect(passed.length).toBeLessThan(3_000)
    for (const [i, first] of passed.entries()) {
      const later = passed[i + limit]
      if (later !== undefined) expect(later - first).toBeGreaterThanOrEqual(perMs)
    }
    expect(longest).toBeGreaterThan(256)
    expect(longest).toBeLessThanOrEqual(514)
    // A 256th of the window late at most, each time it fills.
    expect(passed.length).toBeGreaterThan(exact.length * 0.97)
    await store.close()
  },
)

test('a take of a window of a hundred thousand costs about as much when it is full as when it is empty', () => {
  let now = 0
  const store = memory({ world: { ...realWorld, now: () => now } })
  const many = [{ algorithm: 'sliding-window', limit: 100_000, perMs: 1_000_000, burst: 100_000 }] as const
  const take = (): void => void store.take?.([{ key: 'limiter:many', limits: many, cost: 1 }])
  const cpuMs = (times: number): number => {
    const before = process.cpuUsage()
    for (let i = 0; i < times; i++) {
      now += 5
      take()
    }
    const { user, system } = process.cpuUsage(before)
    return (user + system) / 1_000 / times
  }
  cpuMs(60_000)
  // 1.2 ms at 30,000 entries before they were bounded.
  expect(cpuMs(2_000)).toBeLessThan(0.2)
})
