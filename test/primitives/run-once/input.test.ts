import { expect, test, vi } from 'vitest'
import {
  createLocks,
  InvalidOptionError,
  LockLostError,
  memory,
  SelfDeadlockError,
  UnsupportedError,
} from '../../../src/index.js'
import type { Store } from '../../../src/store.js'

const locks = createLocks(memory())

test('a store that cannot record results says so', async () => {
  const store = Object.assign(memory(), { features: { ...memory().features, values: false } }) as Store
  await expect(createLocks(store).runOnce('job', () => 1)).rejects.toThrow(UnsupportedError)
})

test.each<[string, object]>([
  ['retain', { retain: 0 }],
  ['retain', { retain: 'a day' }],
  ['wait', { wait: -1 }],
  ['ttl', { ttl: 1 }],
  ['signal', { signal: {} }],
  ['retian', { retian: '1d' }],
])('an invalid %s is rejected before anything runs', async (option, options) => {
  let ran = false
  const failure = await locks.runOnce('job', () => (ran = true), options).catch((error: unknown) => error)
  expect(failure).toBeInstanceOf(InvalidOptionError)
  expect((failure as InvalidOptionError).option).toBe(option)
  expect(ran).toBe(false)
})

test('a result that cannot be recorded is an error, and leaves the key to the next caller', async () => {
  const circular: Record<string, unknown> = {}
  circular.self = circular
  for (const result of [circular, 1n, () => 1, Symbol('x'), 'x'.repeat(1_600_000)]) {
    const failure = await locks.runOnce('odd', () => result).catch((error: unknown) => error)
    expect((failure as InvalidOptionError).option).toBe('result')
  }
  expect(await locks.runOnce('odd', () => 'even')).toBe('even')
})

test('a run that calls runOnce for its own key is rejected instead of waiting for itself', async () => {
  const nested = locks.runOnce('outer', () => locks.runOnce('outer', () => 1))
  await expect(nested).rejects.toThrow(SelfDeadlockError)
})

test('the run learns of a loss by its signal, and has a fencing token', async () => {
  let told: unknown
  const lost = locks.runOnce('signal', async ({ signal, fencingToken }) => {
    expect(fencingToken).toBeTypeOf('bigint')
    await locks.forceRelease('signal', { kind: 'run-once' })
    told = signal.reason
  })
  await expect(lost).rejects.toThrow(LockLostError)
  expect(told).toBeInstanceOf(LockLostError)
})

test('locks has no once(): beside on() and off() it would look like a listener', () => {
  expect('once' in createLocks(memory())).toBe(false)
})

test.each(['mode', 'weight', 'nested', 'metadata', 'autoRenew'])(
  'runOnce rejects %s, which has no effect on it',
  async (option) => {
    const fn = vi.fn()
    const call = locks.runOnce('a', fn, { [option]: 'shared' } as never)
    await expect(call).rejects.toThrow(`unknown option "${option}" (known: retain, ttl, wait, signal)`)
    expect(fn).not.toHaveBeenCalled()
  },
)
