import type { Violation } from './judge.js'

/** The task of a worker. */
export interface Order {
  task: 'search' | 'show'
  seed: number
  from: number
  to: number
  step: number
  seconds?: number | undefined
  only?: string | undefined
  /** Only on this kind of store. */
  shape?: string | undefined
  /** Violations of other rules do not count. */
  rules?: string[] | undefined
  /** After this many failures a worker has seen enough. */
  stopAfter?: number | undefined
  /** Put a digest of every event into the report. */
  digest?: boolean | undefined
  /** Shrink to this rule. */
  rule?: string | undefined
  /** Do not shrink. */
  whole?: boolean | undefined
}

/** A schedule in which promises were broken: the first violation of each rule. */
export interface Failure {
  number: number
  workload: string
  shape: string
  calm: boolean
  violations: Violation[]
}

/** What a worker has seen. */
export interface Report {
  schedules: number
  /** Of the processor, in milliseconds. */
  cpuMs: number
  events: number
  grants: number
  refusals: number
  /** Locks that were passed on inside a process. */
  passedOn: number
  failures: Failure[]
  byWorkload: Record<string, number>
  /** Of everything that happened, if asked for. */
  digest: string
}

/** The report before the first schedule. */
export function emptyReport(): Report {
  return {
    schedules: 0,
    cpuMs: 0,
    events: 0,
    grants: 0,
    refusals: 0,
    passedOn: 0,
    failures: [],
    byWorkload: {},
    digest: '',
  }
}
