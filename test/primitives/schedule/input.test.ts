import { expect, test } from 'vitest'
import { createLocks, InvalidOptionError, memory, type ScheduleOptions, UnsupportedError } from '../../../src/index.js'
import type { Store } from '../../../src/store.js'

const locks = createLocks(memory())

test.each<[string, string, object]>([
  ['cron', 'every day', {}],
  ['cron', '', {}],
  ['cron', '61 * * * *', {}],
  ['cron', '0 0 30 2 *', {}],
  ['cron', '0 0 2 * * * 2030', {}],
  ['cron', '0 0 2 * * * *', {}],
  ['cron', '2030-01-01T00:00:00', {}],
  ['timezone', '* * * * *', { timezone: 'Mars/Olympus' }],
  ['timezone', '* * * * *', { timezone: 1 }],
  ['onCrash', '* * * * *', { onCrash: 'again' }],
  ['missed', '* * * * *', { missed: 'all' }],
  ['overlap', '* * * * *', { overlap: true }],
  ['holdAtLeast', '* * * * *', { holdAtLeast: -1 }],
  ['holdAtLeast', '* * * * *', { holdAtLeast: '2m', maxHold: '1m' }],
  ['maxHold', '* * * * *', { maxHold: 0 }],
  ['ttl', '* * * * *', { ttl: 'long' }],
  ['timezome', '* * * * *', { timezome: 'UTC' }],
])('an invalid %s (%j, %j) is rejected when the job is scheduled', (option, cron, options) => {
  const make = (): unknown => locks.schedule('job', cron, () => {}, options as ScheduleOptions)
  expect(make).toThrow(InvalidOptionError)
  try {
    make()
  } catch (error) {
    expect((error as InvalidOptionError).option).toBe(option)
  }
})

test('an expression of seven fields is refused with the fields that there are', () => {
  const make = (): unknown => locks.schedule('job', '0 30 2 * * * 2030-2040', () => {})
  expect(make).toThrow(/cron takes a cron expression of 5 fields, or of 6 with seconds first.*no field for years/)
})

test('a job must be a function, and a schedule must have a name', () => {
  expect(() => locks.schedule('job', '* * * * *', undefined as never)).toThrow(InvalidOptionError)
  expect(() => locks.schedule('', '* * * * *', () => {})).toThrow(InvalidOptionError)
})

test('a schedule without a time zone has the same ticks on all machines', async () => {
  const schedule = locks.schedule('job', '30 2 * * *', () => {})
  expect(schedule.next()[0]?.toISOString().slice(11)).toBe('02:30:00.000Z')
  expect(schedule.next(3)).toHaveLength(3)
  expect(() => schedule.next(0)).toThrow(InvalidOptionError)
  await schedule.stop()
})

test.each(['now', 'values'])('a store without %s says so when a job is scheduled', (missing) => {
  const values = missing !== 'values'
  const store = Object.assign(memory(), {
    features: { ...memory().features, values },
    ...(missing === 'now' ? { now: undefined } : {}),
  }) as unknown as Store
  expect(() => createLocks(store).schedule('job', '* * * * *', () => {})).toThrow(UnsupportedError)
})

test('a job that throws without an error listener causes a warning and does not end the process', async () => {
  const warned = new Promise<Error>((resolve) => process.once('warning', resolve))
  const schedule = locks.schedule('failing', '* * * * * *', () => {
    throw new Error('no luck')
  })
  expect((await warned).message).toBe('no luck')
  await schedule.stop()
})
