import { expect, test } from 'vitest'
import { memory, type ScheduledRun, type ScheduleOptions } from '../../../src/index.js'
import { Locks } from '../../../src/locks.js'
import type { Schedule } from '../../../src/primitives/schedule/schedule.js'
import type { ScheduleEvents } from '../../../src/primitives/schedule/events.js'
import type { Store } from '../../../src/store.js'
import { type Fault, type FaultyStore, faulty } from '../../../src/testing/index.js'
import { ScheduleWorld } from './schedule-world.js'

/** Instances of one schedule on one store, in virtual time. */
class Fleet {
  readonly world: ScheduleWorld
  readonly store: FaultyStore
  readonly runs: string[] = []
  readonly told: [keyof ScheduleEvents, string][] = []
  job: (run: ScheduledRun) => unknown = () => {}

  constructor(start: string) {
    this.world = new ScheduleWorld(start)
    // Not memory() itself, which answers at once: the clock of the store is not that of the instances.
    this.store = faulty(memory({ world: this.world }), [], { world: this.world })
  }

  /** Adds an instance whose clock is wrong by this much. */
  join(
    cron: string,
    options: ScheduleOptions = {},
    skewMs = 0,
    store: Store = this.store,
  ): Schedule & { locks: Locks } {
    const locks = new Locks(store, {}, this.world.skewed(skewMs))
    const schedule = locks.schedule(
      'job',
      cron,
      async (run) => {
        this.runs.push(run.tick.toISOString().slice(0, 19))
        await this.job(run)
      },
      options,
    )
    for (const event of ['started', 'finished', 'failed', 'lost', 'skipped', 'elsewhere', 'missed', 'error'] as const) {
      schedule.on(event, (facts) => this.told.push([event, facts.tick?.toISOString().slice(11, 19) ?? '']))
    }
    return Object.assign(schedule, { locks })
  }

  pause(ms: number): Promise<void> {
    return new Promise((resolve) => this.world.after(ms, resolve))
  }

  heard(event: keyof ScheduleEvents): string[] {
    return this.told.filter(([name]) => name === event).map(([, tick]) => tick)
  }
}

test('a schedule runs at the times of the expression, in its time zone, also where the clocks are set back', async () => {
  const fleet = new Fleet('2024-11-01T12:00:00Z')
  const schedule = fleet.join('30 1 * * *', { timezone: 'America/New_York' })
  await fleet.world.settle()
  expect(schedule.next(3).map((date) => date.toISOString())).toEqual([
    '2024-11-02T05:30:00.000Z',
    '2024-11-03T05:30:00.000Z',
    '2024-11-04T06:30:00.000Z',
  ])
  await fleet.world.advanceTo('2024-11-05T12:00:00Z')
  expect(fleet.runs).toEqual([
    '2024-11-02T05:30:00',
    '2024-11-03T05:30:00',
    '2024-11-04T06:30:00',
    '2024-11-05T06:30:00',
  ])
})

test('an hour that happens twice has twice as many ticks, each with a run', async () => {
  const fleet = new Fleet('2024-11-03T05:10:00Z')
  fleet.join('*/30 * * * *', { timezone: 'America/New_York' })
  fleet.join('*/30 * * * *', { timezone: 'America/New_York' })
  await fleet.world.advanceTo('2024-11-03T07:10:00Z')
  expect(fleet.runs.map((tick) => tick.slice(11, 16))).toEqual(['05:30', '06:00', '06:30', '07:00'])
})

test('five instances whose clocks differ by six seconds start each tick once, and not before its time', async () => {
  const fleet = new Fleet('2024-01-01T00:00:00.500Z')
  const early: number[] = []
  fleet.job = async ({ tick }) => {
    if (fleet.world.now() < tick.getTime()) early.push(tick.getTime() - fleet.world.now())
    await fleet.pause(5)
  }
  for (const skew of [-3_000, -1_500, 0, 1_500, 3_000]) fleet.join('* * * * * *', {}, skew)
  await fleet.world.advanceTo('2024-01-01T00:01:00.400Z')
  expect(fleet.runs).toHaveLength(60)
  expect(new Set(fleet.runs).size).toBe(60)
  expect(early).toEqual([])
})

test('an instance that is late for a tick, after a short job has ended, does not run it again', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  fleet.join('* * * * *')
  await fleet.world.advanceTo('2024-01-01T00:00:55Z')
  const slow = faulty(fleet.store, [{ effect: 'delay-call', on: 'acquire', ms: 1_500 }], { world: fleet.world })
  fleet.join('* * * * *', {}, 0, slow)
  await fleet.world.advanceTo('2024-01-01T00:01:30Z')
  expect(fleet.runs).toEqual(['2024-01-01T00:01:00'])
  expect(fleet.heard('elsewhere')).toEqual(['00:01:00'])
})

test('a tick is skipped by default while the job of an earlier one runs on any instance', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  fleet.job = () => fleet.pause(90_000)
  fleet.join('* * * * *')
  fleet.join('* * * * *')
  await fleet.world.advanceTo('2024-01-01T00:05:30Z')
  expect(fleet.runs.map((tick) => tick.slice(14, 16))).toEqual(['01', '03', '05'])
  expect(fleet.heard('skipped')).toEqual(['00:02:00', '00:04:00'])
})

test('a tick may wait for that job to end, and ticks do not pile up behind it', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  const began: number[] = []
  fleet.job = async () => {
    began.push((fleet.world.now() - Date.parse('2024-01-01T00:01:00Z')) / 1_000)
    await fleet.pause(150_000)
  }
  fleet.join('* * * * *', { overlap: 'wait' })
  await fleet.world.advanceTo('2024-01-01T00:06:30Z')
  expect(fleet.runs.map((tick) => tick.slice(14, 16))).toEqual(['01', '02', '04'])
  expect(began.map(Math.round)).toEqual([0, 150, 300])
  expect(fleet.heard('skipped')).toEqual(['00:03:00', '00:05:00'])
})

test('holdAtLeast excludes all instances after a short job', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  fleet.join('* * * * *', { holdAtLeast: '90s' })
  fleet.join('* * * * *', { holdAtLeast: '90s' })
  await fleet.world.advanceTo('2024-01-01T00:05:30Z')
  expect(fleet.runs.map((tick) => tick.slice(14, 16))).toEqual(['01', '03', '05'])
})

test('holdAtLeast outlives an instance that stops meanwhile', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  const first = fleet.join('* * * * *', { holdAtLeast: '90s' })
  await fleet.world.advanceTo('2024-01-01T00:01:10Z')
  await Promise.all([first.stop(), fleet.world.settle()])
  fleet.join('* * * * *', { holdAtLeast: '90s' })
  await fleet.world.advanceTo('2024-01-01T00:03:30Z')
  expect(fleet.runs.map((tick) => tick.slice(14, 16))).toEqual(['01', '03'])
})

test('maxHold ends a job that hangs: its signal aborts, and the next tick starts', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  const signals: AbortSignal[] = []
  fleet.job = ({ signal }) => {
    signals.push(signal)
    return signals.length === 1 ? new Promise(() => {}) : undefined
  }
  fleet.join('* * * * *', { maxHold: '45s' })
  await fleet.world.advanceTo('2024-01-01T00:01:30Z')
  expect(signals[0]?.aborted).toBe(false)
  await fleet.world.advanceTo('2024-01-01T00:02:30Z')
  expect(signals[0]?.aborted).toBe(true)
  expect(fleet.heard('lost')).toEqual(['00:01:00'])
  expect(fleet.runs).toHaveLength(2)
})

/** An instance that can die: no call of it arrives any more. */
function mortalInstance(fleet: Fleet, ...faults: Fault[]): { store: Store; die: () => void } {
  const store = faulty(fleet.store, faults, { world: fleet.world })
  return { store, die: () => void store.inject({ effect: 'lose-call', on: ['acquire', 'renew', 'release', 'now'] }) }
}

test('a tick whose instance crashed is not repeated, and the next one runs', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  const { store, die } = mortalInstance(fleet)
  fleet.job = () => new Promise(() => {})
  fleet.join('* * * * *', { ttl: '20s' }, 0, store)
  await fleet.world.advanceTo('2024-01-01T00:01:01Z')
  die()
  fleet.job = () => {}
  fleet.join('* * * * *', { ttl: '20s' })
  await fleet.world.advanceTo('2024-01-01T00:02:30Z')
  expect(fleet.runs.map((tick) => tick.slice(14, 16))).toEqual(['01', '02'])
})

test('a tick whose instance crashed is run again by exactly one other instance with onCrash retry', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  // The lock of the run lasts longer than the claim of the tick, which another instance gets first.
  const running = (claims: { key: string }[]): boolean => claims.every(({ key }) => !key.includes('@'))
  const { store, die } = mortalInstance(fleet, {
    effect: 'delay-call',
    on: 'acquire',
    ms: 1_500,
    when: running as never,
  })
  const retried: boolean[] = []
  fleet.job = (run) => {
    retried.push(run.retried)
    return retried.length === 1 ? new Promise(() => {}) : undefined
  }
  const options = { ttl: '20s', onCrash: 'retry' } as const
  fleet.join('0 * * * *', options, 0, store)
  await fleet.world.advanceTo('2024-01-01T00:59:00Z')
  fleet.join('0 * * * *', options, 2_000)
  fleet.join('0 * * * *', options, -2_000)
  await fleet.world.advanceTo('2024-01-01T01:00:05Z')
  die()
  await fleet.world.advanceTo('2024-01-01T01:30:00Z')
  expect(fleet.runs).toEqual(['2024-01-01T01:00:00', '2024-01-01T01:00:00'])
  expect(retried).toEqual([false, true])
  await fleet.world.advanceTo('2024-01-01T02:30:00Z')
  expect(fleet.runs.slice(2)).toEqual(['2024-01-01T02:00:00'])
})

test('a job that throws has run: it is reported, and not repeated', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  fleet.job = () => {
    throw new Error('no luck')
  }
  fleet.join('* * * * *', { onCrash: 'retry' })
  fleet.join('* * * * *', { onCrash: 'retry' })
  await fleet.world.advanceTo('2024-01-01T00:01:30Z')
  expect(fleet.runs).toHaveLength(1)
  expect(fleet.heard('failed')).toEqual(['00:01:00'])
})

test('ticks that were due while no instance ran are skipped, or run once', async () => {
  for (const [missed, expected] of [
    ['skip', ['03', '08']],
    ['once', ['03', '07', '08']],
  ] as const) {
    const fleet = new Fleet('2024-01-01T02:30:00Z')
    const first = fleet.join('0 * * * *', { missed })
    await fleet.world.advanceTo('2024-01-01T03:30:00Z')
    await Promise.all([first.stop(), fleet.world.settle()])
    await fleet.world.advanceTo('2024-01-01T07:40:00Z')
    fleet.join('0 * * * *', { missed })
    fleet.join('0 * * * *', { missed })
    await fleet.world.advanceTo('2024-01-01T08:30:00Z')
    expect(fleet.runs.map((tick) => tick.slice(11, 13))).toEqual(expected)
  }
})

test('a new schedule has missed nothing, and one that ran has nothing to catch up', async () => {
  const fleet = new Fleet('2024-01-01T02:30:00Z')
  const first = fleet.join('0 * * * *', { missed: 'once' })
  await fleet.world.advanceTo('2024-01-01T03:30:00Z')
  await Promise.all([first.stop(), fleet.world.settle()])
  fleet.join('0 * * * *', { missed: 'once' })
  await fleet.world.advanceTo('2024-01-01T03:50:00Z')
  expect(fleet.runs).toEqual(['2024-01-01T03:00:00'])
})

test('ticks that were due while the machine slept are missed, or run once', async () => {
  for (const [missed, expected] of [
    ['skip', ['03', '08']],
    ['once', ['03', '07', '08']],
  ] as const) {
    const fleet = new Fleet('2024-01-01T02:30:00Z')
    fleet.join('0 * * * *', { missed })
    await fleet.world.advanceTo('2024-01-01T03:30:00Z')
    await fleet.world.sleepTo('2024-01-01T07:40:00Z')
    await fleet.world.advanceTo('2024-01-01T08:30:00Z')
    expect(fleet.runs.map((tick) => tick.slice(11, 13))).toEqual(expected)
    expect(fleet.heard('missed')).toEqual(['07:00:00'])
  }
})

test('a tick during an outage starts when the store is back soon, and is missed otherwise', async () => {
  const fleet = new Fleet('2024-01-01T00:30:00Z')
  fleet.join('0 * * * *')
  await fleet.world.advanceTo('2024-01-01T00:59:58Z')
  const short = fleet.store.inject({ effect: 'break-call', on: ['acquire', 'now'] })
  await fleet.world.advanceTo('2024-01-01T01:02:00Z')
  short.lift()
  await fleet.world.advanceTo('2024-01-01T01:59:58Z')
  expect(fleet.runs).toEqual(['2024-01-01T01:00:00'])
  expect(fleet.heard('error').length).toBeGreaterThan(0)
  const long = fleet.store.inject({ effect: 'break-call', on: ['acquire', 'now'] })
  await fleet.world.advanceTo('2024-01-01T02:10:00Z')
  long.lift()
  await fleet.world.advanceTo('2024-01-01T03:10:00Z')
  expect(fleet.runs.slice(1)).toEqual(['2024-01-01T03:00:00'])
  expect(fleet.heard('missed')).toEqual(['02:00:00'])
})

test('stop() waits for the running job, starts nothing more, and does not affect the other instances', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  fleet.job = () => fleet.pause(20_000)
  const schedule = fleet.join('* * * * *')
  await fleet.world.advanceTo('2024-01-01T00:01:05Z')
  let stopped = false
  const stopping = schedule.stop().then(() => (stopped = true))
  await fleet.world.advanceTo('2024-01-01T00:01:19Z')
  expect(stopped).toBe(false)
  await fleet.world.advanceTo('2024-01-01T00:01:21Z')
  await stopping
  expect(fleet.heard('finished')).toEqual(['00:01:00'])
  fleet.join('* * * * *')
  await fleet.world.advanceTo('2024-01-01T00:02:30Z')
  expect(fleet.runs).toHaveLength(2)
})

test('a tick that was being claimed when stop() was called still runs', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  const schedule = fleet.join('* * * * *')
  fleet.store.inject({ effect: 'delay-reply', on: 'acquire', ms: 500 })
  await fleet.world.advanceTo('2024-01-01T00:01:00.100Z')
  const stopping = schedule.stop()
  await fleet.world.advanceTo('2024-01-01T00:01:05Z')
  await stopping
  expect(fleet.heard('finished')).toEqual(['00:01:00'])
})

test('close() aborts the job, and schedules nothing more', async () => {
  const fleet = new Fleet('2024-01-01T00:00:30Z')
  fleet.job = ({ signal }) => new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()))
  const { locks } = fleet.join('* * * * *')
  await fleet.world.advanceTo('2024-01-01T00:01:05Z')
  await Promise.all([locks.close(), fleet.world.settle()])
  expect(fleet.heard('finished')).toEqual(['00:01:00'])
  await fleet.world.advanceTo('2024-01-01T00:05:00Z')
  expect(fleet.runs).toHaveLength(1)
  expect(() => locks.schedule('job', '* * * * *', () => {})).toThrow(/close/)
})

test('stop() called by the job itself resolves', async () => {
  const fleet = new Fleet('2024-01-01T00:00:00Z')
  const schedule = fleet.join('* * * * *')
  let stopped = false
  fleet.job = async () => {
    await schedule.stop()
    stopped = true
  }
  await fleet.world.advanceTo('2024-01-01T00:05:00Z')
  expect(stopped).toBe(true)
  expect(fleet.runs).toHaveLength(1)
})

test('a run whose lock was granted and never answered starts, and is not taken for an overlap', async () => {
  const fleet = new Fleet('2024-01-01T00:00:00Z')
  fleet.join('* * * * *')
  await fleet.world.settle()
  const isRun = (claims: readonly { key: string }[]): boolean => claims.every(({ key }) => !key.includes('@'))
  fleet.store.inject({ effect: 'break-reply', on: 'acquire', times: 2, when: isRun as never })
  const outage = fleet.store.inject({ effect: 'break-call', on: 'release' })
  fleet.world.after(62_000, () => outage.lift())
  await fleet.world.advanceTo('2024-01-01T00:02:30Z')
  expect(fleet.heard('skipped')).toEqual([])
  expect(fleet.runs).toEqual(['2024-01-01T00:01:00', '2024-01-01T00:02:00'])
})

test('a tick whose claim was granted and never answered runs on the instance that claimed it', async () => {
  const fleet = new Fleet('2024-01-01T00:00:00Z')
  fleet.join('* * * * *')
  await fleet.world.settle()
  const isTick = (claims: readonly { key: string }[]): boolean => claims.some(({ key }) => key.includes('@'))
  fleet.store.inject({ effect: 'break-reply', on: 'acquire', times: 1, when: isTick as never })
  const outage = fleet.store.inject({ effect: 'break-call', on: 'release' })
  fleet.world.after(65_000, () => outage.lift())
  await fleet.world.advanceTo('2024-01-01T00:01:30Z')
  expect(fleet.heard('elsewhere')).toEqual([])
  expect(fleet.runs).toEqual(['2024-01-01T00:01:00'])
})
