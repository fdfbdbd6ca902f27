/** Everything that the command started in its session is dead before another process can hold the lock. */
import { describe, expect, test } from 'vitest'
import { CliFixture, isAlive, until } from './harness.js'

const fixture = new CliFixture()

/** Works in another process group of the session, whatever signal it gets, and writes down its process ID. */
const STUBBORN = `trap "" TERM INT HUP; echo $$ >$FIXTURE/$LEASEHOLD_NAME.pid; i=0; while [ $((i+=1)) -lt 4000 ]; do sleep 0.005; done`
const quoted = (script: string): string => `'${script.replaceAll("'", `'\\''`)}'`

/** How ordinary scripts put a worker into a process group of its own. */
const GROUPS: [how: string, script: string][] = [
  ['timeout', `timeout 100 sh -c ${quoted(STUBBORN)}; echo finished`],
  ['timeout-in-background', `timeout 100 sh -c ${quoted(STUBBORN)} & wait; echo finished`],
  ['set-m', `set -m; sh -c ${quoted(STUBBORN)} & wait; echo finished`],
  ['env-i', `set -m; env -i FIXTURE=$FIXTURE LEASEHOLD_NAME=$LEASEHOLD_NAME sh -c ${quoted(STUBBORN)} & wait`],
]

describe.each(GROUPS)('a worker that %s put into a process group of its own', (how, script) => {
  test.each(['bash', 'sh'])('is dead when %s was ended by SIGTERM and the lock is released', async (shell) => {
    const name = `${how}-${shell}`
    const run = fixture.leasehold('run', name, '--kill-after', '300ms', '--', shell, '-c', script)
    const worker = Number(await fixture.waitForFile(`${name}.pid`))
    run.signal('SIGTERM')
    const { code } = await run.ended
    expect(code).toBe(143)
    expect(isAlive(worker)).toBe(false)
  })

  test('is dead before the next holder starts when leasehold run was killed', async () => {
    const name = `${how}-killed`
    const run = fixture.leasehold('run', name, '--ttl', '2s', '--kill-after', '300ms', '--', 'bash', '-c', script)
    const worker = Number(await fixture.waitForFile(`${name}.pid`))
    run.signal('SIGKILL')
    const next = fixture.leasehold(
      'run',
      name,
      '--',
      'sh',
      '-c',
      `grep -q 'State:.[^ZX]' /proc/${worker}/status 2>/dev/null && echo "beside ${worker}"; true`,
    )
    expect(await next.ended).toMatchObject({ code: 0, stdout: '' })
  })
})

test('a command that ends by itself leaves nothing behind in its session, and its status stays its own', async () => {
  const script = `set -m; sh -c ${quoted(STUBBORN)} & while ! [ -s $FIXTURE/$LEASEHOLD_NAME.pid ]; do sleep 0.01; done; exit 5`
  const run = fixture.leasehold('run', 'leaves', '--kill-after', '300ms', '--', 'bash', '-c', script)
  const worker = Number(await fixture.waitForFile('leaves.pid'))
  expect((await run.ended).code).toBe(5)
  expect(isAlive(worker)).toBe(false)
})

test('a daemon that left the session stays when the command has ended', async () => {
  const script =
    "setsid sh -c 'echo $$ >$FIXTURE/daemon.pid; exec sleep 60' & while ! [ -s $FIXTURE/daemon.pid ]; do sleep 0.01; done"
  const run = fixture.leasehold('run', 'daemon', '--', 'bash', '-c', script)
  const daemon = Number(await fixture.waitForFile('daemon.pid'))
  expect((await run.ended).code).toBe(0)
  expect(isAlive(daemon)).toBe(true)
  process.kill(daemon, 'SIGKILL')
  await until('the daemon is dead', () => !isAlive(daemon))
})
