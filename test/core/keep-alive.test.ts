/** What keeps a process running: work that is awaited or scheduled, unless it is unref'd. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { startChild } from '../../testbed/children.js'

const folder = mkdtempSync(join(tmpdir(), 'leasehold-alive-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
const child = (...args: string[]): ReturnType<typeof startChild<string>> =>
  startChild<string>(new URL('./keep-alive.child.ts', import.meta.url), args)

test.each(['memory', join(folder, 'a.db')])(
  'an awaited election.run() keeps the process running until it ends (%s)',
  async (where) => {
    const process = child('election', where)
    expect(await process.next()).toBe('resigned')
    expect(await process.ended).toBe(0)
  },
)

test.each(['memory', join(folder, 'b.db')])(
  'a schedule keeps the process running until it stops (%s)',
  async (where) => {
    const process = child('schedule', where)
    expect(await process.next()).toBe('ran')
    expect(await process.ended).toBe(0)
  },
)

test('an election or a schedule with unref: true does not keep the process running', async () => {
  // 13: Node exits with this status if a top-level await can never settle.
  expect(await child('election', 'memory', 'unref').ended).toBe(13)
  const schedule = child('schedule', 'memory', 'unref')
  expect(await Promise.race([schedule.next(), schedule.ended])).toBe(0)
})
