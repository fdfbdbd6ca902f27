import { dirname, join, resolve } from 'node:path'
import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'
import { ROOT, translatedSource } from './testbed/programs.js'

/** Tests that wait for processes and servers most of the time, and promise nobody anything within milliseconds. */
const PATIENT = [
  'test/cli/*.test.ts',
  'test/docs/*.test.ts',
  'test/package/newcomer.test.ts',
  'test/oracle/*.test.ts',
  'test/servers/*.test.ts',
  'test/stores/sqlite/processes.test.ts',
  'test/stores/postgres/campaigns.test.ts',
  'test/stores/postgres-advisory/{history,losses,monitoring,server,transaction}.test.ts',
  'test/stores/redis/sentinel.test.ts',
  'test/stores/redis/{cluster,cluster-faults,listening,replicas}.test.ts',
  'test/primitives/http/*.test.ts',
  'test/core/{keep-alive,ownership,presentation,secrets,why-processes}.test.ts',
  'test/stores/{etcd,postgres,redis,redlock}/faults.test.ts',
  'test/stores/etcd/{access,features,old-leader,silence}.test.ts',
  'test/dashboard/{command,stores}.test.ts',
  'test/primitives/election/processes.test.ts',
]

/** Stores whose tests neither wait as long nor have leases as short: a third worker does not disturb them. */
const BRISK = ['test/conformance/*.test.ts', 'test/stores/{postgres,postgres-advisory,redis,sqlite}/*.test.ts']

/**
 * A browser that has to show things within a second, beside the processes that it shows; and the simulation, which takes what they leave of
 * the processors: it runs at the lowest priority, in virtual time.
 */
const LAST = ['test/dashboard/page.test.ts', 'test/simulation/core.test.ts']

/** What takes longest, as far as the size of the file does not tell: on a fresh clone there are no timings to go by. */
const LONG =
  /\/(all|election)\/|\/(conformance[^/]*|cluster[^/]*|newcomer|losses|faults|listening|servers|replicas)\.test\.ts$/

/** The longest first, so that at the end nobody waits for one of them. */
class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files)
    const part = (name: string): TestSpecification[] => sorted.filter(({ project }) => project.name === name)
    const long = ({ moduleId }: TestSpecification): boolean => LONG.test(moduleId)
    const longFirst = (some: readonly TestSpecification[]): TestSpecification[] =>
      some.toSorted((a, b) => Number(long(b)) - Number(long(a)))
    const rest = ['brisk', 'prompt', 'last'].flatMap((name) => longFirst(part(name)))
    return [...spread(longFirst(part('patient'))), ...rest]
  }
}

/** The oracle keeps the cores busy, so its files are dealt among those that wait, which stay in their order. */
function spread(files: readonly TestSpecification[]): TestSpecification[] {
  const isBusy = ({ moduleId }: TestSpecification): boolean => moduleId.includes('/oracle/')
  const busy = files.filter(isBusy)
  const waiting = files.filter((file) => !isBusy(file))
  const gap = Math.ceil(waiting.length / (busy.length + 1))
  return waiting
    .flatMap((file, i) => (i % gap === 0 && busy.length > 0 ? [busy.shift() as TestSpecification, file] : [file]))
    .concat(busy)
}

const SOURCE = join(ROOT, 'src/')

/**
 * Test files load the sources as programs.ts has translated them, and as Node loads them: through vite that takes twice as long, half a
 * second of processor time for each test file.
 */
const translatedSources = {
  name: 'translated-sources',
  enforce: 'pre' as const,
  resolveId(specifier: string, importer: string | undefined): string | undefined {
    if (!importer || !specifier.startsWith('.')) return undefined
    const path = resolve(dirname(importer), specifier)
    return path.startsWith(SOURCE) ? join(translatedSource(), path.slice(SOURCE.length)) : undefined
  },
}

export default defineConfig({
  plugins: [translatedSources],
  test: {
    // The order matters: programs.ts copies what embed.mjs writes.
    globalSetup: ['scripts/embed.mjs', 'testbed/programs.ts'],
    reporters: ['default', './testbed/failed-tests.ts'],
    server: { deps: { external: [/leasehold-programs-/] } },
    pool: 'forks',
    // Cases of one file that mostly wait for leases to end. With 5, the default, a suite of three hundred takes twice as long.
    maxConcurrency: 10,
    // They end tests that hang. A busy machine needs several times as long as usual.
    testTimeout: 180_000,
    hookTimeout: 240_000,
    // The default of one second fails on a machine that stops for longer. A condition that holds earlier costs nothing.
    expect: { poll: { timeout: 30_000 } },
    passWithNoTests: false,
    sequence: { sequencer: LongestFirst },
    projects: [
      {
        extends: true,
        test: { name: 'patient', include: PATIENT, maxWorkers: 6, sequence: { groupOrder: 0 } },
      },
      {
        extends: true,
        test: { name: 'brisk', include: BRISK, exclude: PATIENT, maxWorkers: 3, sequence: { groupOrder: 1 } },
      },
      {
        extends: true,
        test: {
          name: 'prompt',
          include: ['test/**/*.test.ts'],
          exclude: [...PATIENT, ...BRISK, ...LAST],
          // Real servers and real processes share two cores: with more workers leases of 150 ms on five servers end before they are granted.
          maxWorkers: 2,
          sequence: { groupOrder: 2 },
        },
      },
      {
        extends: true,
        test: { name: 'last', include: LAST, maxWorkers: 2, sequence: { groupOrder: 3 } },
      },
    ],
  },
})
