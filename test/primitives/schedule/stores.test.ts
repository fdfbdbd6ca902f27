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
    const early: number[] = []
    const instances = [-3_000, -1_000, 0, 2_000, 3_000].map((skew) => {
      const store = fixture.store()
      const locks = new Locks(store, { namespace: 'shop' }, skewed(skew))
      locks.schedule('job', '* * * * * *', async ({ tick }) => {
        ticks.push(tick.getTime())
        const behind = tick.getTime() - ((await store.now?.()) ?? 0)
        if (behind > 0) early.push(behind)
      })
      return locks
    })
    await until('it ran', () => ticks.length > SECONDS, 30_000)
    await Promise.all(instances.map((locks) => locks.close()))
    await fixture.close()
    expect(new Set(ticks).size).toBe(ticks.length)
    expect(early).toEqual([])
    const first = ticks[0] as number
    expect(ticks.slice().sort((a, b) => a - b)).toEqual(ticks.map((_, i) => first + i * 1_000))
  },
)
