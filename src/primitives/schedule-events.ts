import type { LeaseholdError, LockLostError } from '../errors.js'
import { checkListener } from '../util/options.js'

/** What every event about one tick carries. */
export interface TickFacts {
  /** Of the schedule. */
  name: string
  /** When it was due. */
  tick: Date
}

/** What every event about one run carries. */
export interface RunFacts extends TickFacts {
  /** Who runs it. */
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
  /** Nobody could start these in time: `tick` is the last of them. */
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

type Listener<E extends keyof ScheduleEvents> = (facts: ScheduleEvents[E]) => void

/** Tells whoever listens; a listener's own mistake ends no schedule. */
export class ScheduleBell {
  readonly #listeners = new Map<keyof ScheduleEvents, Set<(facts: never) => void>>()

  on<E extends keyof ScheduleEvents>(event: E, listener: Listener<E>): void {
    checkListener(event, listener, Object.keys(EVENTS))
    const listeners = this.#listeners.get(event) ?? new Set()
    this.#listeners.set(event, listeners.add(listener))
  }

  off<E extends keyof ScheduleEvents>(event: E, listener: Listener<E>): void {
    checkListener(event, listener, Object.keys(EVENTS))
    this.#listeners.get(event)?.delete(listener)
  }

  ring<E extends keyof ScheduleEvents>(event: E, facts: ScheduleEvents[E]): void {
    const listeners = [...(this.#listeners.get(event) ?? [])] as Listener<E>[]
    if (event === 'failed' && listeners.length === 0) warn((facts as ScheduleEvents['failed']).error)
    for (const listener of listeners) {
      try {
        listener(facts)
      } catch (error) {
        warn(error)
      }
    }
  }
}

function warn(error: unknown): void {
  process.emitWarning(error instanceof Error ? error : String(error), 'LeaseholdScheduleWarning')
}
