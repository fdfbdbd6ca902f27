// How times, durations and texts of other processes are written.
import { visible } from '../../util/visible.js'

export { visible }

const UNITS = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['min', 60_000],
  ['s', 1_000],
] as const

/** For a time that changes while one looks: `3.2 s`, `41 s`, `2 min 5 s`, `3 h 12 min`. */
export function duration(ms: number): string {
  if (ms < 0) return '0 s'
  if (ms < 10_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`
  const at = UNITS.findIndex(([, size]) => ms >= size)
  const [unit, size] = UNITS[at] as (typeof UNITS)[number]
  const whole = Math.floor(ms / size)
  const next = UNITS[at + 1]
  const rest = next ? Math.floor((ms % size) / next[1]) : 0
  return next && rest > 0 ? `${whole} ${unit} ${rest} ${next[0]}` : `${whole} ${unit}`
}

/** For a figure: `< 1 ms`, `12 ms`, `1.4 s`, `2.1 min`. */
export function figure(ms: number): string {
  if (ms <= 1) return '≤ 1 ms'
  if (ms < 1_000) return `${Math.round(ms)} ms`
  if (ms < 60_000) return `${short(ms / 1_000)} s`
  if (ms < 3_600_000) return `${short(ms / 60_000)} min`
  return `${short(ms / 3_600_000)} h`
}

function short(value: number): string {
  return value < 10 ? value.toFixed(1) : String(Math.round(value))
}

const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  hourCycle: 'h23',
})
const DATE = new Intl.DateTimeFormat(undefined, {
  month: 'short',
  day: 'numeric',
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  hourCycle: 'h23',
})

/** The time of day; with the date if it is another day. */
export function clock(at: number): string {
  const isNear = Math.abs(at - Date.now()) < 12 * 3_600_000
  return (isNear ? CLOCK : DATE).format(at)
}

export function count(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString()} ${n === 1 ? one : many}`
}

export interface HolderParts {
  host: string
  pid: string | undefined
  rest: string
}

/** `host:pid:uuid/7` in parts; whatever else it is, as it is. */
export function holderParts(holder: string): HolderParts {
  const [, host, pid, rest] = /^(.+?):(\d+):([0-9a-f]{8}-[0-9a-f-]{27}(?:\/.*)?)$/.exec(holder) ?? []
  if (host === undefined || pid === undefined || rest === undefined)
    return { host: visible(holder), pid: undefined, rest: '' }
  return { host: visible(host), pid, rest }
}

export function shortHolder(holder: string): string {
  const { host, pid } = holderParts(holder)
  return pid === undefined ? host : `${host} · ${pid}`
}
