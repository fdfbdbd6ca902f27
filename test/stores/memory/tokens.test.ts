import { expect, test } from 'vitest'
import { VirtualWorld } from '../../../testbed/virtual-world.js'
import { ALL } from '../../../src/store.js'
import { memory } from '../../../src/stores/memory/index.js'

type Store = ReturnType<typeof memory>

/** Acquires and releases, and returns the token. */
function tokenOf(store: Store, tokens?: number): bigint {
  const [answer] = store.acquire([{ key: 'lock:x', owner: 'a', weight: ALL, capacity: ALL, ttlMs: 1_000, tokens }])
  if (answer?.granted !== true) throw new Error('it was not granted')
  store.release([{ key: 'lock:x', owner: 'a' }])
  return answer.token
}

test('tokens grow with every grant, whether the clock stands still, runs or jumps', () => {
  const world = new VirtualWorld(1)
  const store = memory({ world })
  let last = 0n
  for (let i = 0; i < 5_000; i++) {
    const reserved = i % 7 === 0 ? 32 : undefined
    const token = tokenOf(store, reserved)
    expect(token).toBeGreaterThan(last)
    last = token + BigInt((reserved ?? 1) - 1)
    world.freeze([0, 0.0001, 0.3, 5][Math.floor(world.random() * 4)] as number)
  }
})

test('a token is at most a millisecond behind the clock, so that a store that begins later grants larger ones', () => {
  const world = new VirtualWorld(1)
  const store = memory({ world })
  for (let i = 0; i < 5_000; i++) {
    expect(Number(tokenOf(store))).toBeGreaterThanOrEqual(Math.floor((world.now() - 1) * 1_000))
    world.freeze(world.random() * 0.2 + 0.01)
  }
  const last = tokenOf(store)
  world.freeze(0.01)
  expect(tokenOf(memory({ world }))).toBeGreaterThan(last)
})
