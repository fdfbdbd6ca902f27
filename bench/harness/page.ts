// The figures of one or several runs as charts and as the table of docs/performance.md.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT } from '../../testbed/programs.js'
import { chartOf } from './chart.js'
import { mergeRuns, slowerRows } from './merge.js'
import { formatNumber, formatRatio } from './report.js'
import type { LibraryResult, MetricResult, RunResult, ScenarioResult } from './result.js'
import type { Spread } from './statistics.js'
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

const spread = ({ median, min, max }: Spread): string =>
  `${formatRatio(median)} (${formatRatio(min)}–${formatRatio(max)})`

/** The row of an earlier build that stands for the same setting of ours: "leasehold, all five up" is not "leasehold". */
function before(library: LibraryResult, { name }: Metric): string {
  const setting = library.name.slice('leasehold'.length)
  const found = Object.entries(library.metrics[name]?.comparedWith ?? {}).find(
    ([other]) => other.startsWith('leasehold@') && other.replace(/@[^,]*/, '') === `leasehold${setting}`,
  )
  return found ? spread(found[1]) : '–'
}

function rowsOf({ title, metrics, libraries, target }: ScenarioResult): string[] {
  return metrics.flatMap((metric, i) => {
    const ours = libraries.filter(({ kind, name }) => kind === 'ours' && !name.startsWith('leasehold@'))
    return ours.map((library, nth) => {
      const first = i === 0 && nth === 0
      const floor = libraries.find(({ kind }) => kind === 'floor')
      const peer = bestPeer(libraries, metric)
      const what = metrics.length > 1 ? `${first ? `${title}: ` : ''}${metric.name}` : first ? title : ''
      return `| ${[
        what,
        `${library.name === 'leasehold' ? '' : `${library.name}: `}${cell(metric, library.metrics[metric.name], true)}`,
        before(library, metric),
        floor ? `${floor.name}: ${cell(metric, floor.metrics[metric.name], false)}` : '–',
        peer ? `${peer.name}: ${cell(metric, peer.metrics[metric.name], false)}` : '–',
        first ? (target ?? '') : '',
      ].join(' | ')} |`
    })
  })
}

function sectionOf(heading: string, scenarios: readonly ScenarioResult[]): string {
  const titles = ['scenario', 'leasehold (ratio to the floor, spread)', 'through before', 'floor', 'best peer', 'aim']
  const head = `| ${titles.join(' | ')} |\n|${'---|'.repeat(titles.length)}`
  const charts = scenarios.map(({ name, title }) => `![${title}](performance/${name}.svg)`).join('\n\n')
  return `## ${heading}\n\n${head}\n${scenarios.flatMap(rowsOf).join('\n')}\n\n${charts}`
}

function introductionOf(runs: readonly RunResult[]): string {
  const { machine, calm } = runs[0] as RunResult
  const days = [...new Set(runs.map(({ startedAt }) => startedAt.slice(0, 10)))].join(', ')
  const commits = [...new Set(runs.map(({ commit }) => commit))].join(', ')
  const where = `${machine.cores} cores (${machine.processor}), ${machine.memoryGb} GB, Node ${machine.node.slice(1)}, servers on the same machine`
  const busiest = Math.max(...runs.flatMap((run) => run.scenarios.map((each) => each.processorUseBefore)))
  const against = [...new Set(runs.flatMap((run) => run.against?.replace('leasehold@', '') ?? []))].join(', ')
  const command = `npm run bench${against ? ` -- --against ${against}` : ''}${calm ? ' --calm' : ''}`
  return [
    `Measured on ${days} at ${commits} with \`${command}\`: ${where}. Just before a scenario, others used at most ${Math.round(busiest * 100)} % of the processors.`,
    'A scenario that was run several times is shown as the median of its runs, with the smallest and the largest run in brackets; one that was run once, with those of its rounds.',
    ...(against ? [`"Through before" is the figure through that of ${against}, in the same rounds.`] : []),
  ].join('\n')
}

/** Prints the rows that became slower. */
export function draw(files: readonly string[]): void {
  const runs = files.map((file) => JSON.parse(readFileSync(file, 'utf8')) as RunResult)
  const all = runs.flatMap((run) => run.scenarios)
  const scenarios = [...new Set(all.map(({ name }) => name))].map((name) =>
    mergeRuns(all.filter((each) => each.name === name)),
  )
  for (const row of scenarios.flatMap(slowerRows)) console.log(`slower than before in every run: ${row}`)
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
