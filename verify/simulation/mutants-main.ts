// Prints which mistake was caught by which workload, and after how many schedules.
import { badUsage, commandLine } from '../../testbed/command-line.js'
import { search, withBundle } from './bundle.js'
import { type Mutant, MUTANTS } from './mutants.js'
import type { Failure } from './protocol.js'

const USAGE = `npm run mutants -- [--seed N] [--schedules N] [--only NAME] [--workers N]

  --seed       default: 1
  --schedules  of each mutant at most (default: 5000)
  --only       one mutant, such as 'isHeld does not look at the clock'`

const { values } = commandLine(USAGE, {
  options: {
    seed: { type: 'string', default: '1' },
    schedules: { type: 'string', default: '5000' },
    only: { type: 'string' },
    workers: { type: 'string' },
  },
})
const seed = Number(values.seed)
const most = Number(values.schedules)
const workers = values.workers === undefined ? undefined : Number(values.workers)
/** A mutant that is caught early need not run through all its schedules. */
const SLICE = 500

const chosen = MUTANTS.filter(({ name }) => values.only === undefined || name === values.only)
if (chosen.length === 0) badUsage(`unknown mutant "${values.only}"`, USAGE)
const width = Math.max(...chosen.map(({ name }) => name.length))
console.log(`${'mutant'.padEnd(width)}  ${'caught by'.padEnd(16)}  after  as`)
let missed = 0
await withBundle([], async (original) => {
  for (const mutant of chosen) {
    const caught = await hunt(mutant, original).catch((error: unknown) => String((error as Error).message))
    if (typeof caught === 'string') missed++
    const shown =
      typeof caught === 'string'
        ? `NOT CAUGHT: ${caught}`
        : `${String(caught.number + 1).padStart(5)}  ${caught.violations[0]?.rule}`
    console.log(`${mutant.name.padEnd(width)}  ${mutant.workload.padEnd(16)}  ${shown}`)
  }
})
console.log(missed === 0 ? `all ${chosen.length} caught` : `${missed} of ${chosen.length} not caught`)
if (missed > 0) process.exitCode = 1

/** The first schedule that breaks a promise with the mistake in it, and does not without. */
async function hunt(mutant: Mutant, original: string): Promise<Failure> {
  const order = { seed, only: mutant.workload, shape: mutant.shape, rules: [...mutant.rules] }
  return withBundle(mutant.edits, async (mutated) => {
    for (let from = 0; from < most; from += SLICE) {
      const { failures } = await search(mutated, { ...order, from, to: from + SLICE, stopAfter: 5 }, workers)
      for (const failure of failures) {
        const { number } = failure
        const without = await search(original, { ...order, from: number, to: number + 1 }, 1)
        if (without.failures.length === 0) return failure
      }
    }
    throw new Error(`${most} schedules saw nothing wrong`)
  })
}
