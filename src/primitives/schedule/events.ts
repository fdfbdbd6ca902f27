import type { LeaseholdError, LockLostError } from '../../errors.js'
import { Emitter } from '../../core/emitter.js'

/** What every event about one tick carries. */
export interface TickFacts {
  /** Of the schedule. */
  name: string
  /** When it was due. */
  tick: Date
}

/** What every event about one run carries. */
export interface RunFacts extends TickFacts {
  /** The holder id of the instance that runs it. */
  holder: string
  /** Larger than that of every earlier run of this schedule. */
  fencingToken: bigint
  /** How long after the tick it started. */
  lateMs: number
  /** Another instance began it and died. */
  retried: boolean
}

/** The events of `schedule.on(…)`, each with its facts. */
export interface ScheduleEvents {
  started: RunFacts
  finished: RunFacts & { tookMs: number }
  /** The job threw. Without a listener it becomes a process warning, so that it is not lost. */
  failed: RunFacts & { tookMs: number; error: unknown }
  /** The job still runs, but may no longer be the only one. Its signal has aborted. */
  lost: RunFacts & { error: LockLostError }
  /** This instance had the tick and did not start it: an earlier run went on, or `stop()` was called. */
  skipped: TickFacts & { reason: 'overlap' | 'stopped' }
  /** Another instance has, or had, this tick. */
  elsewhere: TickFacts
  /** No instance started these ticks in time: `tick` is the last of them. */
  missed: TickFacts & { first: Date }
  /** The store did not answer. It is asked again. */
  error: { name: string; tick: Date | undefined; error: LeaseholdError | Error }
}

/** All there are: `on` refuses anything else. */
const EVENTS: Record<keyof ScheduleEvents, true> = {
  started: true,
  finished: true,
  failed: true,
  lost: true,
  skipped: true,
  elsewhere: true,
  missed: true,
  error: true,
}

/** The events of one schedule. */
export class ScheduleEmitter extends Emitter<ScheduleEvents> {
  /** Sees every event, and is no listener: a failed job still becomes a warning if nobody listens. */
  observer: (<E extends keyof ScheduleEvents>(event: E, facts: ScheduleEvents[E]) => void) | undefined

  constructor() {
    super(EVENTS, 'LeaseholdScheduleWarning')
  }

  override notify<E extends keyof ScheduleEvents>(event: E, facts: ScheduleEvents[E]): void {
    if (event === 'failed' && !this.has('failed')) this.warn((facts as ScheduleEvents['failed']).error)
    this.observer?.(event, facts)
    super.notify(event, facts)
  }
}
