import { fork } from 'node:child_process'
import { once as event } from 'node:events'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { program } from '../../../testbed/programs.js'
import { createLocks, type Locks, LockLostError, LockTimeoutError } from '../../../src/index.js'
import { faulty } from '../../../src/testing/index.js'
import { STORE_KINDS, openStoreFixture, type StoreFixture } from '../../../testbed/store-fixtures.js'

let unique = 0
const fresh = (): string => `run-once-${process.pid}-${++unique}`

/** Work that the test ends. */
function work<T>(result: T): { fn: () => Promise<T>; began: Promise<void>; end: () => void; runs: () => number } {
  let end = (): void => {}
  let begin = (): void => {}
  let runs = 0
  const ending = new Promise<void>((resolve) => (end = resolve))
  const began = new Promise<void>((resolve) => (begin = resolve))
  const fn = async (): Promise<T> => {
    runs++
    begin()
    await ending
    return result
  }
  return { fn, began, end, runs: () => runs }
}

describe.each(STORE_KINDS)('runOnce on %s', (kind) => {
  let fixture: StoreFixture
  let one: Locks
  let two: Locks

  beforeAll(async () => {
    fixture = await openStoreFixture(kind)
    one = createLocks(fixture.store())
    two = createLocks(fixture.store())
  })

  afterAll(async () => {
    await one.close()
    await two.close()
    await fixture.close()
  })

  test('callers at the same time wait for one run, and later ones get its result', async () => {
    const key = fresh()
    const { fn, began, end, runs } = work({ total: 42 })
    const callers = Array.from({ length: 12 }, (_, i) => (i % 2 ? one : two).runOnce(key, fn, { wait: '20s' }))
    await began
    end()
    expect(await Promise.all(callers)).toEqual(Array(12).fill({ total: 42 }))
    expect(await two.runOnce(key, fn)).toEqual({ total: 42 })
    expect(await one.runOnce(key, fn, { wait: 0 })).toEqual({ total: 42 })
    expect(runs()).toBe(1)
  })

  test('a caller that does not wait is told that the key is running, and who runs it', async () => {
    const key = fresh()
    const { fn, began, end } = work('done')
    const running = one.runOnce(key, fn)
    await began
    const refused = await two.runOnce(key, fn, { wait: 0 }).catch((error: unknown) => error)
    expect(refused).toBeInstanceOf(LockTimeoutError)
    expect((refused as LockTimeoutError).heldBy).toContain(one.clientId)
    // Long enough for an answer: without one it is an outage.
    await expect(two.runOnce(key, fn, { wait: '1500ms' })).rejects.toThrow(LockTimeoutError)
    const controller = new AbortController()
    const cancelled = two.runOnce(key, fn, { signal: controller.signal })
    controller.abort(new Error('enough'))
    await expect(cancelled).rejects.toThrow('enough')
    end()
    expect(await running).toBe('done')
  })

  test('a run that throws records nothing, and one of the waiting callers runs next', async () => {
    const key = fresh()
    let runs = 0
    let begin = (): void => {}
    const began = new Promise<void>((resolve) => (begin = resolve))
    let fail = (): void => {}
    const failing = new Promise<void>((_, reject) => (fail = () => reject(new Error('no luck'))))
    const first = one.runOnce(key, async () => {
      begin()
      await failing
    })
    await began
    const others = [one, two, two].map((locks) => locks.runOnce(key, () => ++runs, { wait: '20s' }))
    fail()
    await expect(first).rejects.toThrow('no luck')
    expect(await Promise.all(others)).toEqual([1, 1, 1])
  })

  test('the function runs again when its result is no longer retained', async () => {
    const key = fresh()
    let runs = 0
    const call = (locks: Locks): Promise<number> => locks.runOnce(key, () => ++runs, { retain: '300ms' })
    const began = performance.now()
    expect(await call(one)).toBe(1)
    let seen = await call(two)
    while (seen === 1) seen = await call(two)
    expect(performance.now() - began).toBeGreaterThanOrEqual(299)
    expect(seen).toBe(2)
  })

  test('the function cannot extend its lock beyond retain, which the result would then last for', async () => {
    const run = one.runOnce(fresh(), (lock) => lock.extend('10m'), { retain: '5m' })
    await expect(run).rejects.toThrow('ttl takes at most 5m, the `retain` of this run')
    expect(await one.runOnce(fresh(), (lock) => lock.extend('5m'), { retain: '5m' })).toBeUndefined()
  })

  test('a runner that lost its lease records nothing, and the record of another stays', async () => {
    const key = fresh()
    const { fn, began, end } = work('mine')
    const overtaken = one.runOnce(key, fn)
    await began
    expect(await two.forceRelease(key, { kind: 'run-once' })).toHaveLength(1)
    expect(await two.runOnce(key, () => 'theirs')).toBe('theirs')
    end()
    await expect(overtaken).rejects.toThrow(LockLostError)
    expect(await one.runOnce(key, () => 'again')).toBe('theirs')
  })

  test('all callers get the same result, including the runner: its JSON form', async () => {
    const results = [undefined, null, 0, '', [1, { a: null }], { at: new Date(0) }]
    for (const result of results) {
      const key = fresh()
      const mine = await one.runOnce(key, () => result)
      expect(mine).toEqual(result === undefined ? undefined : JSON.parse(JSON.stringify(result)))
      expect(await two.runOnce(key, () => 'another')).toEqual(mine)
    }
    const large = 'x'.repeat(1_000_000)
    const key = fresh()
    expect(await one.runOnce(key, () => large)).toBe(large)
    expect(await two.runOnce(key, () => 'another')).toBe(large)
  })

  test('a result that was recorded counts even if the reply was lost', async () => {
    const store = faulty(fixture.store(), [], { timeoutMs: 300 })
    const locks = createLocks(store, { ttl: '5s' })
    const key = fresh()
    const records = (items: { value?: string }[]): boolean => items.some(({ value }) => value !== undefined)
    const lost = store.inject({ effect: 'lose-reply', on: 'renew', times: 1, when: records as never })
    expect(await locks.runOnce(key, () => 'recorded')).toBe('recorded')
    expect(lost.struck).toBe(1)
    expect(await two.runOnce(key, () => 'another')).toBe('recorded')
    await locks.close()
  })

  // The memory of a process dies with it.
  if (kind === 'memory') return

  test('when the runner dies, another caller runs the function', async () => {
    const key = fresh()
    const file = program(new URL('../../../testbed/children/run-once-caller.child.ts', import.meta.url))
    const victim = fork(file, [kind, fixture.at, key, '1', '60000'], { execArgv: [] })
    onTestFinished(() => void victim.kill('SIGKILL'))
    expect((await event(victim, 'message'))[0]).toHaveProperty('running')
    const rescued = one.runOnce(key, () => 'rescued', { wait: '20s' })
    victim.kill('SIGKILL')
    expect(await rescued).toBe('rescued')
  })
})
