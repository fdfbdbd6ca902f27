import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { chartOf } from '../../bench/harness/chart.js'
import { mergeRuns, slowerRows } from '../../bench/harness/merge.js'
import type { LibraryResult, RunResult, ScenarioResult } from '../../bench/harness/result.js'
import { ensureBuilt } from '../../scripts/build.mjs'
import { ROOT } from '../../testbed/programs.js'

const run = promisify(execFile)
const folder = mkdtempSync(join(tmpdir(), 'leasehold-bench-test-'))
const file = join(folder, 'result.json')
let result: RunResult
let text: string

beforeAll(async () => {
  ensureBuilt()
  const args = ['--import', 'tsx', 'bench/main.ts', 'harness', 'memory-lock']
  const { stdout } = await run(process.execPath, [...args, '--no-peers', '--seconds', '1', '--json', file], {
    cwd: ROOT,
    timeout: 110_000,
  })
  text = stdout
  result = JSON.parse(readFileSync(file, 'utf8')) as RunResult
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

const scenarioOf = (name: string): ScenarioResult =>
  result.scenarios.find((each) => each.name === name) as ScenarioResult
const libraryOf = (scenario: string, name: string): LibraryResult =>
  scenarioOf(scenario).libraries.find((each) => each.name === name) as LibraryResult

describe('a run of the benchmark', () => {
  test('writes the documented JSON', () => {
    expect(result.version).toBe(1)
    expect(result.commit).toMatch(/^[0-9a-f]{7,}$/)
    expect(result.machine.cores).toBeGreaterThan(0)
    expect(result.scenarios.map(({ name }) => name)).toEqual(['harness', 'memory-lock'])
    for (const { metrics, libraries } of result.scenarios) {
      for (const { name } of metrics) {
        for (const library of libraries) {
          const { rounds, median, min, max, ratio } = library.metrics[name] as LibraryResult['metrics'][string]
          expect(rounds.length).toBeGreaterThanOrEqual(3)
          expect(min).toBeGreaterThan(0)
          expect(median).toBeGreaterThanOrEqual(min)
          expect(max).toBeGreaterThanOrEqual(median)
          expect(ratio?.rounds).toHaveLength(rounds.length)
        }
      }
    }
  })

  test('compares the library with the floor of the same round', () => {
    const [floor, ours] = [libraryOf('memory-lock', 'keyed FIFO'), libraryOf('memory-lock', 'leasehold')]
    const metric = 'locks per second'
    const expected = (ours.metrics[metric]?.rounds ?? []).map(
      (rate, i) => rate / (floor.metrics[metric]?.rounds[i] ?? 0),
    )
    expect(expected.length).toBeGreaterThanOrEqual(3)
    for (const [i, ratio] of expected.entries()) expect(ours.metrics[metric]?.ratio?.rounds[i]).toBeCloseTo(ratio, 2)
    expect(ours.metrics[metric]?.comparedWith?.['keyed FIFO']?.median).toBe(ours.metrics[metric]?.ratio?.median)
  })

  test('shows ten times the work as slower than the same work', () => {
    const ratio = (name: string): number =>
      libraryOf('harness', name).metrics['cycles per second']?.ratio?.median as number
    expect(ratio('ten times the work')).toBeLessThan(0.5)
    expect(ratio('ten times the work')).toBeLessThan(0.5 * ratio('keyed FIFO again'))
  })

  test('prints a line for every library and leaves peers out if asked to', () => {
    expect(text).toContain('ten times the work')
    expect(text).toMatch(/leasehold +[\d,]+ \/s +\d+\.\d+x/)
    expect(text).not.toContain('async-lock')
  })

  test('can be drawn: one bar for each library', () => {
    const svg = chartOf(scenarioOf('harness'))
    expect(svg.match(/<rect /g)).toHaveLength(3)
    expect(svg).toContain('prefers-color-scheme: dark')
  })
})

test('the benchmark refuses a scenario that it does not know, and says which there are', async () => {
  const failure = await run(process.execPath, ['--import', 'tsx', 'bench/main.ts', 'memmory'], { cwd: ROOT }).catch(
    (error: { code: number; stderr: string }) => error,
  )
  expect(failure).toMatchObject({ code: 64 })
  expect((failure as { stderr: string }).stderr).toContain('unknown scenario "memmory" (known: harness, redis-serial')
})

describe('several runs of a scenario', () => {
  const metrics = [{ name: 'time', unit: 'µs', better: 'lower' as const }]
  const runOf = (time: number, ratio: number, compared: number): ScenarioResult => {
    const spread = (value: number) => ({ median: value, min: value / 2, max: value * 2, rounds: [value] })
    const time1 = { ...spread(time), ratio: spread(ratio), comparedWith: { 'leasehold@abc': spread(compared) } }
    const libraries: LibraryResult[] = [{ name: 'leasehold', kind: 'ours', metrics: { time: time1 } }]
    return { name: 'one', title: 'one', metrics, processorUseBefore: 0.01, seconds: 1, libraries }
  }

  test('become the median of the runs, with the smallest and the largest of them', () => {
    const merged = mergeRuns([runOf(10, 1.1, 1), runOf(30, 1.5, 0.9), runOf(20, 1.2, 1.2)])
    const found = merged.libraries[0]?.metrics['time']
    expect(found).toMatchObject({ median: 20, min: 10, max: 30, rounds: [10, 30, 20] })
    expect(found?.ratio).toMatchObject({ median: 1.2, min: 1.1, max: 1.5 })
    expect(found?.comparedWith?.['leasehold@abc']).toEqual({ median: 1, min: 0.9, max: 1.2 })
  })

  test('are slower than before only if every run is, by more than a twentieth', () => {
    expect(slowerRows(mergeRuns([runOf(10, 1, 1.2), runOf(10, 1, 1.04), runOf(10, 1, 1.3)]))).toEqual([])
    const all = slowerRows(mergeRuns([runOf(10, 1, 1.2), runOf(10, 1, 1.06), runOf(10, 1, 1.3)]))
    expect(all).toEqual(['one, time: 1.20x of leasehold@abc'])
  })
})
