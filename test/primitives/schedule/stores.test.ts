import { expect, test } from 'vitest'
import { realWorld, type World } from '../../../src/util/world.js'
import { Locks } from '../../../src/locks.js'
import { STORE_KINDS, openStoreFixture, until } from '../../../testbed/store-fixtures.js'

/** A machine whose clock is wrong by this much. */
const skewed = (ms: number): World => ({
  ...realWorld,
  now: (exact) => realWorld.now(exact) + ms,
  date: () => realWorld.date() + ms,
})

const SECONDS = 4

test.concurrent.each(STORE_KINDS)(
  'on %s each tick of a second starts once, by the clock of the store',
  async (kind) => {
    const fixture = await openStoreFixture(kind)
    const ticks: number[] = []
    /** Ticks that an instance says it left out, because the one before still ran or the machine was too slow. */
    const leftOut = new Set<number>()
    const early: number[] = []
    const instances = [-3_000, -1_000, 0, 2_000, 3_000].map((skew) => {
      const store = fixture.store()
      const locks = new Locks(store, { namespace: 'shop' }, skewed(skew))
      const job = locks.schedule('job', '* * * * * *', async ({ tick }) => {
        ticks.push(tick.getTime())
        const behind = tick.getTime() - ((await store.now?.()) ?? 0)
        if (behind > 0) early.push(behind)
      })
      job.on('skipped', ({ tick }) => leftOut.add(tick.getTime()))
      job.on('missed', ({ first, tick }) => {
        for (let at = first.getTime(); at <= tick.getTime(); at += 1_000) leftOut.add(at)
      })
      return locks
    })
    await until('it ran', () => ticks.length > SECONDS, 30_000)
    await Promise.all(instances.map((locks) => locks.close()))
    await fixture.close()
    expect(new Set(ticks).size).toBe(ticks.length)
    expect(early).toEqual([])
    const [first, last] = [Math.min(...ticks), Math.max(...ticks)]
    const seconds = Array.from({ length: (last - first) / 1_000 + 1 }, (_, i) => first + i * 1_000)
    expect(seconds.filter((tick) => !ticks.includes(tick) && !leftOut.has(tick))).toEqual([])
    expect(ticks.every((tick) => seconds.includes(tick))).toBe(true)
  },
)
