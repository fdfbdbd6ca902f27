import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { Alarm, Timers } from '../../src/core/timers.js'
import { realWorld } from '../../src/util/world.js'

test('waits that all differ in length and never time out leave nothing behind', () => {
  setFlagsFromString('--expose-gc')
  const gc = runInNewContext('gc') as () => void
  const timers = new Timers(realWorld, true)
  const alarm = new Alarm(() => {})
  const used = (): number => (gc(), process.memoryUsage().heapUsed)
  const before = used()
  for (let i = 0; i < 50_000; i++) {
    timers.set(alarm, realWorld.now() + 60_000, 60_000 - i / 8)
    timers.clear(alarm)
  }
  const each = (used() - before) / 50_000
  expect(each).toBeLessThan(20)
  expect([...timers]).toEqual([])
})
