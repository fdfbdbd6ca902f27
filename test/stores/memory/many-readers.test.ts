import { expect, test } from 'vitest'
import { VirtualWorld } from '../../../testbed/virtual-world.js'
import { ALL } from '../../../src/store.js'
import { memory } from '../../../src/stores/memory/index.js'

test('the queue entry of a writer behind 150,000 readers is renewed', () => {
  const store = memory()
  const claim = { key: 'lock:x', capacity: ALL, ttlMs: 60_000 }
  store.acquire(Array.from({ length: 150_000 }, (_, n) => ({ ...claim, owner: `reader ${n}`, weight: 1 })))
  const [refused] = store.acquire([{ ...claim, owner: 'writer', weight: ALL, queueMs: 60_000 }])
  expect(refused?.granted).toBe(false)
  const [renewed] = store.renew([{ key: 'lock:x', owner: 'writer', ttlMs: 60_000, queued: true }])
  expect(renewed).toMatchObject({ outcome: 'waiting', ahead: 0 })
})

test('readers that end between others free their weight, and the first to end is named to a writer', () => {
  const world = new VirtualWorld(1)
  const store = memory({ world })
  const claim = { key: 'lock:x', capacity: 10 }
  const reader = (owner: string, ttlMs: number): void => {
    expect(store.acquire([{ ...claim, owner, weight: 3, ttlMs }])[0]?.granted).toBe(true)
  }
  const blocker = (): unknown => {
    const [answer] = store.acquire([{ ...claim, owner: 'writer', weight: 10, ttlMs: 1_000 }])
    return answer?.granted === false ? answer.blocker?.owner : 'none'
  }
  reader('a', 1_000)
  reader('b', 2_000)
  reader('c', 3_000)
  expect(blocker()).toBe('a')
  store.renew([{ key: 'lock:x', owner: 'a', ttlMs: 5_000 }])
  expect(blocker()).toBe('b')
  store.release([{ key: 'lock:x', owner: 'b' }])
  expect(blocker()).toBe('c')
  reader('d', 500)
  expect(blocker()).toBe('d')
  world.freeze(3_500)
  expect(blocker()).toBe('a')
  reader('e', 1_000)
  reader('f', 1_000)
  world.freeze(2_000)
  expect(blocker()).toBe('none')
})
