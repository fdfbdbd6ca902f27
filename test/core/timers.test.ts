import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, test } from 'vitest'
import { Alarm, Timers } from '../../src/core/timers.js'
import { realWorld } from '../../src/util/world.js'
import { VirtualWorld } from '../../testbed/virtual-world.js'

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

test('what is due at no number is due now, and holds up nothing else', async () => {
  const world = new VirtualWorld(1)
  const timers = new Timers(world)
  const called: string[] = []
  timers.set(new Alarm(() => called.push('no number')), Number.NaN, 0, Number.NaN)
  timers.set(new Alarm(() => called.push('soon')), world.now() + 10, 0)
  timers.set(new Alarm(() => called.push('later')), world.now() + 100, 100)
  await world.pass(5)
  expect(called).toEqual(['no number'])
  await world.pass(100)
  expect(called).toEqual(['no number', 'soon', 'later'])
})
