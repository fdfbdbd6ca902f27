import type { Violation } from './judge.js'

/** What a worker is told to do. */
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
  failures: Failure[]
  byWorkload: Record<string, number>
  /** Of everything that happened, if asked for. */
  digest: string
}
