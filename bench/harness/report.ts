// A scenario as lines of text.
import type { LibraryResult, MetricResult, ScenarioResult } from './result.js'
import type { Metric } from './types.js'

export function formatNumber(value: number): string {
  if (value >= 1_000) return Math.round(value).toLocaleString('en')
  if (value >= 100) return value.toFixed(0)
  if (value >= 10) return value.toFixed(1)
  return value.toFixed(value >= 1 ? 2 : 3)
}

/** Three digits: ratios of 45x and of 0.045x are both of interest. */
export const formatRatio = (ratio: number): string =>
  ratio >= 99.5 ? `${Math.round(ratio)}x` : ratio >= 9.95 ? `${ratio.toFixed(1)}x` : `${ratio.toFixed(2)}x`

function figure({ unit }: Metric, result: MetricResult): string {
  const value = `${formatNumber(result.median).padStart(11)} ${unit}`.padEnd(16)
  if (!result.ratio) return value
  const { median, min, max } = result.ratio
  return `${value}${formatRatio(median).padStart(8)}  (${formatRatio(min)} – ${formatRatio(max)})`
}

function lines(library: LibraryResult, metrics: readonly Metric[]): string[] {
  const label = `${library.kind === 'floor' ? '· ' : '  '}${library.name}${library.settings ? ` (${library.settings})` : ''}`
  const found = metrics.flatMap((metric, i) => {
    const result = library.metrics[metric.name]
    if (!result) return []
    const head = i === 0 ? label : ''
    const tail = metrics.length > 1 ? `   ${metric.name}` : ''
    return [`${head.padEnd(46)} ${figure(metric, result)}${tail}`]
  })
  if (library.failure !== undefined) found.push(`${label}  failed: ${library.failure.split('\n')[0]}`)
  return found
}

export function textOf({ name, title, metrics, target, libraries, seconds }: ScenarioResult): string {
  const rounds = Math.max(0, ...libraries.map((each) => each.metrics[metrics[0]?.name ?? '']?.rounds.length ?? 0))
  const heading = `\n${name}: ${title} [${metrics[0]?.better} is better; ${rounds} rounds, ${seconds.toFixed(0)} s]`
  return [
    heading,
    ...(target === undefined ? [] : [`asked for: ${target}`]),
    ...libraries.flatMap((library) => lines(library, metrics)),
  ].join('\n')
}
