import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'

/** Tests that wait for processes and servers most of the time, and promise nobody anything within milliseconds. */
const PATIENT = [
  'test/cli/*.test.ts',
  'test/docs/*.test.ts',
  'test/package/newcomer.test.ts',
  'test/oracle/*.test.ts',
  'test/servers/*.test.ts',
  'test/stores/sqlite/processes.test.ts',
  'test/stores/postgres/campaigns.test.ts',
  'test/stores/postgres-advisory/{history,losses}.test.ts',
  'test/stores/redis/sentinel.test.ts',
  'test/stores/redis/{cluster-faults,listening,replicas}.test.ts',
  'test/primitives/http/storm.test.ts',
  'test/primitives/election/processes.test.ts',
]

/** Short files with long suites behind them: on a fresh clone, without timings, the shortest files would come last. */
const LONG = /\/(all|election)\/|conformance[^/]*\.test\.ts$/

/** The longest first, so that at the end nobody waits for one of them. */
class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files)
    const part = (name: string): TestSpecification[] => sorted.filter(({ project }) => project.name === name)
    const long = ({ moduleId }: TestSpecification): boolean => LONG.test(moduleId)
    const prompt = part('prompt').toSorted((a, b) => Number(long(b)) - Number(long(a)))
    return [...spread(part('patient')), ...prompt]
  }
}

/** The oracle keeps the cores busy, so its files are dealt among those that wait. */
function spread(files: readonly TestSpecification[]): TestSpecification[] {
  const busy = files.filter(({ moduleId }) => moduleId.includes('/oracle/'))
  const waiting = files.filter((file) => !busy.includes(file))
  if (busy.length === 0) return waiting
  return busy.flatMap((file, i) => [file, ...waiting.filter((_, at) => at % busy.length === i)])
}

export default defineConfig({
  test: {
    globalSetup: 'scripts/support/programs.ts',
    pool: 'forks',
    testTimeout: 60_000,
    hookTimeout: 120_000,
    passWithNoTests: false,
    sequence: { sequencer: LongestFirst },
    projects: [
      {
        extends: true,
        test: { name: 'patient', include: PATIENT, maxWorkers: 3, sequence: { groupOrder: 0 } },
      },
      {
        extends: true,
        test: {
          name: 'prompt',
          include: ['test/**/*.test.ts'],
          exclude: PATIENT,
          // Real servers and real processes share two cores: with more workers leases of 150 ms on five servers end before they are granted.
          maxWorkers: 2,
          sequence: { groupOrder: 1 },
        },
      },
    ],
  },
})
