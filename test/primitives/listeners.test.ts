import { afterEach, beforeEach, expect, test } from 'vitest'
import { createLocks, type Locks, memory } from '../../src/index.js'
import { until } from '../../testbed/store-fixtures.js'

let locks: Locks
const warnings: Error[] = []
const note = (warning: Error): void => void warnings.push(warning)

beforeEach(() => {
  warnings.length = 0
  process.on('warning', note)
  locks = createLocks(memory())
})

afterEach(() => {
  process.off('warning', note)
})

test('thirty schedules of one process cause no warning about listeners, and all of them stop', async () => {
  const schedules = Array.from({ length: 30 }, (_, i) => locks.schedule(`job-${i}`, '0 0 1 1 *', () => {}))
  await turn()
  await locks.close()
  await Promise.all(schedules.map((schedule) => schedule.stop()))
  await turn()
  expect(warnings).toEqual([])
})

test('thirty takes that wait with one signal cause no warning about listeners, and all are cancelled', async () => {
  const limiter = locks.limiter('api', { limit: 1, per: '1h' })
  await limiter.take('key')
  const leaving = new AbortController()
  const waiting = Array.from({ length: 30 }, () => limiter.wait('key', { signal: leaving.signal }))
  const ended = Promise.allSettled(waiting)
  await turn()
  leaving.abort(new Error('enough'))
  for (const one of await ended) expect(one).toMatchObject({ status: 'rejected', reason: { message: 'enough' } })
  expect(warnings).toEqual([])
  await locks.close()
})

test('a listener and a job that throw something without a text end neither a grant nor a schedule', async () => {
  const nothing = Object.create(null) as object
  const fail = (): never => {
    throw nothing
  }
  locks.on('acquired', fail)
  const lock = await locks.acquire('x')
  expect(lock.isHeld).toBe(true)
  await lock.release()
  let runs = 0
  const schedule = locks.schedule('odd', '* * * * * *', () => ++runs && fail())
  await until('it runs at the next tick, too', () => runs === 2)
  await schedule.stop()
  expect(warnings.map(({ name, message }) => [name, message])).toEqual(
    expect.arrayContaining([
      ['LeaseholdListenerWarning', 'an object'],
      ['LeaseholdScheduleWarning', 'an object'],
    ]),
  )
  await locks.close()
})

test('thirty takes that wait are rejected when the instance is closed', async () => {
  const limiter = locks.limiter('api', { limit: 1, per: '1h' })
  await limiter.take('key')
  const ended = Promise.allSettled(Array.from({ length: 30 }, () => limiter.wait('key')))
  await turn()
  await locks.close()
  for (const one of await ended) expect(one).toMatchObject({ status: 'rejected', reason: { code: 'CLOSED' } })
  await turn()
  expect(warnings).toEqual([])
})

/** Node emits warnings on the next turn of the event loop. */
function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(() => setImmediate(resolve)))
}
