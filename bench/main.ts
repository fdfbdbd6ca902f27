import { writeFileSync } from 'node:fs'
import { cpus, release, totalmem, type } from 'node:os'
import { ensureBuilt } from '../scripts/build.mjs'
import { badUsage, commandLine } from '../testbed/command-line.js'
import { ROOT } from '../testbed/programs.js'
import { buildCommit, distOf, git, translateBench } from './harness/builds.js'
import { measure, type MeasureOptions } from './harness/measure.js'
import { draw } from './harness/page.js'
import { ensurePeers } from './harness/peers.js'
import { textOf } from './harness/report.js'
import { jsonOf, type RunResult } from './harness/result.js'
import type { Scenario } from './harness/types.js'
import { scenarios } from './scenarios/index.js'

const USAGE = `npm run bench [-- scenario…] [--against <commit>] [--calm] [--seconds N] [--no-peers] [--json FILE]
npm run bench -- --list
npm run bench -- --draw FILE…      the charts and the table of docs/performance.md

bench/README.md says what each option does.`
/** No scenario begins later: with the longest one, a run ends within 25 minutes. */
const LAST_START_MS = 22 * 60_000

function fail(message: string): never {
  return badUsage(message, USAGE)
}

/** A word selects the scenario of that name, or all whose names begin with it. */
function select(words: readonly string[]): Scenario[] {
  if (words.length === 0) return [...scenarios]
  const chosen = new Set<Scenario>()
  for (const word of words) {
    const found = scenarios.filter(({ name }) => name === word || name.startsWith(`${word}-`))
    if (found.length === 0) fail(`unknown scenario "${word}" (known: ${scenarios.map(({ name }) => name).join(', ')})`)
    for (const scenario of found) chosen.add(scenario)
  }
  return [...chosen]
}

function secondsFrom(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  const seconds = Number(text)
  return seconds > 0 && seconds <= 150 ? seconds : fail(`--seconds "${text}" (expected a number from 0 to 150)`)
}

function describeRun(calm: boolean, against: string | undefined): RunResult {
  return {
    version: 1,
    startedAt: new Date().toISOString(),
    commit: git('rev-parse', '--short', 'HEAD'),
    dirty: git('status', '--porcelain', '--', 'src') !== '',
    ...(against === undefined ? {} : { against }),
    calm,
    machine: {
      cores: cpus().length,
      processor: cpus()[0]?.model.trim() ?? 'unknown',
      memoryGb: Math.round(totalmem() / 2 ** 30),
      system: `${type()} ${release()}`,
      node: process.version,
    },
    scenarios: [],
    skipped: [],
  }
}

async function main(): Promise<void> {
  const { values, positionals } = commandLine(USAGE, {
    allowPositionals: true,
    options: {
      against: { type: 'string' },
      calm: { type: 'boolean', default: false },
      draw: { type: 'boolean', default: false },
      json: { type: 'string' },
      list: { type: 'boolean', default: false },
      'no-peers': { type: 'boolean', default: false },
      seconds: { type: 'string' },
    },
  })
  if (values.draw) return draw(positionals)
  const chosen = select(positionals)
  if (values.list) {
    for (const { name, title } of chosen) console.log(`${name.padEnd(28)} ${title}`)
    return
  }
  const seconds = secondsFrom(values.seconds)
  ensureBuilt()
  const peers = values['no-peers'] ? undefined : ensurePeers()
  const against = values.against === undefined ? undefined : buildCommit(values.against)
  const { program } = translateBench()
  const builds = [{ label: 'leasehold', url: distOf(ROOT) }, ...(against ? [against] : [])]
  const options: MeasureOptions = { program, builds, peers, seconds, calm: values.calm }
  const result = describeRun(values.calm, against?.label)
  // After each scenario: a run that is interrupted keeps what it has.
  const save = (): void => {
    if (values.json !== undefined) writeFileSync(values.json, jsonOf(result))
  }
  let failed = false
  for (const scenario of chosen) {
    const late = performance.now() > LAST_START_MS ? 'out of time: run it by its name' : undefined
    const reason = scenario.unavailable?.() ?? late
    if (reason !== undefined) {
      console.log(`\n${scenario.name}: ${reason}`)
      result.skipped.push({ name: scenario.name, reason })
      save()
      continue
    }
    const found = await measure(scenario, options)
    result.scenarios.push(found)
    console.log(textOf(found))
    failed ||= found.libraries.some(({ kind, failure }) => kind !== 'peer' && failure !== undefined)
    save()
  }
  process.exitCode = failed ? 1 : 0
}

await main()
process.exit()
