/** The days on which clocks are set forward or back, computed independently with Intl, minute by minute. */
import { describe, expect, test } from 'vitest'
import { Ticks } from '../../../src/primitives/schedule/cron.js'

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

describe('30 2,14 * * * in Berlin', () => {
  const ticks = new Ticks('30 2,14 * * *', 'Europe/Berlin')

  test('runs 02:30 once on the day the clocks are set back, at its first occurrence', () => {
    expect(following(ticks, '2026-10-24T20:00:00Z', 3)).toEqual(['10-25T00:30', '10-25T13:30', '10-26T01:30'])
  })

  test('runs 02:30 on the day the clocks are set forward, at 03:00, the first time that exists', () => {
    expect(following(ticks, '2027-03-27T20:00:00Z', 3)).toEqual(['03-28T01:00', '03-28T12:30', '03-29T00:30'])
  })
})

test('fixed times that fall into the same gap are one run, and lists of seconds count as fixed times', () => {
  const half = new Ticks('0,30 2 * * *', 'Europe/Berlin')
  expect(following(half, '2027-03-27T20:00:00Z', 2)).toEqual(['03-28T01:00', '03-29T00:00'])
  const seconds = new Ticks('0,15 30 2 * * *', 'Europe/Berlin')
  expect(following(seconds, '2026-10-24T20:00:00Z', 3)).toEqual(['10-25T00:30', '10-25T00:30', '10-26T01:30'])
})

test('an interval runs at each of its instants', () => {
  const ticks = new Ticks('30 2-3 * * *', 'Europe/Berlin')
  expect(following(ticks, '2026-10-24T20:00:00Z', 3)).toEqual(['10-25T00:30', '10-25T01:30', '10-25T02:30'])
})

const ZONES = ['Europe/Berlin', 'Australia/Lord_Howe', 'America/Havana', 'Pacific/Chatham']
const FIXED = ['30 2,14 * * *', '0 0,12 * * *', '0,15,30 1,2,3 * * *', '15 0,2 * * *', '30 2 * * *', '0 2,3 * * 0']

describe.each(ZONES)('fixed times in %s', (zone) => {
  const changes = changesOf(zone)

  test.each(FIXED)('%s runs once for each time of day, around all changes of a year', (cron) => {
    expect(changes.length).toBeGreaterThan(1)
    const ticks = new Ticks(cron, zone)
    for (const change of changes) {
      const [from, to] = [change - DAY, change + 1.5 * DAY]
      const expected = reckoned(cron, zone, from, to)
      const found: number[] = []
      for (let at = ticks.after(from); at !== undefined && at <= to; at = ticks.after(at)) found.push(at)
      expect(found.map(iso)).toEqual(expected.map(iso))
      // Searching backwards from any moment finds the same ticks.
      for (const [i, tick] of found.entries()) {
        expect(ticks.upTo(tick)).toBe(tick)
        if (i > 0) expect(ticks.upTo(tick - 1)).toBe(found[i - 1])
      }
    }
  })
})

const iso = (time: number): string => new Date(time).toISOString()

function following(ticks: Ticks, from: string, count: number): string[] {
  const found: string[] = []
  for (let at = ticks.after(Date.parse(from)); at !== undefined && found.length < count; at = ticks.after(at)) {
    found.push(iso(at).slice(5, 16))
  }
  return found
}

/** The local time there, as if it were UTC. */
function local(zone: string): (time: number) => number {
  const format = new Intl.DateTimeFormat('en-CA', {
    timeZone: zone,
    hourCycle: 'h23',
    year: 'numeric',
    month: '2-digit',
    day: '2-digit',
    hour: '2-digit',
    minute: '2-digit',
  })
  return (time) => {
    const part = Object.fromEntries(format.formatToParts(time).map(({ type, value }) => [type, Number(value)]))
    return Date.UTC(part.year ?? 0, (part.month ?? 0) - 1, part.day, part.hour, part.minute)
  }
}

function changesOf(zone: string): number[] {
  const shown = local(zone)
  const changes: number[] = []
  for (let time = Date.UTC(2026, 0, 1); time < Date.UTC(2027, 0, 1); time += 30 * MINUTE) {
    if (shown(time + 30 * MINUTE) - shown(time) !== 30 * MINUTE) changes.push(time + 30 * MINUTE)
  }
  return changes
}

/** For each time of day: its first instant, or the end of the gap that it falls into. */
function reckoned(cron: string, zone: string, from: number, to: number): number[] {
  const shown = local(zone)
  const [minutes = [], hours = []] = cron.split(' ').map((field) => field.split(',').map(Number))
  const [, , , , weekday] = cron.split(' ')
  const wanted = (at: number): boolean => {
    const date = new Date(at)
    const day = weekday === '*' || date.getUTCDay() === Number(weekday)
    return day && minutes.includes(date.getUTCMinutes()) && hours.includes(date.getUTCHours())
  }
  const ticks: number[] = []
  let latest = shown(from - DAY)
  for (let time = from - DAY + MINUTE; time <= to; time += MINUTE) {
    const now = shown(time)
    let due = false
    for (let at = latest + MINUTE; at <= now; at += MINUTE) due ||= wanted(at)
    latest = Math.max(latest, now)
    if (due && time > from) ticks.push(time)
  }
  return ticks
}
