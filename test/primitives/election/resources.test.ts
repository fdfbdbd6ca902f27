import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { createLocks, memory } from '../../../src/index.js'
import { realWorld, type World } from '../../../src/util/world.js'
import { Locks } from '../../../src/locks.js'
import { faulty } from '../../../src/testing/index.js'

setFlagsFromString('--expose-gc')
const gc = runInNewContext('gc') as () => void
const heap = (): number => (gc(), process.memoryUsage().heapUsed / 1e6)

/** The real world, with a count of the timers that keep the process alive. */
function countingWorld(): { world: World; keepingAlive: () => number } {
  const alive = new Set<object>()
  const after: World['after'] = (ms, run, keepAlive) => {
    const timer = {}
    if (keepAlive) alive.add(timer)
    const cancel = realWorld.after(ms, () => (alive.delete(timer), run()), keepAlive)
    return () => (alive.delete(timer), cancel())
  }
  return { world: { ...realWorld, after }, keepingAlive: () => alive.size }
}

test('an observer that runs for long remembers only the last leader', async () => {
  const locks = createLocks(memory())
  const election = locks.election('a')
  const stop = new AbortController()
  const before: number[] = []
  await election.run(
    async () => {
      const leaders = election.observe()
      for (let i = 0; i < 40_000; i++) {
        await election.proclaim(i)
        const { value } = await leaders.next()
        expect(value.value).toBe(i)
        if (i === 5_000) before.push(heap())
      }
      stop.abort()
      expect(heap() - (before[0] as number)).toBeLessThan(4)
    },
    { signal: stop.signal },
  )
  await locks.close()
})

test('an election leaves no timer that keeps the process alive, even if it ends while the lease is being released', async () => {
  const { world, keepingAlive } = countingWorld()
  const store = faulty(memory({ world }), [], { world })
  const locks = new Locks(store, {}, world)
  const release = store.inject({ effect: 'delay-call', on: 'release', ms: 50 })
  const stop = new AbortController()
  const running = locks.election('a', { drain: '1h' }).run(() => {}, { signal: stop.signal })
  await release.strikes()
  stop.abort()
  await running
  expect(keepingAlive()).toBe(0)
  await locks.close()
})

test('a term leaves no listener on the signal that was passed', async () => {
  const locks = createLocks(memory())
  const { signal } = new AbortController()
  let listeners = 0
  const { addEventListener, removeEventListener } = signal
  signal.addEventListener = (...args: [string, never]) => (listeners++, addEventListener.apply(signal, args))
  signal.removeEventListener = (...args: [string, never]) => (listeners--, removeEventListener.apply(signal, args))
  const own = new Error('mine')
  for (let i = 0; i < 5; i++) {
    await expect(
      locks.election('a').run(
        () => {
          throw own
        },
        { signal },
      ),
    ).rejects.toBe(own)
  }
  expect(listeners).toBe(0)
  await locks.close()
})

test('an event during the read of an observer makes it read again at once, and not only after its usual pause', async () => {
  const world: World = {
    ...realWorld,
    after: (ms, run, keep) => (ms >= 250 ? () => {} : realWorld.after(ms, run, keep)),
  }
  const store = faulty(memory({ world }), [], { world })
  const locks = new Locks(store, {}, world)
  const election = locks.election('a', { value: 'old' })
  const stop = new AbortController()
  await election.run(
    async () => {
      const leaders = election.observe()
      expect((await leaders.next()).value.value).toBe('old')
      // The next read returns the old value, and the new one is proclaimed before the reply arrives.
      const slow = store.inject({ effect: 'delay-reply', on: 'inspect', times: 1 })
      const next = leaders.next()
      await slow.strikes()
      await election.proclaim('new')
      slow.lift()
      expect((await next).value.value).toBe('new')
      stop.abort()
    },
    { signal: stop.signal },
  )
  await locks.close()
})
