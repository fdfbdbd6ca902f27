import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { createLocks, memory } from '../../src/index.js'
import { Locks } from '../../src/locks.js'
import type { World } from '../../src/util/world.js'
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

/** What a minute of waiting costs this many requests: timers that fired, items that were sent, processor time in ms. */
async function minuteOf(requests: number): Promise<{ fired: number; sent: number; cpuMs: number }> {
  const world = new VirtualWorld(1)
  let [fired, sent] = [0, 0]
  const { now, date, random, bytes } = world
  const after: World['after'] = (ms, run) =>
    world.after(ms, () => {
      fired++
      run()
    })
  const store = memory({ world })
  const renew = store.renew.bind(store)
  store.renew = (renewals) => {
    sent += renewals.length
    return renew(renewals)
  }
  const locks = new Locks(store, {}, { now, date, random, bytes, after })
  let release!: () => void
  void locks.request('r', () => new Promise<void>((resolve) => (release = resolve)))
  const pending = Array.from({ length: requests }, () => locks.request('r', () => {}))
  await world.settle()
  const before = process.cpuUsage()
  await world.pass(60_000)
  const { user, system } = process.cpuUsage(before)
  release()
  await world.pass(10)
  await Promise.all(pending)
  return { fired, sent, cpuMs: (user + system) / 1_000 }
}

test('10,000 pending Web Locks of one process need no more timers than 100, and less than 5 % of a core', async () => {
  const [few, many] = [await minuteOf(100), await minuteOf(10_000)]
  expect(many.fired).toBe(few.fired)
  // The heartbeat of the queue: each request once a second.
  expect(many.sent / few.sent).toBeLessThanOrEqual(100)
  expect(many.cpuMs).toBeLessThan(0.05 * 60_000)
})
