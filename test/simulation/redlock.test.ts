import { expect, test } from 'vitest'
import { REDLOCK_MUTATIONS, REGIMES, simulate } from '../../verify/simulation/redlock/simulation.js'

// A slice. `npm run prove -- redlock` runs a hundred thousand schedules.

// Outages are usual here, and nothing reads the stacks of their errors: collecting them would only cost time.
Error.stackTraceLimit = 0

test.each(REGIMES)('tokens are unique and grow, and no two clients hold at once (%s)', (regime) => {
  let grants = 0
  let contended = 0
  for (let seed = 1; seed <= 500; seed++) {
    const outcome = simulate({ seed, regime })
    expect(outcome.violations, `seed ${seed}`).toEqual([])
    grants += outcome.grants
    contended += outcome.refusals
  }
  expect(grants, 'grants').toBeGreaterThan(1_000)
  expect(contended, 'refusals').toBeGreaterThan(500)
})

test('the same seed gives the same schedule', () => {
  for (let seed = 1; seed <= 20; seed++) {
    expect(simulate({ seed, regime: 'losses' })).toEqual(simulate({ seed, regime: 'losses' }))
  }
})

test.each(REDLOCK_MUTATIONS)('the simulation catches a mutant: %s', (mutation) => {
  for (let seed = 1; seed <= 3_000; seed++) {
    const regime = REGIMES[seed % REGIMES.length] as (typeof REGIMES)[number]
    if (simulate({ seed, regime, mutation }).violations.length > 0) return
  }
  expect.fail('it survives 3,000 schedules')
})
