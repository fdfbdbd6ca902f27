import { constants, setPriority } from 'node:os'
import { expect, test } from 'vitest'
import { search, seedOf, withBundle } from '../../verify/simulation/bundle.js'
import { MUTANTS } from '../../verify/simulation/mutants.js'

// A slice, with another seed for each state of the code. `npm run simulate -- --schedules 200000` runs the campaign with a fresh one,
// `npm run mutants` all mutants.
const SECONDS = 20

// The tests of the page run beside it, and have to be served within a second.
setPriority(constants.priority.PRIORITY_LOW)

test('no schedule of the core breaks a promise', async () => {
  const { seed, report } = await withBundle([], async (bundle) => {
    const seed = seedOf(bundle)
    return { seed, report: await search(bundle, { seed, from: 0, to: 1e9, seconds: SECONDS }, 1) }
  })
  const { schedules, grants, refusals } = report
  console.log(`simulation: seed ${seed}, ${schedules} schedules, ${grants} grants, ${refusals} refusals`)
  const failures = report.failures.map(({ number, violations }) => {
    const [first] = violations
    return `npm run simulate -- --seed ${seed} --schedule ${number}: ${first?.rule}: ${first?.text}`
  })
  expect(failures.slice(0, 20)).toEqual([])
  expect(grants, 'locks are granted').toBeGreaterThan(schedules)
  expect(refusals, 'locks are contended').toBeGreaterThan(schedules)
})

test('the same seed gives the same run to the last event, in another process too', async () => {
  await withBundle([], async (bundle) => {
    const order = { seed: seedOf(bundle), from: 0, to: 60, digest: true }
    const [one, other] = await Promise.all([search(bundle, order, 1), search(bundle, order, 1)])
    expect(one.digest).toBe(other.digest)
    expect(one.schedules).toBe(60)
  })
})

test('a holder that does not look at its clock is caught', async () => {
  const mutant = MUTANTS.find(({ name }) => name === 'isHeld does not look at the clock')
  const order = { seed: 1, from: 0, to: 200, only: 'lock', rules: ['capacity'], stopAfter: 1 }
  const report = await withBundle(mutant?.edits ?? [], (bundle) => search(bundle, order, 1))
  expect(report.failures.map(({ violations }) => violations[0]?.rule)).toEqual(['capacity'])
})

test('a mutant whose text is not found in the sources is an error', async () => {
  const edit = { file: 'core/lease.ts', find: 'no such text', replace: '' }
  await expect(withBundle([edit], async () => {})).rejects.toThrow('found 0 times in src/core/lease.ts')
})
