import { type ChildProcess, fork } from 'node:child_process'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { program } from '../../../testbed/programs.js'
import { createLocks, type Locks } from '../../../src/index.js'
import { tooSlow, unhurried } from '../../../src/testing/unhurried.js'
import { directory, open, until } from './fixture.js'

test('a process that was frozen does not report a permit as held that was handed to it and has passed on since', async () => {
  await unhurried(0, async () => {
    const path = join(directory(), 'locks.db')
    const store = open(path)
    const [locks, other] = [createLocks(store), createLocks(open(path))]
    onTestFinished(() => locks.close({ grace: 0 }))
    onTestFinished(() => other.close({ grace: 0 }))
    const [first, second] = [await locks.semaphore('s', 2).acquire(), await locks.semaphore('s', 2).acquire()]
    const child = fork(program(new URL('waiter.child.ts', import.meta.url)), [path], { execArgv: [] })
    onTestFinished(() => void child.kill('SIGKILL'))
    const said: unknown[] = []
    child.on('message', (message) => said.push(message))
    await until('it waits', async () => (await store.inspect?.('semaphore:s'))?.waiters.length === 1)

    await freezeOutsideOfWrites(child, locks)
    await second.release()
    // Handed to the frozen process, unless its queue entry has expired before.
    if ((await store.inspect?.('semaphore:s'))?.holders.length !== 2) tooSlow()
    const third = await other.semaphore('s', 2).acquire({ wait: '1m' })
    said.length = 0
    child.kill('SIGCONT')
    // Long enough to read the pushed grant, to ask again and to be refused.
    await until('it is awake again', () => said.length >= 25)
    expect(said.every((message) => message === 'awake')).toBe(true)
    expect([first.isHeld, third.isHeld]).toEqual([true, true])

    await third.release()
    await until('it gets what is free', () => said.some((message) => message !== 'awake'))
    expect(said.find((message) => message !== 'awake')).toMatchObject({ isHeld: true })
  })
})

/** A process that is frozen inside of a write keeps the file locked for everybody: such a moment is no use here. */
async function freezeOutsideOfWrites(child: ChildProcess, locks: Locks): Promise<void> {
  for (;;) {
    child.kill('SIGSTOP')
    const probe = await locks.acquire('probe', { wait: '500ms' }).catch(() => undefined)
    if (probe) return void (await probe.release())
    child.kill('SIGCONT')
  }
}
