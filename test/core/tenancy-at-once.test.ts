/** Locks that are passed on inside a process, on a store that answers at once: turns between instances, and what costs no call. */
import { expect, test } from 'vitest'
import { LockTimeoutError } from '../../src/errors.js'
import type { Lock } from '../../src/core/lock.js'
import { Locks } from '../../src/locks.js'
import type { Claim } from '../../src/store.js'
import { type MemoryStore, memory } from '../../src/stores/memory/index.js'
import { VirtualWorld } from '../../testbed/virtual-world.js'

class Fixture {
  readonly world = new VirtualWorld(1)
  readonly store: MemoryStore = memory({ world: this.world })
  readonly claims: Claim[] = []
  /** Who held, in order. */
  readonly turns: string[] = []
  readonly locks: Lock[] = []
  mostWaiters = 0

  constructor() {
    const acquire = this.store.acquire.bind(this.store)
    this.store.acquire = (claims, options) => {
      this.claims.push(...claims)
      return acquire(claims, options)
    }
  }

  instance(): Locks {
    return new Locks(this.store, {}, this.world)
  }

  /** So many tasks that ask in this turn, each of which holds for some turns of the event loop. */
  crowd(locks: Locks, label: string, count: number): void {
    for (let i = 0; i < count; i++) {
      void locks.acquire('a').then(async (lock) => {
        this.turns.push(label)
        this.locks.push(lock)
        this.mostWaiters = Math.max(this.mostWaiters, this.store.inspect('lock:a').waiters.length)
        await Promise.resolve()
        expect(lock.isHeld).toBe(true)
        expect(await lock.release()).toBe(true)
      })
    }
  }

  /** The longest run of turns of one instance. */
  get longestRun(): number {
    let longest = 0
    let run = 0
    for (const [i, label] of this.turns.entries()) {
      run = label === this.turns[i - 1] ? run + 1 : 1
      longest = Math.max(longest, run)
    }
    return longest
  }
}

test('a crowd of one instance enters no queue of the store once its lease is passed on, and asks once for 32 locks', async () => {
  const fixture = new Fixture()
  const locks = fixture.instance()
  const first = await locks.acquire('a')
  fixture.crowd(locks, 'here', 200)
  expect(fixture.store.inspect('lock:a').waiters).toHaveLength(1)
  await first.release()
  await fixture.world.settle()
  expect(fixture.turns).toHaveLength(200)
  expect(fixture.mostWaiters).toBe(0)
  // The first waiter asks twice: a release before it had subscribed would have been missed.
  expect(fixture.claims).toHaveLength(3 + Math.floor(199 / 32))
  const tokens = fixture.locks.map(({ fencingToken }) => fencingToken)
  expect(tokens.every((token, i) => i === 0 || token > (tokens[i - 1] as bigint))).toBe(true)
  expect(new Set(fixture.locks.map(({ holder }) => holder)).size).toBe(200)
})

test('instances on one memory store take turns of at most 32 locks', async () => {
  const fixture = new Fixture()
  const [here, there] = [fixture.instance(), fixture.instance()]
  const first = await here.acquire('a')
  fixture.crowd(here, 'here', 150)
  fixture.crowd(there, 'there', 150)
  await first.release()
  await fixture.world.settle()
  expect(fixture.turns).toHaveLength(300)
  expect(fixture.longestRun).toBeLessThanOrEqual(32)
})

test('an acquisition of another instance that comes in the turn of the release does not overtake a waiter of a spent tenancy', async () => {
  const fixture = new Fixture()
  const [here, there] = [fixture.instance(), fixture.instance()]
  const first = await here.acquire('a')
  fixture.crowd(here, 'here', 31)
  const last = here.acquire('a')
  const next = here.acquire('a')
  await first.release()
  await fixture.world.settle()
  expect(fixture.turns).toHaveLength(31)
  const lock = await last
  expect(await lock.release()).toBe(true)
  expect(await there.tryAcquire('a')).toBeNull()
  expect((await next).isHeld).toBe(true)
})

test('a waiter of a spent tenancy has a queue entry when the last lock is held for longer than a turn, and gives up in time', async () => {
  const fixture = new Fixture()
  const locks = fixture.instance()
  const first = await locks.acquire('a')
  fixture.crowd(locks, 'here', 31)
  const last = locks.acquire('a')
  const waiting = locks.acquire('a', { wait: 100 }).catch((error: unknown) => error)
  await first.release()
  await fixture.world.settle()
  const lock = await last
  expect(fixture.store.inspect('lock:a').waiters).toHaveLength(0)
  await fixture.world.pass(20)
  expect(fixture.store.inspect('lock:a').waiters).toHaveLength(1)
  await fixture.world.pass(100)
  expect(await waiting).toBeInstanceOf(LockTimeoutError)
  expect(fixture.store.inspect('lock:a').waiters).toHaveLength(0)
  expect(await lock.release()).toBe(true)
})
