import { expect, test } from 'vitest'
import { TransientMap } from '../../src/util/transient-map.js'

test('a transient map holds what a Map holds, in the same order, however often entries come and go', () => {
  const [map, expected] = [new TransientMap<number, string>(), new Map<number, string>()]
  for (let i = 0; i < 5_000; i++) {
    // Up to 200 entries, then few, and so on.
    const key = (i * 7_919) % (i % 1_000 < 500 ? 200 : 5)
    if (i % 3 === 0) {
      map.delete(key)
      expected.delete(key)
    } else {
      map.set(key, `v${i}`)
      expected.set(key, `v${i}`)
    }
    expect(map.get(key)).toBe(expected.get(key))
    expect(map.size).toBe(expected.size)
  }
  expect([...map.values()]).toEqual([...expected.values()])
})
