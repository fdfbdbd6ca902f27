// Several runs of one scenario as one: a run is noisy as a whole, by what else the machine did and where V8 put things.
import type { LibraryResult, MetricResult, ScenarioResult } from './result.js'
import { type Spread, spreadOf } from './statistics.js'
import type { Metric } from './types.js'

/** SLOWER: a row is slower than before if even its best run lost more than this share. Less is noise on two cores. */
const SLOWER = 0.05

function mergeSpreads(spreads: readonly Spread[]): Spread & { rounds: number[] } {
  const medians = spreads.map(({ median }) => median)
  return { ...spreadOf(medians), rounds: medians }
}

function mergeComparisons(results: readonly MetricResult[]): Record<string, Spread> {
  const names = new Set(results.flatMap(({ comparedWith = {} }) => Object.keys(comparedWith)))
  const merged: Record<string, Spread> = {}
  for (const name of names) {
    const { median, min, max } = mergeSpreads(results.flatMap(({ comparedWith }) => comparedWith?.[name] ?? []))
    merged[name] = { median, min, max }
  }
  return merged
}

function mergeMetric(results: readonly MetricResult[]): MetricResult {
  const ratios = results.flatMap(({ ratio }) => ratio ?? [])
  return {
    ...mergeSpreads(results),
    ...(ratios.length === 0 ? {} : { ratio: mergeSpreads(ratios) }),
    ...(results.some(({ comparedWith }) => comparedWith) ? { comparedWith: mergeComparisons(results) } : {}),
  }
}

function mergeLibrary(results: readonly LibraryResult[], metrics: readonly Metric[]): LibraryResult {
  const found: LibraryResult['metrics'] = {}
  for (const { name } of metrics) {
    const measured = results.flatMap((result) => result.metrics[name] ?? [])
    if (measured.length > 0) found[name] = mergeMetric(measured)
  }
  const failure = results.find((result) => result.failure !== undefined)?.failure
  return { ...(results[0] as LibraryResult), metrics: found, ...(failure === undefined ? {} : { failure }) }
}

/** The median of the runs, with the smallest and the largest run as its spread. One run is left as it is: the spread of its rounds. */
export function mergeRuns(runs: readonly ScenarioResult[]): ScenarioResult {
  const last = runs.at(-1) as ScenarioResult
  if (runs.length === 1) return last
  const names = [...new Set(runs.flatMap(({ libraries }) => libraries.map(({ name }) => name)))]
  const libraries = names.map((name) =>
    mergeLibrary(
      runs.flatMap((run) => run.libraries.filter((each) => each.name === name)),
      last.metrics,
    ),
  )
  return { ...last, processorUseBefore: Math.max(...runs.map((run) => run.processorUseBefore)), libraries }
}

/** The rows of a scenario that are slower than an earlier build in every run, as sentences. */
export function slowerRows({ name, metrics, libraries }: ScenarioResult): string[] {
  const ours = libraries.find((each) => each.name === 'leasehold')
  return metrics.flatMap((metric) =>
    Object.entries(ours?.metrics[metric.name]?.comparedWith ?? {}).flatMap(([other, { median, min, max }]) => {
      if (!other.startsWith('leasehold@') || other.includes(',')) return []
      const best = metric.better === 'lower' ? min : 1 / max
      return best > 1 + SLOWER ? [`${name}, ${metric.name}: ${median.toFixed(2)}x of ${other}`] : []
    }),
  )
}
