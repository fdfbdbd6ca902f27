import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startChild } from '../../../testbed/children.js'
import type { Proving } from '../proving.js'
import type { SharedStore } from './stores.js'

const WITH_LOCKS = new URL('../../../testbed/children/with-locks.child.ts', import.meta.url)
const PROCESSES = 8
const CALLS = 1_000
/** LONGEST_MS: a deadlock would last until the processes give up, after two minutes. */
const LONGEST_MS = 60_000

interface Report {
  calls: number
  overlaps: number
  waited: number
}

/** `withLocks` over random subsets of eight names from eight processes. */
export async function severalNames(p: Proving, { name, url }: SharedStore): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'leasehold-prove-'))
  const began = performance.now()
  const children = Array.from({ length: PROCESSES }, (_, i) =>
    startChild<Report>(WITH_LOCKS, [url, folder, String(CALLS / PROCESSES), String(p.seed * PROCESSES + i)]),
  )
  const outcome = Promise.all(children.map((child) => child.next())).catch((error: Error) => error.message)
  const reports = await Promise.race([outcome, sleep(LONGEST_MS, `not done after ${LONGEST_MS / 1_000} s`)])
  for (const child of children) child.kill('SIGKILL')
  await Promise.all(children.map((child) => child.ended))
  rmSync(folder, { recursive: true, force: true })
  const label = `${name}: ${CALLS} withLocks calls over subsets of 8 names from ${PROCESSES} processes: no deadlock, no overlap`
  if (typeof reports === 'string') return p.check(label, false, reports)
  const sum = (of: (report: Report) => number): number => reports.reduce((total, report) => total + of(report), 0)
  const [calls, overlaps] = [sum((report) => report.calls), sum((report) => report.overlaps)]
  const seconds = ((performance.now() - began) / 1_000).toFixed(1)
  const longest = Math.max(...reports.map(({ waited }) => waited))
  p.check(
    label,
    calls === CALLS && overlaps === 0,
    `${calls} calls, ${overlaps} overlaps, longest wait ${longest} ms, ${seconds} s with starting`,
  )
}
