import { chmodSync, closeSync, copyFileSync, openSync, symlinkSync, writeFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { program } from '../../testbed/programs.js'
import { createLocks, openStore } from '../../src/index.js'
import { CliFixture, isAlive, until } from './harness.js'

const fixture = new CliFixture()

test('a command that cannot be executed gives 126 and says why, one that is not there 127', async () => {
  const { loop, busy, folder } = obstacles()
  const cases: [command: string, code: number, says: string][] = [
    ['/etc/passwd/no-folder', 126, 'a part of its path is not a directory (ENOTDIR)'],
    [loop, 126, 'there are too many symbolic links on its path (ELOOP)'],
    [busy, 126, 'something is writing to it (ETXTBSY)'],
    [folder, 126, 'it may not be executed, or is a directory (EACCES)'],
    ['', 127, 'there is no command ""'],
  ]
  for (const [command, code, says] of cases) {
    const ended = await fixture.leasehold('run', 'unstartable', '--wait', '0', '--', command).ended
    expect(ended.stderr).toBe(`leasehold: ${code === 127 ? says : `"${command}" cannot be started: ${says}`}\n`)
    expect(ended.code).toBe(code)
  }
})

test('SIGTERM ends run while the watchdog gets ready', async () => {
  const never = fixture.path('never-ready.mjs')
  writeFileSync(
    never,
    `import { writeFileSync } from 'node:fs'
writeFileSync(${JSON.stringify(fixture.path('never-ready.pid'))}, process.pid + '\\n')
setInterval(() => {}, 1_000)`,
  )
  const child = program(new URL('./slow-watchdog.child.ts', import.meta.url))
  const run = fixture.start([process.execPath, child, never, 'unready', '--', 'touch', fixture.path('touched')])
  const watchdog = Number(await fixture.waitForFile('never-ready.pid'))
  const store = await openStore(fixture.store)
  const locks = createLocks(store)
  await until('it has the lock', async () => (await locks.inspect('unready')).holders.length === 1)
  run.signal('SIGTERM')
  expect((await run.ended).code).toBe(143)
  expect((await locks.inspect('unready')).holders).toEqual([])
  expect(isAlive(watchdog)).toBe(false)
  expect(fixture.exists('touched')).toBe(false)
  await locks.close()
  await store.close()
})

test("--busy-status tells a busy lock from a command's own 75", async () => {
  const holder = fixture.leasehold('run', 'busy', '--', 'sh', '-c', 'echo ready; cat')
  await holder.says('ready')
  const busy = await fixture.leasehold('run', 'busy', '--wait', '0', '--busy-status', '0', '--', 'true').ended
  expect(busy).toMatchObject({ code: 0, stderr: expect.stringContaining('stayed busy') })
  holder.closeStdin()
  await holder.ended
  const own = await fixture.leasehold('run', 'busy', '--busy-status', '0', '--', 'sh', '-c', 'exit 75').ended
  expect(own).toMatchObject({ code: 75, stderr: '' })
})

/** Files that the kernel refuses to execute. */
function obstacles(): { loop: string; busy: string; folder: string } {
  const loop = fixture.path('loop')
  symlinkSync(loop, loop)
  const busy = fixture.path('busy')
  copyFileSync('/bin/true', busy)
  chmodSync(busy, 0o755)
  const writing = openSync(busy, 'r+')
  process.once('exit', () => closeSync(writing))
  return { loop, busy, folder: fixture.folder }
}
