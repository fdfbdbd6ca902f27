/**
 * Checks and what they find: the same form for every store.
 *
 * @module
 */
import { MissingPackageError } from '../errors.js'
import { formatDuration } from '../util/duration.js'
import { reasonOf } from '../util/reason.js'
import { redact } from '../util/redact.js'

/**
 * `danger`: locks are lost, are granted twice, or cannot be had at all. `warning`: the same after a crash, a failover or under more
 * load. `note`: slower or less convenient than it could be. `unknown`: the check could not be made.
 */
export type Severity = 'danger' | 'warning' | 'note' | 'unknown'

/** What a check found. */
export interface Defect {
  severity: Severity
  /** Which server, if the store has several. */
  at?: string | undefined
  summary: string
  /** What the server answered. Never a secret. */
  evidence: string
  fix: string
}

/** One defect in the report. */
export interface Finding extends Defect {
  /** The check's. Stable: scripts and `--ignore` name it. */
  id: string
  at: string | undefined
}

/** One thing that breaks locks in practice. */
export interface Check {
  /** `<store>.<word>` */
  id: string
  /** The worst that it can find. A check that cannot be made and could have found danger leaves the store not known to be safe. */
  worst: Exclude<Severity, 'unknown'>
  /** What it looks at, for "could not check …". */
  looksAt: string
  /** A trial of the whole store is of no use, and its error a repetition, once danger was found. */
  skipAfterDanger?: boolean
  /** There is nothing to look at yet. */
  skip?: boolean
  run(): Promise<Defect | readonly Defect[] | undefined>
}

/** A check that was made, or could not be. */
export interface CheckResult {
  id: string
  outcome: 'ok' | 'found' | 'unknown' | 'skipped'
  tookMs: number
}

/** A connection to what is examined, and the checks to make on it. */
export interface Examination {
  /** What answered, such as `Redis 7.0.15`. */
  server: string
  checks: readonly Check[]
  close(): Promise<unknown>
}

/** What the checks depend on beside the store. */
export interface DoctorOptions {
  /** The ttl that the locks have, against which latency is judged, in milliseconds. */
  ttlMs: number
  /** Bounds one check, in milliseconds. */
  timeoutMs: number
  /** Bounds all of them together, in milliseconds. */
  totalMs: number
  /** The clock of this host, in epoch milliseconds. */
  hostNow: () => number
  /** PostgreSQL: a transaction that is older than this many milliseconds counts as one that keeps dead rows. */
  oldTransactionMs: number
  /** IDs of checks that are not made. */
  ignore: readonly string[]
}

export const DEFAULTS: DoctorOptions = {
  ttlMs: 30_000,
  timeoutMs: 5_000,
  totalMs: 25_000,
  hostNow: Date.now,
  oldTransactionMs: 300_000,
  ignore: [],
}

export interface Outcome {
  checks: CheckResult[]
  findings: Finding[]
  safe: boolean
}

/** One after the other, so that none disturbs the latency that another measures. */
export async function runChecks(checks: readonly Check[], options: DoctorOptions): Promise<Outcome> {
  const outcome: Outcome = { checks: [], findings: [], safe: true }
  const deadline = performance.now() + options.totalMs
  for (const check of checks) {
    if (options.ignore.includes(check.id)) continue
    const began = performance.now()
    const result = await runOne(check, outcome, Math.min(options.timeoutMs, deadline - began))
    outcome.checks.push({ id: check.id, outcome: result, tookMs: Math.round(performance.now() - began) })
  }
  return outcome
}

async function runOne(check: Check, outcome: Outcome, timeoutMs: number): Promise<CheckResult['outcome']> {
  const { findings } = outcome
  if (check.skip) return 'skipped'
  if (check.skipAfterDanger && findings.some(({ severity }) => severity === 'danger')) return 'skipped'
  let defects: Defect[]
  try {
    if (timeoutMs <= 0) throw new Error('the checks before it took too long')
    defects = [(await within(timeoutMs, check.run())) ?? []].flat()
  } catch (error) {
    defects = [notMade(check, error)]
  }
  for (const defect of defects) {
    const { severity, at, summary, evidence, fix } = defect
    // Servers and drivers quote what they were given: no sentence leaves without being cleaned.
    const clean = { at: at && redact(at), summary: redact(summary), evidence: redact(evidence), fix: redact(fix) }
    findings.push({ id: check.id, severity, ...clean })
    const unsafe = severity === 'danger' || (severity === 'unknown' && check.worst === 'danger')
    if (unsafe) outcome.safe = false
  }
  if (defects.length === 0) return 'ok'
  return defects.every(({ severity }) => severity === 'unknown') ? 'unknown' : 'found'
}

function notMade(check: Check, error: unknown): Defect {
  return {
    severity: 'unknown',
    summary: `could not check ${check.looksAt}`,
    evidence: reasonOf(error),
    fix:
      error instanceof MissingPackageError
        ? `npm install ${error.packages[0]}`
        : `run doctor as a user that may ask for it, or look yourself and pass --ignore ${check.id}`,
  }
}

/** Rejects after so long. What was asked for goes on, and its answer is dropped. */
export function within<T>(ms: number, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(
      () => reject(new Error(`no answer within ${formatDuration(Math.round(ms))}`)),
      Math.max(ms, 1),
    )
    work.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}
