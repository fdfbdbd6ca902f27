import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { expect, test } from 'vitest'
import { program } from '../../../scripts/support/programs.js'
import { openPlace } from '../limiter/places.js'

const HOUR = 3_600_000

// A process may mock its Date, or have been started under a tool that does.
test.each([HOUR, -HOUR])('on SQLite, a process whose Date is wrong by %i ms runs ticks at their time', async (skew) => {
  const place = await openPlace('sqlite')
  const child = instance(place.at, skew)
  const offsets: number[] = []
  const enough = new Promise<void>((resolve) => {
    child.on('message', ({ ran }: { ran?: number }) => {
      if (ran !== undefined && offsets.push(Date.now() - ran) === 2) resolve()
    })
  })
  await enough
  const ended = once(child, 'exit')
  child.send('stop')
  await ended
  await place.close()
  for (const offset of offsets) {
    expect(offset).toBeGreaterThanOrEqual(0)
    expect(offset).toBeLessThan(10_000)
  }
})

function instance(at: string, skew: number): ChildProcess {
  const file = program(new URL('./instance.child.ts', import.meta.url))
  return fork(file, ['sqlite', at, String(skew)], { execArgv: [], serialization: 'advanced' })
}
