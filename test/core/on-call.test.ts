import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { expect, onTestFinished, test } from 'vitest'
import { type CallFacts, createLocks, InvalidOptionError, memory } from '../../src/index.js'
import { RemoteMemory } from './remote-memory.js'

const summary = ({ call, items, failed, outcome }: CallFacts): object => ({ call, items, failed, outcome })

test('onCall reports each call to a store in memory', async () => {
  const calls: CallFacts[] = []
  const locks = createLocks(memory(), { onCall: (facts) => calls.push(facts) })
  await locks.withLock('order:7', async () => {})
  await locks.inspect('order:7')
  expect(calls.map(summary)).toEqual([
    { call: 'acquire', items: 1, failed: 0, outcome: 'answered' },
    { call: 'release', items: 1, failed: 0, outcome: 'answered' },
    { call: 'read', items: 1, failed: 0, outcome: 'answered' },
  ])
  await locks.close()
})

test('onCall reports one call for requests that travel together, with the time it took', async () => {
  const calls: CallFacts[] = []
  const remote = new RemoteMemory()
  remote.fate = () => ({ requestMs: 10, replyMs: 10 })
  const locks = remote.locks({ onCall: (facts) => calls.push(facts) })
  const asked = Promise.all(['a', 'b', 'c'].map((name) => locks.acquire(name)))
  await remote.pass(50)
  await asked
  expect(calls).toEqual([{ call: 'acquire', items: 3, failed: 0, outcome: 'answered', tookMs: 20 }])
})

test('onCall reports a call that is not answered within the time limit', async () => {
  const calls: CallFacts[] = []
  const remote = new RemoteMemory()
  remote.fate = (method) => (method === 'acquire' ? 'lose' : undefined)
  const locks = remote.locks({ onCall: (facts) => calls.push(facts) })
  const asked = locks.tryAcquire('order:7').catch((error: unknown) => error)
  await remote.pass(3_000)
  expect(await asked).toBe(calls[0]?.error)
  expect(calls[0]).toMatchObject({ call: 'acquire', items: 1, failed: 1, outcome: 'timeout', tookMs: 2_000 })
})

test('onCall reports a call that the store rejects, with the error that callers get', async () => {
  const calls: CallFacts[] = []
  const store = { ...plain(), acquire: () => Promise.reject(new Error('connection refused')) }
  const locks = createLocks(store, { onCall: (facts) => calls.push(facts) })
  const failure = await locks.tryAcquire('order:7').catch((error: unknown) => error)
  const failed = calls.find(({ call }) => call === 'acquire')
  expect(failed).toMatchObject({ items: 1, failed: 1, outcome: 'failed' })
  expect(failed?.error).toBe(failure)
  await locks.close()
})

const down = new Error('metrics are down')

test.each([
  [
    'throws',
    () => {
      throw down
    },
  ],
  ['rejects', async () => Promise.reject(down)],
])('onCall that %s costs no caller its answer, and becomes a warning', async (_, onCall) => {
  const warnings: Error[] = []
  const onWarning = (warning: Error): number => warnings.push(warning)
  process.on('warning', onWarning)
  onTestFinished(() => void process.off('warning', onWarning))
  const subscriber = (): void => {}
  for (const store of [plain(), memory()]) {
    for (const isPublished of [false, true]) {
      warnings.length = 0
      if (isPublished) subscribe('leasehold:call', subscriber)
      // oxlint-disable-next-line typescript/no-misused-promises -- what users do
      const locks = createLocks(store, { onCall })
      expect(await locks.withLock('order:7', async () => 'done')).toBe('done')
      await new Promise((resolve) => setImmediate(resolve))
      unsubscribe('leasehold:call', subscriber)
      // One for the acquire and one for the release.
      expect(warnings.slice(0, 2)).toEqual([down, down])
    }
  }
})

test('onCall that is no function is refused', () => {
  expect(() => createLocks(memory(), { onCall: 'log' as never })).toThrow(InvalidOptionError)
})

/** A store object whose methods can be replaced one by one. */
function plain(): ReturnType<typeof memory> {
  const store = memory()
  return {
    name: store.name,
    expiry: store.expiry,
    features: store.features,
    timeoutMs: 1_000,
    acquire: (claims, options) => store.acquire(claims, options),
    renew: (renewals) => store.renew(renewals),
    release: (leases) => store.release(leases),
    close: () => store.close(),
  } as ReturnType<typeof memory>
}
