import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { chartOf } from '../../bench/harness/chart.js'
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
