import { commandLine } from '../../testbed/command-line.js'
import { search, withBundle, work } from './bundle.js'
import type { Failure, Report } from './protocol.js'

const USAGE = `npm run simulate -- [--seed N] [--schedules N | --seconds N] [--only WORKLOAD] [--shape NAME] [--workers N] [--show N]
npm run simulate -- --seed N --schedule N [--rule RULE] [--whole]

  --schedules  how many (default: 2000); --seconds: as many as fit
  --only       one workload, such as semaphore; --shape: on one kind of store
  --show       timelines of violations to print (default: 1)
  --schedule   one of them again, with its timeline; --rule: as far as it concerns this rule; --whole: not shrunk`

const { values } = commandLine(USAGE, {
  options: {
    seed: { type: 'string' },
    schedules: { type: 'string', default: '2000' },
    seconds: { type: 'string' },
    schedule: { type: 'string' },
    only: { type: 'string' },
    shape: { type: 'string' },
    rule: { type: 'string' },
    whole: { type: 'boolean' },
    workers: { type: 'string' },
    show: { type: 'string', default: '1' },
  },
})
const seed = values.seed === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(values.seed)
const only = `${values.only === undefined ? '' : ` --only ${values.only}`}${values.shape === undefined ? '' : ` --shape '${values.shape}'`}`

await withBundle([], async (bundle) => {
  const one = { task: 'show' as const, seed, step: 1, only: values.only, shape: values.shape, whole: values.whole }
  if (values.schedule !== undefined) {
    const number = Number(values.schedule)
    await work(bundle, { ...one, from: number, to: number + 1, rule: values.rule })
    return
  }
  const started = performance.now()
  const to = Number(values.schedules)
  const seconds = values.seconds === undefined ? undefined : Number(values.seconds)
  const workers = values.workers === undefined ? undefined : Number(values.workers)
  const report = await search(
    bundle,
    { seed, from: 0, to: seconds === undefined ? to : 1e9, seconds, only: values.only, shape: values.shape },
    workers,
  )
  print(report, performance.now() - started)
  for (const [rule, failures] of [...byRule(report)].slice(0, Number(values.show))) {
    const [first] = failures as [Failure]
    console.log(
      `\n${rule}, shrunk (npm run simulate -- --seed ${seed} --schedule ${first.number}${only} --rule '${rule}')\n`,
    )
    await work(bundle, { ...one, from: first.number, to: first.number + 1, rule })
  }
  if (report.failures.length > 0) process.exitCode = 1
})

function print(report: Report, tookMs: number): void {
  const { schedules, failures, events, grants, refusals, passedOn, byWorkload } = report
  const each = Object.entries(byWorkload).map(([name, count]) => `${name} ${count}`)
  console.log(`seed ${seed}: ${schedules} schedules (${each.join(', ')})`)
  console.log(
    `${events} events, ${grants} grants (${passedOn} passed on inside a process), ${refusals} refusals, ${(tookMs / 1_000).toFixed(1)} s, ${(report.cpuMs / schedules).toFixed(2)} ms of CPU each`,
  )
  console.log(`${failures.length} schedules with violations`)
  for (const [rule, failed] of byRule(report)) {
    const [first] = failed as [Failure]
    // With --rule, all of them.
    if (values.rule !== undefined && values.rule !== rule) continue
    const where = failed
      .slice(0, values.rule === undefined ? 4 : 1_000)
      .map(({ number, workload, shape }) => `${number} (${workload}, ${shape})`)
    console.log(`  ${String(failed.length).padStart(6)}  ${rule}: ${where.join(', ')}`)
    console.log(`          ${first.violations.find((violation) => violation.rule === rule)?.text}`)
  }
}

function byRule({ failures }: Report): Map<string, Failure[]> {
  const rules = new Map<string, Failure[]>()
  for (const failure of failures) {
    for (const { rule } of failure.violations) rules.set(rule, [...(rules.get(rule) ?? []), failure])
  }
  return new Map([...rules].sort(([, a], [, b]) => b.length - a.length))
}
