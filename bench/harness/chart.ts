// A scenario as a bar chart: plain SVG that follows the reader's light or dark theme.
import { formatNumber, formatRatio } from './report.js'
import type { LibraryResult, ScenarioResult } from './result.js'

const WIDTH = 760
const LABELS = 250
const VALUES = 150
const BAR = 20
const ROW = 28
const TOP = 58
const BARS = WIDTH - LABELS - VALUES - 30
/** The longest bar may be this many times the shortest one's length before the scale becomes logarithmic. */
const LINEAR_RANGE = 60

const STYLE = `
  text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 15px }
  .note, .value { fill: #59636e }
  .ours { fill: #0969da } .floor { fill: #afb8c1 } .peer { fill: #d4a72c }
  .spread { stroke: #1f2328; stroke-width: 1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note, .value { fill: #9198a1 }
    .ours { fill: #4493f8 } .floor { fill: #656c76 } .peer { fill: #bb8009 }
    .spread { stroke: #e6edf3 }
  }`

const escape = (text: string): string => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')

interface Bar {
  library: LibraryResult
  median: number
  min: number
  max: number
}

/** Pixels for a value. A few bars of very different lengths would all but one vanish on a linear scale. */
function scaleOf(bars: readonly Bar[]): { of(value: number): number; logarithmic: boolean } {
  const [least, most] = [Math.min(...bars.map(({ median }) => median)), Math.max(...bars.map(({ max }) => max))]
  if (most / least <= LINEAR_RANGE) return { of: (value) => (value / most) * BARS, logarithmic: false }
  const from = Math.log(least / 2)
  const span = Math.log(most) - from
  return { of: (value) => Math.max(0, ((Math.log(value) - from) / span) * BARS), logarithmic: true }
}

function rowOf({ library, median, min, max }: Bar, i: number, unit: string, scale: (value: number) => number): string {
  const y = TOP + i * ROW
  const middle = y + BAR / 2
  const ratio = Object.values(library.metrics)[0]?.ratio
  const label = `${formatNumber(median)} ${unit}${ratio ? `  ${formatRatio(ratio.median)}` : ''}`
  const [low, high] = [LABELS + scale(min), LABELS + scale(max)]
  return [
    `<text x="${LABELS - 8}" y="${middle + 4}" text-anchor="end">${escape(library.name)}</text>`,
    `<rect class="${library.kind}" x="${LABELS}" y="${y}" width="${Math.max(1, scale(median)).toFixed(1)}" height="${BAR}" rx="2"/>`,
    `<path class="spread" d="M${low.toFixed(1)} ${middle}H${high.toFixed(1)}"/>`,
    `<text class="value" x="${Math.max(high, LABELS + scale(median)).toFixed(1)}" dx="6" y="${middle + 4}">${escape(label)}</text>`,
  ].join('\n  ')
}

/** The first metric; the thin line is the spread between rounds, the second figure the ratio to the floor. */
export function chartOf({ title, metrics, libraries }: ScenarioResult): string {
  const [metric] = metrics
  if (!metric) throw new Error(`"${title}" has no metric`)
  const bars = libraries.flatMap((library): Bar[] => {
    const result = library.metrics[metric.name]
    return result ? [{ library, median: result.median, min: result.min, max: result.max }] : []
  })
  const scale = scaleOf(bars)
  const height = TOP + bars.length * ROW + 8
  const kinds = bars.some(({ library }) => library.kind !== 'ours')
    ? ' · blue: leasehold, grey: floor, yellow: others'
    : ''
  const note = `${metric.name}, ${metric.better} is better${scale.logarithmic ? ', logarithmic scale' : ''}${kinds}`
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" aria-label="${escape(title)}">
  <style>${STYLE}
  </style>
  <text class="title" x="8" y="22">${escape(title)}</text>
  <text class="note" x="8" y="42">${escape(note)}</text>
  ${bars.map((bar, i) => rowOf(bar, i, metric.unit, scale.of)).join('\n  ')}
</svg>
`
}
