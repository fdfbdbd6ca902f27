// The shape of the JSON that a run writes; bench/README.md documents it.
import { type Spread, spreadOf } from './statistics.js'
import type { Figures, Kind, Library, Metric, Scenario } from './types.js'

export interface MetricResult extends Spread {
  /** One figure per round, in order. */
  rounds: number[]
  /** This library's figure through the floor's of the same round. Absent if the scenario has no floor, or a floor of 0. */
  ratio?: Spread & { rounds: number[] }
  /** Of ours only: this build's figure through another library's of the same round, by the name of that library. */
  comparedWith?: Record<string, Spread>
}

export interface LibraryResult {
  name: string
  kind: Kind
  settings?: string
  /** By the name of the metric. Empty if the library failed in its first round. */
  metrics: Record<string, MetricResult>
  /** Why the library did not play to the end. */
  failure?: string
}

export interface ScenarioResult {
  name: string
  title: string
  target?: string
  metrics: readonly Metric[]
  /** Share of all cores that others used just before, 0 to 1. */
  processorUseBefore: number
  /** Everything included: servers, warm-up, rounds. */
  seconds: number
  libraries: LibraryResult[]
}

export interface RunResult {
  version: 1
  startedAt: string
  commit: string
  /** The working tree had changes that are not in `commit`. */
  dirty: boolean
  against?: string
  calm: boolean
  machine: { cores: number; processor: string; memoryGb: number; system: string; node: string }
  scenarios: ScenarioResult[]
  /** Scenarios that were left out, each with its reason. */
  skipped: { name: string; reason: string }[]
}

type Rounds = readonly (Figures | undefined)[]

interface Played {
  label: string
  library: Library
  figures: Rounds
  failure: string | undefined
  floor: Rounds
  others: readonly { label: string; figures: Rounds }[]
}

const round = (value: number): number => Number(value.toPrecision(5))

function spread(values: readonly number[]): Spread & { rounds: number[] } {
  const { median, min, max } = spreadOf(values)
  return { median: round(median), min: round(min), max: round(max), rounds: values.map(round) }
}

/** Round by round: a noisy moment strikes both sides of a ratio. */
function ratiosOf(name: string, figures: Rounds, base: Rounds): number[] {
  return figures.flatMap((each, i) => {
    const [own, other] = [each?.[name], base[i]?.[name]]
    return own === undefined || !other ? [] : [own / other]
  })
}

function comparisons(name: string, { label, figures, others }: Played): Record<string, Spread> {
  const found: Record<string, Spread> = {}
  for (const other of others) {
    const ratios = other.label === label ? [] : ratiosOf(name, figures, other.figures)
    if (ratios.length === 0) continue
    const { median, min, max } = spread(ratios)
    found[other.label] = { median, min, max }
  }
  return found
}

function metricResult({ name, absolute }: Metric, played: Played): MetricResult | undefined {
  const { figures, floor, library } = played
  const values = figures.flatMap((each) => (each?.[name] === undefined ? [] : [each[name]]))
  if (values.length === 0) return undefined
  const ratios = absolute ? [] : ratiosOf(name, figures, floor)
  return {
    ...spread(values),
    ...(ratios.length === 0 ? {} : { ratio: spread(ratios) }),
    ...(library.kind === 'ours' ? { comparedWith: comparisons(name, played) } : {}),
  }
}

export function resultOf({ metrics }: Scenario, played: Played): LibraryResult {
  const { label, library, failure } = played
  const found: Record<string, MetricResult> = {}
  for (const metric of metrics) {
    const result = metricResult(metric, played)
    if (result) found[metric.name] = result
  }
  return {
    name: label,
    kind: library.kind,
    ...(library.settings === undefined ? {} : { settings: library.settings }),
    metrics: found,
    ...(failure === undefined ? {} : { failure }),
  }
}

/** Lists of numbers on one line each, so that two runs can be compared by eye and by diff. */
export function jsonOf(result: RunResult): string {
  const text = JSON.stringify(result, null, 2)
  const compact = text.replaceAll(/\[[\d\s.,e+-]*\]/g, (list) =>
    list.replaceAll(/\s+/g, ' ').replace('[ ', '[').replace(' ]', ']'),
  )
  return `${compact}\n`
}
