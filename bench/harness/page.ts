// The figures of one or several runs as charts and as the table of docs/performance.md.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT } from '../../testbed/programs.js'
import { chartOf } from './chart.js'
import { formatNumber, formatRatio } from './report.js'
import type { LibraryResult, MetricResult, RunResult, ScenarioResult } from './result.js'
import type { Metric } from './types.js'

const PAGE = join(ROOT, 'docs/performance.md')
const CHARTS = join(ROOT, 'docs/performance')
const BEGIN = '<!-- figures: written by npm run bench -- --draw -->'
const END = '<!-- end of figures -->'

/** Sections of the page: scenarios whose names begin with the word. */
const SECTIONS: readonly [prefix: string, heading: string][] = [
  ['redis', 'One Redis'],
  ['redlock', 'Five Redis servers (Redlock)'],
  ['memory', 'Memory'],
  ['sqlite', 'SQLite'],
  ['postgres', 'PostgreSQL'],
  ['etcd', 'etcd'],
  ['start-up', 'Start-up'],
  ['growth', 'Growth'],
]

function cell({ unit }: Metric, result: MetricResult | undefined, withSpread: boolean): string {
  if (!result) return '–'
  const value = `${formatNumber(result.median)}${unit === '' ? '' : ` ${unit}`}`
  if (!result.ratio) return value
  const { median, min, max } = result.ratio
  return `${value}, ${formatRatio(median)}${withSpread ? ` (${formatRatio(min)}–${formatRatio(max)})` : ''}`
}

function bestPeer(libraries: readonly LibraryResult[], { name, better }: Metric): LibraryResult | undefined {
  const value = (library: LibraryResult): number => library.metrics[name]?.median as number
  return libraries
    .filter(({ kind, metrics }) => kind === 'peer' && metrics[name])
    .toSorted((a, b) => (better === 'lower' ? value(a) - value(b) : value(b) - value(a)))[0]
}

function rowsOf({ title, metrics, libraries, target }: ScenarioResult): string[] {
  return metrics.flatMap((metric, i) => {
    const ours = libraries.filter(({ kind }) => kind === 'ours')
    return ours.map((library, nth) => {
      const first = i === 0 && nth === 0
      const floor = libraries.find(({ kind }) => kind === 'floor')
      const peer = bestPeer(libraries, metric)
      const what = metrics.length > 1 ? `${first ? `${title}: ` : ''}${metric.name}` : first ? title : ''
      return `| ${[
        what,
        `${library.name === 'leasehold' ? '' : `${library.name}: `}${cell(metric, library.metrics[metric.name], true)}`,
        floor ? `${floor.name}: ${cell(metric, floor.metrics[metric.name], false)}` : '–',
        peer ? `${peer.name}: ${cell(metric, peer.metrics[metric.name], false)}` : '–',
        first ? (target ?? '') : '',
      ].join(' | ')} |`
    })
  })
}

function sectionOf(heading: string, scenarios: readonly ScenarioResult[]): string {
  const head = '| scenario | leasehold (ratio to the floor, spread) | floor | best peer | aim |\n|---|---|---|---|---|'
  const charts = scenarios.map(({ name, title }) => `![${title}](performance/${name}.svg)`).join('\n\n')
  return `## ${heading}\n\n${head}\n${scenarios.flatMap(rowsOf).join('\n')}\n\n${charts}`
}

function introductionOf(runs: readonly RunResult[]): string {
  const { machine, calm } = runs[0] as RunResult
  const days = [...new Set(runs.map(({ startedAt }) => startedAt.slice(0, 10)))].join(', ')
  const commits = [...new Set(runs.map(({ commit }) => commit))].join(', ')
  const where = `${machine.cores} cores (${machine.processor}), ${machine.memoryGb} GB, Node ${machine.node.slice(1)}, servers on the same machine`
  const busiest = Math.max(...runs.flatMap((run) => run.scenarios.map((each) => each.processorUseBefore)))
  return `Measured on ${days} at ${commits} with \`npm run bench${calm ? ' -- --calm' : ''}\`: ${where}. Just before a scenario, others used at most ${Math.round(busiest * 100)} % of the processors.`
}

/** Of a scenario that was measured in several runs, the last one counts. */
export function draw(files: readonly string[]): void {
  const runs = files.map((file) => JSON.parse(readFileSync(file, 'utf8')) as RunResult)
  const scenarios = [...new Map(runs.flatMap((run) => run.scenarios).map((each) => [each.name, each])).values()]
  rmSync(CHARTS, { recursive: true, force: true })
  mkdirSync(CHARTS, { recursive: true })
  const sections = SECTIONS.flatMap(([prefix, heading]) => {
    const own = scenarios.filter(({ name }) => name === prefix || name.startsWith(`${prefix}-`))
    for (const scenario of own) writeFileSync(join(CHARTS, `${scenario.name}.svg`), chartOf(scenario))
    return own.length === 0 ? [] : [sectionOf(heading, own)]
  })
  const page = readFileSync(PAGE, 'utf8')
  const [before, rest = ''] = page.split(BEGIN)
  const after = rest.split(END)[1] ?? '\n'
  const figures = [introductionOf(runs), ...sections].join('\n\n')
  writeFileSync(PAGE, `${before}${BEGIN}\n\n${figures}\n\n${END}${after}`)
}
