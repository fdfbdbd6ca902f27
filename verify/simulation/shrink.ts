import type { Plan } from './plan.js'
import { type Outcome, runPlan } from './run.js'

/** More runs than this are not worth the wait. */
const MOST_RUNS = 1_500

export interface Shrunk {
  plan: Plan
  suppressed: Set<string>
  outcome: Outcome
}

/** Leaves out operations and faults for as long as the same rule is still broken. */
export function shrink(plan: Plan, rule: string): Shrunk {
  let runs = 0
  let best: Shrunk = { plan, suppressed: new Set(), outcome: runPlan(plan) }
  const attempt = (candidate: Plan, suppressed: Set<string>): boolean => {
    if (runs++ > MOST_RUNS) return false
    const outcome = runPlan(candidate, { suppressed })
    if (!outcome.violations.some((violation) => violation.rule === rule)) return false
    best = { plan: candidate, suppressed, outcome }
    return true
  }
  for (let before = Number.POSITIVE_INFINITY; size(best) < before && runs < MOST_RUNS; ) {
    before = size(best)
    shrinkOutages(() => best, attempt)
    shrinkFaults(() => best, attempt)
    for (const op of [...best.plan.operations].reverse()) {
      attempt({ ...best.plan, operations: best.plan.operations.filter((each) => each !== op) }, best.suppressed)
    }
  }
  return { ...best, outcome: runPlan(best.plan, { suppressed: best.suppressed, trace: true }) }
}

type Attempt = (candidate: Plan, suppressed: Set<string>) => boolean

/** First halves, then quarters, …, then single faults. */
function shrinkFaults(best: () => Shrunk, attempt: Attempt): void {
  for (let size = Math.ceil(best().outcome.struck.length / 2); size >= 1; size = size === 1 ? 0 : Math.ceil(size / 2)) {
    for (let from = best().outcome.struck.length - 1; from >= 0; from -= size) {
      const some = best().outcome.struck.slice(Math.max(from - size + 1, 0), from + 1)
      if (some.length > 0) attempt(best().plan, new Set([...best().suppressed, ...some]))
    }
  }
}

function shrinkOutages(best: () => Shrunk, attempt: Attempt): void {
  const { plan, suppressed } = best()
  if (plan.weather.outages.length > 0) attempt({ ...plan, weather: { ...plan.weather, outages: [] } }, suppressed)
}

function size({ plan, outcome }: Shrunk): number {
  return plan.operations.length * 10 + outcome.struck.length
}
