import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { expect, test } from 'vitest'
import { program } from '../../../testbed/programs.js'
import { openStoreFixture } from '../../../testbed/store-fixtures.js'

const HOUR = 3_600_000

// A process may mock its Date, or run under a tool that does.
test.each([HOUR, -HOUR])('on SQLite, a process whose Date is wrong by %i ms runs ticks at their time', async (skew) => {
  const fixture = await openStoreFixture('sqlite')
  const child = instance(fixture.at, skew)
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
  await fixture.close()
  for (const offset of offsets) {
    expect(offset).toBeGreaterThanOrEqual(0)
    expect(offset).toBeLessThan(10_000)
  }
})

function instance(at: string, skew: number): ChildProcess {
  const file = program(new URL('../../../testbed/children/schedule-instance.child.ts', import.meta.url))
  return fork(file, ['sqlite', at, String(skew)], { execArgv: [], serialization: 'advanced' })
}
