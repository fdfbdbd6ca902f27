import { flagFrom } from '../../core/options.js'
import { InvalidOptionError } from '../../errors.js'
import { type Duration, milliseconds } from '../../util/duration.js'
import { knownOptions } from '../../util/options.js'

/** Options of `locks.schedule`. */
export interface ScheduleOptions {
  /** Of the cron expression, such as `Europe/Berlin`. Default UTC, so that all machines mean the same. */
  timezone?: string | undefined
  /** An instance that dies while it runs the job blocks the next run for at most this long. */
  ttl?: Duration | undefined
  /** Start nothing else for so long after a start, however short the job was. */
  holdAtLeast?: Duration | undefined
  /** A job that takes longer is given up: its signal aborts, and the next tick may start. */
  maxHold?: Duration | undefined
  /** The instance died while it ran the job. `skip` (the default): wait for the next tick. `retry`: another one runs it again. */
  onCrash?: 'skip' | 'retry' | undefined
  /** No instance was there when it was due. `skip` (the default), or `once`: run it when one is, for the latest tick only. */
  missed?: 'skip' | 'once' | undefined
  /**
   * Whose clock says that a tick is due. `store` (the default): all instances go by one clock. `local`: each by its own, so that a
   * tick starts when the first instance thinks it is due; it still starts at most once. For stores without a clock, such as etcd.
   */
  clock?: 'store' | 'local' | undefined
  /** True: the process may exit although the schedule runs. Default false. */
  unref?: boolean | undefined
  /** The job of an earlier tick still runs. `skip` (the default) this tick, or `wait` for it to end. */
  overlap?: 'skip' | 'wait' | undefined
}

/** Checked and complete. */
export interface ScheduleTerms {
  timezone: string
  holdAtLeastMs: number
  retries: boolean
  catchesUp: boolean
  waits: boolean
  localClock: boolean
  unref: boolean
}

const KNOWN = ['timezone', 'ttl', 'holdAtLeast', 'maxHold', 'onCrash', 'missed', 'overlap', 'clock', 'unref']

export function termsFrom(options: ScheduleOptions): ScheduleTerms {
  const {
    timezone = 'UTC',
    holdAtLeast = 0,
    maxHold,
    onCrash,
    missed,
    overlap,
    clock,
    unref = false,
  } = knownOptions(options, KNOWN)
  if (typeof timezone !== 'string') throw new InvalidOptionError('timezone', timezone, 'a name such as "Europe/Berlin"')
  const holdAtLeastMs = milliseconds('holdAtLeast', holdAtLeast)
  if (maxHold !== undefined && holdAtLeastMs > milliseconds('maxHold', maxHold)) {
    throw new InvalidOptionError('holdAtLeast', holdAtLeast, 'no more than maxHold')
  }
  return {
    timezone,
    holdAtLeastMs,
    retries: oneOf('onCrash', onCrash, 'skip', 'retry'),
    catchesUp: oneOf('missed', missed, 'skip', 'once'),
    waits: oneOf('overlap', overlap, 'skip', 'wait'),
    localClock: oneOf('clock', clock, 'store', 'local'),
    unref: flagFrom('unref', unref),
  }
}

/** Whether it is the second, and not the first, which is the default. */
function oneOf(option: string, value: unknown, usual: string, other: string): boolean {
  if (value === other) return true
  if (value === undefined || value === usual) return false
  throw new InvalidOptionError(option, value, `'${usual}' or '${other}'`)
}
