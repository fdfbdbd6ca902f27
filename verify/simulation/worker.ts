/** Runs schedules in a process of its own, from a bundle: `main.ts` starts it and collects what it finds. */
import { createHash } from 'node:crypto'
import { planOf } from './plan.js'
import { install, runPlan } from './run.js'
import { shrink } from './shrink.js'
import { checkDrain } from './simulation.js'
import { timeline } from './timeline.js'
import { emptyReport, type Failure, type Order } from './protocol.js'
import { WORKLOADS } from './workloads.js'

const order = JSON.parse(process.argv[2] ?? '{}') as Order
install()
// Outside of any promise: a schedule drains the microtask queue itself.
setImmediate(() => {
  checkDrain()
  if (order.task === 'show') show()
  else search()
})

function search(): void {
  const report = emptyReport()
  const hash = createHash('sha256')
  const until = performance.now() + (order.seconds ?? Number.POSITIVE_INFINITY) * 1_000
  for (let number = order.from; number < order.to && performance.now() < until; number += order.step) {
    const plan = planOf(order.seed, number, order.only, order.shape)
    const outcome = runPlan(plan, { trace: order.digest === true })
    if (order.digest) hash.update(timeline(plan, outcome))
    report.schedules++
    report.events += outcome.events
    report.grants += outcome.grants
    report.refusals += outcome.refusals
    report.passedOn += outcome.passedOn
    report.byWorkload[plan.workload] = (report.byWorkload[plan.workload] ?? 0) + 1
    if (outcome.violations.length === 0) continue
    const counted = outcome.violations.filter(({ rule }) => order.rules?.includes(rule) ?? true)
    if (counted.length === 0) continue
    const violations = [...new Map(counted.map((each) => [each.rule, each])).values()]
    const { workload, shape, weather } = plan
    const failure: Failure = { number, workload, shape: shape.name, calm: weather.calm, violations }
    report.failures.push(failure)
    if (report.failures.length === order.stopAfter) break
  }
  const { user, system } = process.cpuUsage()
  report.cpuMs = (user + system) / 1_000
  report.digest = hash.digest('hex')
  process.send?.(report, () => process.exit())
}

function show(): void {
  const plan = planOf(order.seed, order.from, order.only, order.shape)
  const whole = runPlan(plan, { trace: true })
  const again = runPlan(plan, { trace: true })
  if (JSON.stringify(whole.trace) !== JSON.stringify(again.trace))
    console.log('NOT DETERMINISTIC: the same seed gave another run')
  const rule = order.rule ?? whole.violations[0]?.rule
  if (rule === undefined || order.whole) return console.log(timeline(plan, whole))
  const shrunk = shrink(plan, rule)
  console.log(timeline(shrunk.plan, shrunk.outcome))
}

export const workloads: string[] = WORKLOADS.map(({ name }) => name)
