import { fork } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build, type Plugin } from 'esbuild'
import { emptyReport, type Order, type Report } from './protocol.js'

const HERE = fileURLToPath(new URL('.', import.meta.url))
const SOURCE = resolve(HERE, '../../src')

/** A small mistake in the sources. */
export interface Edit {
  /** Below src/. */
  file: string
  find: string
  replace: string
}

/** The worker and the library in one file, removed again when `use` is through. `edits` change the library on the way. */
export async function withBundle<T>(edits: readonly Edit[], use: (path: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-simulation-'))
  const outfile = join(folder, 'worker.mjs')
  try {
    await build({
      entryPoints: [join(HERE, 'worker.ts')],
      outfile,
      bundle: true,
      platform: 'node',
      format: 'esm',
      target: 'node20',
      logLevel: 'error',
      plugins: [editing(edits)],
    })
    return await use(outfile)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/**
 * A seed that changes whenever the library or the simulation does: each state of the code is searched where no earlier one was, and one
 * state always gives the same answer.
 */
export function seedOf(bundle: string): number {
  return createHash('sha256').update(readFileSync(bundle)).digest().readUInt32LE() >>> 1
}

function editing(edits: readonly Edit[]): Plugin {
  return {
    name: 'edits',
    setup({ onLoad }) {
      checkEdits(edits)
      onLoad({ filter: /\.ts$/ }, ({ path }) => {
        if (!edits.some(({ file }) => resolve(SOURCE, file) === path)) return undefined
        return { contents: edited(path, edits), loader: 'ts' }
      })
    },
  }
}

/** An edit that changes nothing would be missed, and one that changes two places says little about either. */
export function checkEdits(edits: readonly Edit[]): void {
  for (const { file, find } of edits) {
    const places = readFileSync(resolve(SOURCE, file), 'utf8').split(find).length - 1
    if (places !== 1) throw new Error(`its text is found ${places} times in src/${file}`)
  }
}

function edited(path: string, edits: readonly Edit[]): string {
  let text = readFileSync(path, 'utf8')
  for (const { file, find, replace } of edits) {
    if (resolve(SOURCE, file) === path) text = text.replace(find, () => replace)
  }
  return text
}

/** One worker to its end. */
export function work(bundle: string, order: Order): Promise<Report> {
  return new Promise((settle, reject) => {
    const worker = fork(bundle, [JSON.stringify(order)], { execArgv: ['--no-warnings'] })
    let report: Report | undefined
    worker.on('message', (message) => (report = message as Report))
    worker.on('error', reject)
    worker.on('exit', (code, signal) => {
      if (report) settle(report)
      else if (code === 0) settle(emptyReport())
      else reject(new Error(`a worker ended with ${signal ?? code}: ${JSON.stringify(order)}`))
    })
  })
}

/** All schedules from `from` to `to`, dealt among workers. */
export async function search(
  bundle: string,
  order: Omit<Order, 'task' | 'step'>,
  workers: number = availableParallelism(),
): Promise<Report> {
  const reports = await Promise.all(
    Array.from({ length: workers }, (_, i) =>
      work(bundle, { ...order, task: 'search', from: order.from + i, step: workers }),
    ),
  )
  const sum = emptyReport()
  for (const report of reports) {
    sum.schedules += report.schedules
    sum.cpuMs += report.cpuMs
    sum.events += report.events
    sum.grants += report.grants
    sum.refusals += report.refusals
    sum.passedOn += report.passedOn
    sum.failures.push(...report.failures)
    sum.digest += report.digest
    for (const [name, count] of Object.entries(report.byWorkload))
      sum.byWorkload[name] = (sum.byWorkload[name] ?? 0) + count
  }
  sum.failures.sort((a, b) => a.number - b.number)
  return sum
}
