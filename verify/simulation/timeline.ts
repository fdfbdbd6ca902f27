import type { Plan } from './plan.js'
import { describe, type Outcome } from './run.js'

/** A readable account of a schedule: what was planned, then what happened, one column per process. */
export function timeline(plan: Plan, outcome: Outcome): string {
  const { shape, weather, workload, number } = plan
  const short = (text: string): string => {
    let shown = text
    for (const [identity, label] of outcome.names) shown = shown.replaceAll(identity, label)
    return shown
  }
  const lines = [
    `schedule ${number}: ${workload} on "${shape.name}", time-out ${shape.timeoutMs} ms, ${weather.calm ? 'calm' : 'rough'} weather`,
  ]
  for (const outage of weather.outages) {
    lines.push(
      `  outage from ${Math.round(outage.from)} to ${Math.round(outage.to)} ms, ${outage.how}${outage.restart ? ', restart' : ''}`,
    )
  }
  for (const op of plan.operations) {
    const actor = outcome.actors[op.actor] ?? `actor ${op.actor}`
    lines.push(`  ${String(op.at).padStart(6)} ms ${actor} ${describe(op)}`)
  }
  lines.push('')
  const columns = [...new Set((outcome.trace ?? []).map(({ who }) => who))].sort()
  const trace = [...(outcome.trace ?? [])].sort((a, b) => a.at - b.at)
  for (const { at, who, text } of trace) {
    const indent = '    '.repeat(columns.indexOf(who))
    lines.push(`${at.toFixed(2).padStart(10)}  ${indent}${who}: ${short(text)}`)
  }
  lines.push('')
  for (const { rule, text, at } of outcome.violations)
    lines.push(`${at.toFixed(2).padStart(10)}  ${rule}: ${short(text)}`)
  return lines.join('\n')
}
