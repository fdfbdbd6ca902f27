import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import type { Readable, Writable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, test } from 'vitest'
import { program } from '../../testbed/programs.js'
import { type WatchdogReport, type WatchdogOrder, deadlineIn, onLines } from '../../src/cli/watchdog-protocol.js'
import { TAGS } from '../../src/cli/process-tree.js'
import { CliFixture, watchdogsOf, isAlive, until } from './harness.js'

const fixture = new CliFixture()

/** Goes on whatever is sent to it, and notes the time of each step. */
const STUBBORN = `trap "" TERM INT HUP; echo $$ >$FIXTURE/$LEASEHOLD_NAME.pid; i=0; while [ $((i+=1)) -lt 4000 ]; do date +%s%N >>$FIXTURE/$LEASEHOLD_NAME.log; sleep 0.005; done`
/** The same, but in the background of a shell that has itself ended by then: an orphan in the group. */
const WITH_ORPHAN = `sh -c '${STUBBORN.replaceAll("'", `'\\''`)}' & sleep 0.2; cat`

describe.each([
  ['kill -9 of leasehold run', 'SIGKILL', STUBBORN],
  ['kill -9 of leasehold run whose command has children that go on', 'SIGKILL', WITH_ORPHAN],
  ['a leasehold run that is frozen', 'SIGSTOP', STUBBORN],
] as const)('%s', (what, signal, script) => {
  test('its command is dead before the command of the next holder starts', async () => {
    const name = what.replaceAll(' ', '-')
    const first = fixture.leasehold('run', name, '--ttl', '3s', '--', 'sh', '-c', script)
    const worker = Number(await fixture.waitForFile(`${name}.pid`))
    const next = fixture.leasehold('run', name, '--wait', '20s', '--', 'date', '+%s%N')
    await until('work is being done', () => fixture.read(`${name}.log`).split('\n').length > 5)
    first.signal(signal)
    const { code, stdout } = await next.ended
    expect(code).toBe(0)
    expect(isAlive(worker)).toBe(false)
    const lastStep = fixture.read(`${name}.log`).trim().split('\n').at(-1) as string
    expect(Number(BigInt(stdout.trim()) - BigInt(lastStep)) / 1e6).toBeGreaterThan(0)
    if (signal === 'SIGSTOP') {
      first.signal('SIGCONT')
      expect((await first.ended).code).toBe(70)
    }
  })
})

describe('the watchdog', () => {
  test('is gone when leasehold run has ended', async () => {
    const run = fixture.leasehold('run', 'going', '--', 'sh', '-c', 'echo ready; cat')
    await run.says('ready')
    const [watchdog] = watchdogsOf(run.pid) as [number]
    run.closeStdin()
    expect((await run.ended).code).toBe(0)
    expect(isAlive(watchdog)).toBe(false)
  })

  test('gives the command time to tidy up when leasehold run was killed', async () => {
    const script = 'trap "echo tidy >$FIXTURE/tidy; exit" TERM; echo ready; sleep 30 & wait'
    const run = fixture.leasehold('run', 'tidy', '--', 'sh', '-c', script)
    await run.says('ready')
    run.signal('SIGKILL')
    expect(await fixture.waitForFile('tidy')).toBe('tidy')
    await until('the watchdog says so', () => run.stderr.includes('"leasehold run" died; stopping its command'))
  })

  test('is replaced when it dies, and the next one protects as well', async () => {
    const run = fixture.leasehold('run', 'replaced', '--kill-after', '500ms', '--', 'sh', '-c', STUBBORN)
    const worker = Number(await fixture.waitForFile('replaced.pid'))
    const [watchdog] = watchdogsOf(run.pid) as [number]
    process.kill(watchdog, 'SIGKILL')
    await until('there is another watchdog', () => watchdogsOf(run.pid).some((one) => one !== watchdog))
    expect(isAlive(worker)).toBe(true)
    run.signal('SIGKILL')
    await until('the command is dead', () => !isAlive(worker))
  })

  test('is replaced when it does not answer any more', async () => {
    const run = fixture.leasehold('run', 'mute', '--ttl', '3s', '--', 'sh', '-c', 'echo ready; cat')
    await run.says('ready')
    const [watchdog] = watchdogsOf(run.pid) as [number]
    process.kill(watchdog, 'SIGSTOP')
    await until('there is another watchdog', () => watchdogsOf(run.pid).some((one) => one !== watchdog))
    expect(isAlive(watchdog)).toBe(false)
    run.closeStdin()
    expect((await run.ended).code).toBe(0)
  })

  // The watchdog checks the clocks every 200 ms: between two checks it must not exit as if it had nothing to do.
  test.each([0, 120, 180])(
    'finds by its tag a command that no order names, and its descendants (after %i ms)',
    async (phase) => {
      const tag = `tag-of-an-untold-command-${phase}`
      const script = `sleep 60 & echo $! >$FIXTURE/worker-${phase}; env -i setsid sleep 60 & echo $! >$FIXTURE/stranger-${phase}; wait`
      const env = { FIXTURE: fixture.folder, PATH: process.env.PATH, [TAGS]: `other ${tag}` }
      const command = spawn('sh', ['-c', script], { env, stdio: 'ignore' })
      const pids = [await fixture.waitForFile(`worker-${phase}`), await fixture.waitForFile(`stranger-${phase}`)].map(
        Number,
      )
      const watchdog = startWatchdog(tag)
      watchdog.tell({ order: 'arm', deadline: deadlineIn(() => 60_000), sequence: 1 })
      watchdog.tell({ order: 'start', parent: await deadPid(), others: [], ownSession: true })
      await watchdog.armed
      await sleep(phase)
      watchdog.leave()
      expect(await watchdog.ended).toEqual([0, null])
      await until('all of it is dead', () => ![command.pid as number, ...pids].some(isAlive))
    },
  )

  test.each([true, false])(
    'kills a worker without environment whose parent, alone with the tag, died of SIGTERM (session of its own: %s)',
    async (ownSession) => {
      const tag = `tag-of-a-parent-that-dies-first-${ownSession}`
      const worker = `parentless-${ownSession}`
      const script = `set -m; env -i FIXTURE=$FIXTURE LEASEHOLD_NAME=${worker} sh -c '${STUBBORN}' & wait`
      const env = { FIXTURE: fixture.folder, PATH: process.env.PATH, [TAGS]: tag }
      const command = spawn('bash', ['-c', script], { env, stdio: 'ignore', detached: ownSession })
      const pid = Number(await fixture.waitForFile(`${worker}.pid`))
      const watchdog = startWatchdog(tag, 200)
      watchdog.tell({ order: 'arm', deadline: deadlineIn(() => 5_000), sequence: 1 })
      watchdog.tell({ order: 'start', parent: await deadPid(), others: [], ownSession })
      await watchdog.armed
      watchdog.leave()
      expect(await watchdog.ended).toEqual([0, null])
      expect([pid, command.pid as number].filter(isAlive)).toEqual([])
    },
  )

  test('finds a command without a tag as a child of the leasehold run that starts it', async () => {
    const parent = spawn('sh', ['-c', 'read -r go; setsid env -i sleep 60 & echo $! >$FIXTURE/untagged; wait'], {
      env: { FIXTURE: fixture.folder, PATH: process.env.PATH },
      stdio: ['pipe', 'ignore', 'inherit'],
    })
    const watchdog = startWatchdog('tag-of-no-process')
    watchdog.tell({ order: 'arm', deadline: deadlineIn(() => 60_000), sequence: 1 })
    watchdog.tell({ order: 'start', parent: parent.pid as number, others: [], ownSession: true })
    await watchdog.armed
    parent.stdin?.write('go\n')
    const command = Number(await fixture.waitForFile('untagged'))
    // The watchdog lists the children every 10 ms, and sends no report about it: each time it wakes up.
    const wakeups = wakeupsOf(watchdog.pid)
    await until('the watchdog has looked a few times', () => wakeupsOf(watchdog.pid) > wakeups + 20)
    parent.kill('SIGKILL')
    watchdog.leave()
    expect(await watchdog.ended).toEqual([0, null])
    expect(isAlive(command)).toBe(false)
  })

  test('reads all deadlines before it acts on one of them, even if it is late', async () => {
    const tag = 'tag-of-a-command-whose-watchdog-came-late'
    const env = { PATH: process.env.PATH, [TAGS]: tag }
    const command = spawn('sleep', ['60'], { env, stdio: 'ignore' })
    const watchdog = startWatchdog(tag)
    watchdog.tell({ order: 'arm', deadline: deadlineIn(() => -1_000), sequence: 1 })
    watchdog.tell({ order: 'arm', deadline: deadlineIn(() => 60_000), sequence: 2 })
    await watchdog.armed
    watchdog.tell({ order: 'done' })
    await watchdog.ended
    expect(isAlive(command.pid as number)).toBe(true)
    command.kill('SIGKILL')
  })

  test('exits silently when leasehold run ended before it got the lock', async () => {
    const watchdog = startWatchdog('nothing')
    watchdog.leave()
    expect(await watchdog.ended).toEqual([0, null])
  })
})

/** A watchdog of our own, without a `leasehold run`. */
function startWatchdog(tag: string, killAfterMs = 0) {
  const args = [program(new URL('../../src/cli/watchdog.ts', import.meta.url)), String(killAfterMs), tag]
  const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit', 'ignore'], detached: true })
  const armed = new Promise<void>((resolve) => {
    onLines<WatchdogReport>(child.stdout as Readable, ({ report }) => report === 'armed' && resolve())
  })
  const tell = (order: WatchdogOrder): void => void (child.stdin as Writable).write(`${JSON.stringify(order)}\n`)
  return {
    pid: child.pid as number,
    armed,
    tell,
    leave: () => (child.stdin as Writable).end(),
    ended: once(child, 'exit'),
  }
}

/** How often the main thread of a process has gone to sleep, which it does after each turn of its event loop. */
function wakeupsOf(pid: number): number {
  return Number(/^voluntary_ctxt_switches:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
}

/** The number of a process that has ended. */
async function deadPid(): Promise<number> {
  const child = spawn('true')
  await once(child, 'exit')
  return child.pid as number
}
