import { InvalidOptionError } from '../errors.js'

/** Milliseconds, or a number with a unit: `250`, `'250ms'`, `'30s'`, `'5m'`, `'1h'`, `'1.5d'`. */
export type Duration = number | `${number}${'ms' | 's' | 'm' | 'h' | 'd'}`

const UNITS: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/** A century. Anything longer is a mistake, and larger numbers lose their milliseconds. */
const LONGEST = 100 * 366 * 86_400_000

/** The durations that an option accepts, in milliseconds. Without bounds: from 0 to a century. */
export interface DurationRange {
  min?: number
  max?: number
  /** What else the option accepts, for the error message: `"forever"`. */
  or?: string
}

/** Parses strictly: what is not exactly a duration is an error that says so, never a guess. */
export function milliseconds(option: string, value: unknown, range: DurationRange = {}): number {
  const { min = 0, max = LONGEST } = range
  const ms = typeof value === 'number' ? value : typeof value === 'string' ? parse(value) : Number.NaN
  if (ms >= min && ms <= max) return ms
  const bounds =
    max < LONGEST ? `from ${formatDuration(min)} to ${formatDuration(max)}` : `of at least ${formatDuration(min)}`
  const also = range.or ? `, or ${range.or}` : ''
  throw new InvalidOptionError(
    option,
    value,
    `a duration ${bounds} (milliseconds, or like '250ms', '30s', '5m')${also}`,
  )
}

function parse(text: string): number {
  const match = /^(\d{1,15}(?:\.\d{1,6})?)(ms|s|m|h|d)$/.exec(text)
  return match ? Number(match[1]) * (UNITS[match[2] as string] as number) : Number.NaN
}

/** For people: `250ms`, `4.5s`, `2m`, `3h`, `12d`. */
export function formatDuration(ms: number): string {
  for (const [unit, size] of Object.entries(UNITS).toReversed()) {
    if (ms >= size && (unit === 'ms' || ms / size >= 1)) {
      const count = ms / size
      return `${Number.isInteger(count) ? count : count.toFixed(count < 10 ? 1 : 0)}${unit}`
    }
  }
  return `${ms}ms`
}
