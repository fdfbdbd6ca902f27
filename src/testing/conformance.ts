/**
 * The conformance kit, bound to a test runner.
 *
 * @module
 */
import { strict as assert } from 'node:assert'
import { TestContext, SharedClients, type Setup } from './test-context.js'
import { type Alternative, type Case, type Need, lacksOf, visibleOnly } from './case.js'
import { storeCases } from './store-cases.js'

export interface ConformanceOptions {
  /** The store's name in the report of the runner. */
  name: string
  /** Called once, before the first case. */
  open(): Promise<Setup>

  /**
   * The runner's own functions, so that the kit depends on no runner: those of vitest, or of node:test (`before`,
   * `after`).
   */
  describe: (name: string, body: () => void) => unknown
  /** May be `test.concurrent`: cases never use each other's names. */
  test: (name: string, body: () => Promise<void>) => unknown
  beforeAll: (body: () => Promise<void>) => unknown
  afterAll: (body: () => Promise<void>) => unknown

  /**
   * What the store cannot do. The kit then checks what is guaranteed instead, and that the store's members say the
   * same.
   */
  lacks?: readonly Need[]
  /** Cases that do not apply for another reason: the case's name, and why. */
  except?: Readonly<Record<string, string>>
  /** Absent: all cases of the store contract. */
  cases?: readonly Case[]
}

/** Declares one test per case, and one test that names what was left out. */
export function conformance(options: ConformanceOptions): void {
  const { name, lacks = [], except = {}, cases = storeCases() } = options
  const plan = plannedCases(cases, lacks, except)
  options.describe(name, () => {
    let shared: SharedClients | undefined
    options.beforeAll(async () => {
      shared = new SharedClients(await options.open())
    })
    options.afterAll(async () => {
      await shared?.close()
    })
    for (const item of plan.run) options.test(item.name, () => runOn(shared as SharedClients, item))
    options.test(titleOfOmissions(plan.omitted, lacks), async () => {
      const store = await (shared as SharedClients).client(0)
      assert.deepEqual([...visibleOnly(lacks)].sort(), lacksOf(store).sort(), 'the store lacks what it is said to lack')
      const known = new Set(cases.map((item) => item.name))
      const unknown = Object.keys(except).filter((sentence) => !known.has(sentence))
      assert.deepEqual(unknown, [], 'every exception names a case that exists')
    })
  })
}

/**
 * Runs one case without a runner. Rejects if the guarantee is broken. `patienceMs`: how long to wait for what must
 * happen.
 */
export async function runCase(item: Pick<Case, 'run'>, setup: Setup, patienceMs?: number): Promise<void> {
  const shared = new SharedClients(setup, patienceMs)
  try {
    await runOn(shared, item)
  } finally {
    await shared.close()
  }
}

async function runOn(shared: SharedClients, item: Pick<Case, 'run'>): Promise<void> {
  const context = new TestContext(shared, await shared.client(0))
  try {
    await item.run(context)
  } finally {
    await context.clear()
  }
}

interface Plan {
  run: Pick<Case, 'name' | 'run'>[]
  omitted: { name: string; why: string }[]
}

function plannedCases(cases: readonly Case[], lacks: readonly Need[], except: Readonly<Record<string, string>>): Plan {
  const plan: Plan = { run: [], omitted: [] }
  const alternatives = new Set<string>()
  const missingOf = ({ needs = [] }: Alternative): Need[] => needs.filter((need) => lacks.includes(need))
  for (const item of cases) {
    const missing = missingOf(item)
    const exception = except[item.name]
    if (exception !== undefined) plan.omitted.push({ name: item.name, why: exception })
    else if (missing.length === 0) plan.run.push(item)
    else {
      plan.omitted.push({ name: item.name, why: `lacks ${missing.join(', ')}` })
      // Several cases may share one alternative, which runs once.
      const { otherwise } = item
      if (otherwise && missingOf(otherwise).length === 0 && !alternatives.has(otherwise.name)) {
        alternatives.add(otherwise.name)
        plan.run.push(otherwise)
      }
    }
  }
  return plan
}

function titleOfOmissions(omitted: Plan['omitted'], lacks: readonly Need[]): string {
  if (omitted.length === 0 && lacks.length === 0) return 'every case applies to this store'
  const list = omitted.map(({ name, why }) => `\n      - ${name} (${why})`).join('')
  return `${omitted.length} cases do not apply, for the reasons declared:${list}`
}
