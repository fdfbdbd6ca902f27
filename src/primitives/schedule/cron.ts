import { Cron } from 'croner'
import { InvalidOptionError } from '../../errors.js'

const SECOND = 1_000
const DAY = 86_400 * SECOND
/** Milliseconds. Two changes of a time zone's offset are further apart than this: within it, equal offsets mean that there was none. */
const CALM_AT_MOST = 7 * DAY
/** One for each minute of a day. An expression with more times is treated as an interval, however it is written. */
const MOST_FIXED_TIMES = 1_440

/** The instants a cron expression names, in epoch milliseconds. It reads no clock. */
export class Ticks {
  readonly #cron: Cron
  readonly #timezone: string
  /** One expression for each time of day; empty if the expression is an interval, or has only one. */
  readonly #times: readonly string[]
  #fixed: readonly Cron[] | undefined
  #format: Intl.DateTimeFormat | undefined

  constructor(expression: string, timezone: string) {
    this.#cron = parse(expression, timezone)
    if (this.#cron.getOnce() !== null) {
      throw new InvalidOptionError('cron', expression, 'a cron expression, not a date')
    }
    if (this.#cron.nextRun() === null) {
      throw new InvalidOptionError('cron', expression, 'a cron expression that is due at some time')
    }
    this.#timezone = timezone
    this.#times = fixedTimes(expression)
  }

  /** The first after this time. Undefined: there will be none. */
  after(time: number): number | undefined {
    const from = new Date(time)
    const next = this.#cron.nextRun(from)?.getTime()
    if (this.#times.length === 0 || this.#isCalm(time, next)) return next
    return least(this.#each().map((cron) => cron.nextRun(from)?.getTime()))
  }

  /** The last up to this time. */
  upTo(time: number): number | undefined {
    const beforeNextSecond = new Date((Math.floor(time / SECOND) + 1) * SECOND)
    const last = this.#cron.previousRuns(1, beforeNextSecond)[0]?.getTime()
    if (this.#times.length === 0 || this.#isCalm(last, time)) return last
    const all = this.#each().map((cron) => cron.previousRuns(1, beforeNextSecond)[0]?.getTime())
    const latest = least(all.map((one) => one && -one))
    return latest && -latest
  }

  /** Whether clocks are surely not changed from a day before the one to a day after the other. */
  #isCalm(from: number | undefined, to: number | undefined): boolean {
    if (from === undefined || to === undefined || to - from > CALM_AT_MOST) return false
    return this.#offset(from - DAY) === this.#offset(to + DAY)
  }

  #offset(time: number): string | undefined {
    this.#format ??= new Intl.DateTimeFormat('en', { timeZone: this.#timezone, timeZoneName: 'longOffset' })
    return this.#format.formatToParts(time).find(({ type }) => type === 'timeZoneName')?.value
  }

  /** Croner takes an expression for a fixed time only if it names one: "30 2,14" would run 02:30 twice, or not at all. */
  #each(): readonly Cron[] {
    this.#fixed ??= this.#times.map((expression) => parse(expression, this.#timezone))
    return this.#fixed
  }
}

function least(times: readonly (number | undefined)[]): number | undefined {
  const known = times.filter((time) => time !== undefined)
  return known.length === 0 ? undefined : Math.min(...known)
}

/** "30 2,14 * * *" is two fixed times of day. Anything with a star, a step or a range is an interval. */
function fixedTimes(expression: string): string[] {
  const fields = expression.trim().split(/\s+/)
  const ofDay = fields.length === 5 ? 2 : 3
  const lists = fields.slice(0, ofDay)
  if (fields.length < 5 || !lists.every((field) => /^\d+(,\d+)*$/.test(field))) return []
  const rest = fields.slice(ofDay).join(' ')
  let times = ['']
  for (const list of lists) {
    times = times.flatMap((time) => [...new Set(list.split(','))].map((value) => `${time}${value} `))
    if (times.length > MOST_FIXED_TIMES) return []
  }
  return times.length === 1 ? [] : times.map((time) => `${time}${rest}`)
}

function parse(expression: string, timezone: string): Cron {
  const takes = 'a cron expression of 5 fields, or of 6 with seconds first'
  if (typeof expression !== 'string') throw new InvalidOptionError('cron', expression, takes)
  try {
    new Intl.DateTimeFormat('en', { timeZone: timezone })
  } catch {
    throw new InvalidOptionError('timezone', timezone, 'the name of a time zone, such as "Europe/Berlin"')
  }
  // Croner would take a seventh for years.
  if (expression.trim().split(/\s+/).length > 6) {
    throw new InvalidOptionError('cron', expression, `${takes}; there is no field for years`)
  }
  try {
    return new Cron(expression, { timezone })
  } catch (error) {
    throw new InvalidOptionError('cron', expression, `${takes} (${error instanceof Error ? error.message : error})`)
  }
}
