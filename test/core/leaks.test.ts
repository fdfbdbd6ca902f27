import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { createLocks, memory } from '../../src/index.js'
import { Locks } from '../../src/locks.js'
import { VirtualWorld } from '../../testbed/virtual-world.js'

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

async function heap(): Promise<number> {
  for (let i = 0; i < 4; i++) {
    collect()
    await new Promise((resolve) => setImmediate(resolve))
  }
  return process.memoryUsage().heapUsed
}

test('50,000 records of run-once come and go, and the memory they used is freed', async () => {
  const world = new VirtualWorld(1)
  const store = memory({ world })
  const locks = new Locks(store, {}, world) as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>
  const method = 'runOnce' in locks ? 'runOnce' : 'once'
  const round = async (count: number): Promise<void> => {
    for (let i = 0; i < count; i++) await locks[method]?.(`key:${i}`, () => 'result', { retain: '1m' })
    await world.pass(120_000)
  }
  await round(5_000)
  const before = await heap()
  await round(50_000)
  expect(store.holders('')).toEqual([])
  expect((await heap()) / before).toBeLessThan(1.05)
})

test('a job that schedules its next run inside its callback does not grow', async () => {
  const locks = createLocks(memory())
  const run = (times: number): Promise<void> =>
    new Promise((done) => {
      const next = (): void => {
        void locks.withLock('job', async () => {
          if (--times === 0) done()
          else setImmediate(next)
        })
      }
      next()
    })
  await run(2_000)
  const before = await heap()
  await run(20_000)
  expect((await heap()) / before).toBeLessThan(1.05)
})

test('a dropped lock whose signal was read once is abandoned, and one whose signal is in use is not', async () => {
  // Virtual time: a lease of this process must not end because the machine was busy.
  const world = new VirtualWorld(1)
  const locks = new Locks(memory({ world }), { ttl: 90 }, world)
  const abandoned: string[] = []
  locks.on('abandoned', ({ name }) => abandoned.push(name))
  const combined: AbortSignal[] = []
  const heard: string[] = []
  const forget = async (name: string, use: (signal: AbortSignal) => void): Promise<void> => {
    const lock = await locks.acquire(name)
    use(lock.signal)
  }
  await forget('looked at', (signal) => void signal.aborted)
  await forget('listened to', (signal) => signal.addEventListener('abort', () => heard.push('abort')))
  await forget('combined', (signal) => combined.push(AbortSignal.any([signal])))
  for (let beat = 0; beat < 300 && !abandoned.includes('looked at'); beat++) {
    await world.pass(33)
    collect()
  }
  expect(abandoned).toEqual(['looked at'])
  expect(combined[0]?.aborted).toBe(false)
  await locks.close({ grace: 0 })
  expect(heard).toEqual(['abort'])
  expect(combined[0]?.aborted).toBe(true)
})

test('10,000 pending Web Locks of one process use less than 5 % of a core while they wait', async () => {
  const locks = createLocks(memory())
  let release!: () => void
  void locks.request('r', () => new Promise<void>((resolve) => (release = resolve)))
  const pending = Array.from({ length: 10_000 }, () => locks.request('r', () => {}))
  // The cost of making ten thousand requests, and of collecting their garbage, is not part of waiting.
  await new Promise((resolve) => setTimeout(resolve, 1_500))
  collect()
  const shares: number[] = []
  for (let i = 0; i < 3; i++) {
    const before = process.cpuUsage()
    await new Promise((resolve) => setTimeout(resolve, 2_000))
    const { user, system } = process.cpuUsage(before)
    shares.push((user + system) / 2_000_000)
  }
  release()
  await Promise.all(pending)
  const [, median] = shares.sort((a, b) => a - b)
  expect(median).toBeLessThan(0.05)
}, 60_000)
