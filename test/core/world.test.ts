/** The clock that every decision is based on. */
import { afterEach, describe, expect, test } from 'vitest'
import { realWorld } from '../../src/util/world.js'

const dateNow = Date.now

afterEach(() => {
  Date.now = dateNow
})

/** How far the clock is ahead of the monotonic one. The largest of a few: a pause between the two readings makes it smaller. */
const lead = (): number => Math.max(...[1, 2, 3, 4].map(() => realWorld.now(true) - performance.now()))

function busy(ms: number): void {
  for (const until = performance.now() + ms; performance.now() < until; );
}

describe('the clock', () => {
  test('does not take a pause of the process while it reads the time for a jump', () => {
    const before = lead()
    for (const when of ['before', 'after']) {
      Date.now = () => {
        if (when === 'before') busy(20)
        const now = dateNow()
        if (when === 'after') busy(20)
        return now
      }
      realWorld.now(true)
      Date.now = dateNow
      expect(lead() - before).toBeLessThan(5)
    }
  })

  test('follows the wall clock when that jumps forward, as after a suspension, and never goes back', () => {
    const before = lead()
    Date.now = () => dateNow() + 60_000
    expect(lead() - before).toBeGreaterThan(59_990)
    const high = realWorld.now(true)
    Date.now = () => dateNow() - 60_000
    expect(realWorld.now(true)).toBeGreaterThanOrEqual(high)
  })
})
