import { expect, test } from 'vitest'
import { type Mutation, REGIMES, simulate } from './simulation.js'

// A slice. `npm run prove -- redlock` runs a hundred thousand schedules.

// Outages are usual here, and nobody looks where their errors come from.
Error.stackTraceLimit = 0

test.each(REGIMES)('tokens are unique and grow, and nobody holds beside another (%s)', (regime) => {
  let grants = 0
  let contended = 0
  for (let seed = 1; seed <= 500; seed++) {
    const outcome = simulate({ seed, regime })
    expect(outcome.violations, `seed ${seed}`).toEqual([])
    grants += outcome.grants
    contended += outcome.refusals
  }
  expect(grants, 'locks were granted at all').toBeGreaterThan(1_000)
  expect(contended, 'they were contended').toBeGreaterThan(500)
})

test('the same seed is the same schedule', () => {
  for (let seed = 1; seed <= 20; seed++) {
    expect(simulate({ seed, regime: 'losses' })).toEqual(simulate({ seed, regime: 'losses' }))
  }
})

const MUTATIONS: Mutation[] = [
  'raise without still mine',
  'max of increments',
  'majority of half',
  'no sitting out',
  'sitting out in client memory',
  'counters per name that expire',
  'writer blind to readers',
  'release without owner check',
  'a guess is always good',
  'a batch is blind to what it raises',
  'raises behind a steal',
  'trust beyond the ttl',
]

test.each(MUTATIONS)('is caught: %s', (mutation) => {
  for (let seed = 1; seed <= 3_000; seed++) {
    const regime = REGIMES[seed % REGIMES.length] as (typeof REGIMES)[number]
    if (simulate({ seed, regime, mutation }).violations.length > 0) return
  }
  expect.fail('3,000 schedules saw nothing wrong with it')
})
