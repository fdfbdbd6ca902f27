import { strict as assert } from 'node:assert'
import type { Lock } from '../../core/lock.js'
import type { Locks } from '../../locks.js'
import type { TestContext } from '../test-context.js'
import { type Case, needing } from '../case.js'

const queues: Case[] = [
  {
    name: 'fifty waiters of one process are served in the order in which they called',
    async run(t) {
      const locks = await t.locks({ wait: 'forever' })
      const name = t.name()
      const held = await locks.acquire(name)
      const served: number[] = []
      const waiting = Array.from({ length: 50 }, (_, i) => locks.withLock(name, () => served.push(i)))
      await t.sleep(20)
      await held.release()
      await t.settled('all are served', Promise.all(waiting))
      assert.deepEqual(
        served,
        Array.from({ length: 50 }, (_, i) => i),
      )
    },
  },
  {
    name: 'waiters that cancel leave the queue, and the others are served in order',
    async run(t) {
      const locks = await t.locks({ wait: 'forever' })
      const name = t.name()
      const held = await locks.acquire(name)
      const served: number[] = []
      const leaving = new AbortController()
      const waiting = Array.from({ length: 20 }, (_, i) =>
        locks.withLock(name, () => served.push(i), i % 2 ? { signal: leaving.signal } : {}),
      )
      const outcomes = Promise.allSettled(waiting)
      await t.sleep(20)
      leaving.abort()
      await held.release()
      const statuses = (await t.settled('all settle', outcomes)).map(({ status }) => status)
      assert.deepEqual(
        statuses,
        Array.from({ length: 20 }, (_, i) => (i % 2 ? 'rejected' : 'fulfilled')),
      )
      assert.deepEqual(served, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18])
    },
  },
  {
    name: 'waiters of several clients are all served',
    async run(t) {
      const clients: Locks[] = []
      for (let i = 0; i < 3; i++) clients.push(await t.locks({ wait: 'forever' }))
      const name = t.name()
      const held = await (clients[0] as Locks).acquire(name)
      const served = new Map<Locks, number>()
      const waiting = clients.flatMap((locks) =>
        Array.from({ length: 10 }, () => locks.withLock(name, () => served.set(locks, (served.get(locks) ?? 0) + 1))),
      )
      await t.sleep(20)
      await held.release()
      await t.settled('all are served', Promise.all(waiting))
      assert.deepEqual([...served.values()], [10, 10, 10])
    },
  },
  {
    name: 'twenty waiters of one process do not flood the store',
    async run(t) {
      const store = await t.faulty()
      const [a, b] = [await t.locks(), await t.locks({ wait: 'forever' }, store)]
      const name = t.name()
      const held = await a.acquire(name)
      const since = t.now()
      const waiting = Array.from({ length: 20 }, () => b.withLock(name, () => 1))
      await t.sleep(700)
      const { length } = store.calls.filter(({ call }) => call === 'acquire')
      const ms = t.now() - since
      assert.ok(length <= (60 * ms) / 700, `${length} requests in ${ms} ms`)
      await held.release()
      await t.settled('all are served', Promise.all(waiting))
    },
  },
]

const starvation: Case[] = [
  {
    name: 'readers that keep coming do not starve a waiting writer',
    async run(t) {
      const [a, b] = [await t.locks({ wait: 'forever' }), await t.locks({ wait: 'forever' })]
      const name = t.name()
      let over = false
      // Two readers that overlap: without a queue at least one would always hold the lock.
      const reading = [0, 20].map(async (delay) => {
        await t.sleep(delay)
        while (!over) await a.withLock(name, () => t.sleep(40), { mode: 'shared' })
      })
      await t.sleep(60)
      const writing = b.withLock(name, () => 'written').finally(() => (over = true))
      assert.equal(await t.settled('the writer gets it', writing), 'written')
      await Promise.all(reading)
    },
  },
]

/**
 * MEANWHILE: how many other locks are acquired and released during a hand-off that takes as long as a poll. A server or a
 * process that stands still does not do so many: then the time says nothing about wake-ups.
 */
const MEANWHILE = 10

/**
 * Passes a lock back and forth between two clients, and returns how long each hand-off took during which a third client
 * was served all the time.
 */
async function handoffTimes(t: TestContext, a: Locks, b: Locks, count: number): Promise<number[]> {
  const name = t.name()
  const took: number[] = []
  const other = await t.locks()
  let served = 0
  let over = false
  const serving = (async () => {
    for (const own = t.name(); !over; served++) {
      await other.withLock(own, () => {})
      await t.sleep(5)
    }
  })()
  let held: Lock = await a.acquire(name)
  for (let i = 0; i < count; i++) {
    const next = (i % 2 === 0 ? b : a).acquire(name, { wait: 'forever' })
    // Sometimes at once, sometimes after the other client has waited for long: the two have different races.
    await t.sleep(i % 3 === 0 ? 0 : Math.random() * 12)
    const [since, before] = [t.now(), served]
    const releasing = held.release()
    held = await t.settled(`hand-off ${i}`, next)
    if (served - before >= MEANWHILE) took.push(t.now() - since)
    await releasing
  }
  await held.release()
  over = true
  await serving
  return took
}

const wakes: Case[] = [
  {
    name: 'a hundred hand-offs between two clients lose no wake-up',
    async run(t) {
      const [a, b] = [await t.locks(), await t.locks()]
      const slow = async (): Promise<number[]> => (await handoffTimes(t, a, b, 100)).filter((ms) => ms >= 900)
      // A lost wake-up costs a second, until the next poll. So does a machine that stops, but not twice in a row.
      const first = await slow()
      if (first.length > 0) assert.deepEqual(await slow(), [], `after ${first} the first time`)
    },
  },
  {
    name: 'a caller that releases and reacquires at once does not keep the lock from another that does the same',
    async run(t) {
      const clients = [await t.locks({ wait: 'forever' }), await t.locks({ wait: 'forever' })]
      const name = t.name()
      const served: Locks[] = []
      const coming = clients.map(async (locks) => {
        while (served.length < 60) {
          await using lock = await locks.acquire(name)
          served.push(locks)
          await t.sleep(2)
          lock.assertHeld()
        }
      })
      await t.settled('all are served', Promise.all(coming))
      const changes = served.filter((locks, i) => i > 0 && locks !== served[i - 1]).length
      // Strict alternation changes 59 times, random order 30 times. Two callers that only take what the other leaves
      // change once or twice.
      assert.ok(changes >= 12, `it changed sides ${changes} times in ${served.length} turns`)
    },
  },
]

export const queueCases: Case[] = [...queues, ...needing(['queue'], starvation), ...needing(['watch'], wakes)]
