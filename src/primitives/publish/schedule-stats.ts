import { onAbort } from '../../core/abort-fanout.js'
import { reasonOf } from '../../util/reason.js'
import { redact } from '../../util/redact.js'
import type { ScheduleEvents } from '../schedule/events.js'
import type { Schedule } from '../schedule/schedule.js'
import type { PublishedSchedule } from './stats.js'

/** LONGEST_ERROR: characters of the message of a job that failed. */
const LONGEST_ERROR = 200

/** What one schedule did last, and when it is due next. */
export class ScheduleStats {
  readonly #schedule: Schedule
  readonly #terms: { cron: string; timezone: string | undefined }
  #last: PublishedSchedule['last']

  constructor(
    schedule: Schedule,
    terms: { cron: string; timezone: string | undefined; changed: () => void; ended: () => void },
  ) {
    this.#schedule = schedule
    this.#terms = terms
    schedule.observe((event, facts) => {
      if (this.#note(event, facts)) terms.changed()
    })
    onAbort(schedule.stopping, () => {
      terms.ended()
      terms.changed()
    })
  }

  /** Whether there is something new to say. */
  #note(event: keyof ScheduleEvents, facts: ScheduleEvents[keyof ScheduleEvents]): boolean {
    if (event === 'error' || !('tick' in facts) || facts.tick === undefined) return false
    const tick = facts.tick.getTime()
    if (this.#last && tick < this.#last.tick) return false
    const { tookMs, error, reason } = facts as { tookMs?: number; error?: unknown; reason?: string }
    const message = error === undefined ? undefined : messageOf(error)
    this.#last = { tick, outcome: reason === undefined ? event : `${event}: ${reason}`, tookMs, error: message }
    return true
  }

  snapshot(): PublishedSchedule {
    const { cron, timezone } = this.#terms
    const [next] = this.#schedule.next()
    return { name: this.#schedule.name, cron, timezone, next: next?.getTime(), last: this.#last }
  }
}

function messageOf(error: unknown): string {
  return redact(reasonOf(error)).slice(0, LONGEST_ERROR)
}
