import { expect, test } from 'vitest'
import { realWorld, type World } from '../../../src/kit/world.js'
import { Locks } from '../../../src/locks.js'
import { KINDS, openPlace, until } from '../limiter/places.js'

/** A machine whose clock is wrong by so much. */
const skewed = (ms: number): World => ({
  ...realWorld,
  now: (exact) => realWorld.now(exact) + ms,
  date: () => realWorld.date() + ms,
})

const SECONDS = 4

test.concurrent.each(KINDS)('on %s each tick of a second is started once, by its own clock', async (kind) => {
  const place = await openPlace(kind)
  const ticks: number[] = []
  const early: number[] = []
  const instances = [-3_000, -1_000, 0, 2_000, 3_000].map((skew) => {
    const store = place.store()
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
  await place.close()
  expect(new Set(ticks).size).toBe(ticks.length)
  expect(early).toEqual([])
  const first = ticks[0] as number
  expect(ticks.slice().sort((a, b) => a - b)).toEqual(ticks.map((_, i) => first + i * 1_000))
})
