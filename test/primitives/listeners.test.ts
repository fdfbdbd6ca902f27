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

test('a listener given as an async function becomes a warning when its promise rejects, and the others go on', async () => {
  const heard: string[] = []
  // oxlint-disable-next-line typescript/no-misused-promises -- what users do
  locks.on('acquired', async () => Promise.reject(new Error('the log is full')))
  // Query builders of databases have a then, and are no promises.
  // oxlint-disable-next-line unicorn/no-thenable
  locks.on('acquired', () => ({ then: (_: unknown, fail: (error: Error) => void) => fail(new Error('no such table')) }))
  locks.on('acquired', ({ name }) => void heard.push(name))
  const lock = await locks.acquire('x')
  await lock.release()
  const schedule = locks.schedule('audited', '* * * * * *', () => {})
  // oxlint-disable-next-line typescript/no-misused-promises -- what users do
  schedule.on('started', async () => Promise.reject(new Error('the audit is down')))
  await new Promise<void>((resolve) => schedule.on('finished', () => resolve()))
  await schedule.stop()
  await locks.close()
  await turn()
  expect(heard).toContain('x')
  expect(warnings.map(({ message }) => message)).toEqual(
    expect.arrayContaining(['the log is full', 'no such table', 'the audit is down']),
  )
})

test.each([
  ['an error whose name throws', () => hiding('name')],
  ['an error whose message throws', () => hiding('message')],
  ['an error whose stack throws', () => hiding('stack')],
  ['a revoked proxy', () => revoked()],
  ['a proxy that has no prototype to tell', () => new Proxy(new Error('x'), { getPrototypeOf: refuse, get: refuse })],
])('%s that a listener throws becomes a warning, and the lock is granted', async (_, thrown) => {
  locks.on('acquired', () => {
    throw thrown()
  })
  const lock = await locks.acquire('x')
  expect(lock.isHeld).toBe(true)
  await lock.release()
  await locks.close()
  await turn()
  expect(warnings.map(({ name, message }) => [name, message])).toEqual([
    ['LeaseholdListenerWarning', 'an error that cannot be read'],
  ])
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

const refuse = (): never => {
  throw new Error('not to be read')
}

function hiding(property: string): Error {
  return Object.defineProperty(new Error('x'), property, { get: refuse })
}

function revoked(): object {
  const { proxy, revoke } = Proxy.revocable({}, {})
  revoke()
  return proxy
}
