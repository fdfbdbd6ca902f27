import { Cron } from 'croner'
import { InvalidOptionError } from '../errors.js'

const SECOND = 1_000

/** The instants a cron expression names, in epoch milliseconds. Whose clock says that one has come is not its concern. */
export class Ticks {
  readonly #cron: Cron

  constructor(expression: string, timezone: string) {
    this.#cron = parse(expression, timezone)
    if (this.#cron.getOnce() !== null) {
      throw new InvalidOptionError('cron', expression, 'a cron expression, not a date')
    }
    if (this.#cron.nextRun() === null) {
      throw new InvalidOptionError('cron', expression, 'a cron expression that is due at some time')
    }
  }

  /** The first after this time. Undefined: there will be none. */
  after(time: number): number | undefined {
    return this.#cron.nextRun(new Date(time))?.getTime()
  }

  /** The last up to this time. */
  upTo(time: number): number | undefined {
    const beforeNextSecond = new Date((Math.floor(time / SECOND) + 1) * SECOND)
    return this.#cron.previousRuns(1, beforeNextSecond)[0]?.getTime()
  }
}

function parse(expression: string, timezone: string): Cron {
  const takes = 'a cron expression of 5 fields, or of 6 with seconds first'
  if (typeof expression !== 'string') throw new InvalidOptionError('cron', expression, takes)
  try {
    new Intl.DateTimeFormat('en', { timeZone: timezone })
  } catch {
    throw new InvalidOptionError('timezone', timezone, 'the name of a time zone, such as "Europe/Berlin"')
  }
  try {
    return new Cron(expression, { timezone })
  } catch (error) {
    throw new InvalidOptionError('cron', expression, `${takes} (${error instanceof Error ? error.message : error})`)
  }
}
