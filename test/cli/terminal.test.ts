/** `run` in a real terminal. */
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { CliFixture, isAlive, until } from './harness.js'

const fixture = new CliFixture()
const leasehold = fixture.program.join(' ')

const CTRL_C = '\x03'
const CTRL_Z = '\x1a'

test('the command keeps the terminal: it reads what is typed, from stdin and from /dev/tty', async () => {
  const script = `test -t 0 && echo ready; read a; read b </dev/tty; echo "got $a and $b"; exit 4`
  const terminal = fixture.inTerminal(`${leasehold} run tty -- sh -c '${script}'; echo "status $?"`)
  await terminal.says('ready')
  terminal.type('one\ntwo\n')
  await terminal.says('got one and two')
  await terminal.says('status 4')
})

test('ctrl-c reaches the command once, and leasehold run waits for what the command makes of it', async () => {
  const script = `n=0; trap "n=\\$((n+1)); echo interrupted" INT; echo ready; while ! read a; do :; done; echo "$a $n"; exit 6`
  // A shell around it would itself be ended by ctrl-c.
  const terminal = fixture.inTerminal(`exec ${leasehold} run ctrl-c -- sh -c '${script}'`)
  await terminal.says('ready')
  terminal.type(CTRL_C)
  await terminal.says('interrupted')
  // Passed on by us, it would come a second time, and a little later.
  await sleep(500)
  terminal.type('times\n')
  expect(await terminal.ended).toMatchObject({ code: 6, stdout: expect.stringContaining('times 1') })
})

test('what the command leaves behind is ended before the lock is released, but not its neighbours in the terminal', async () => {
  const neighbour = `sleep 60 & echo $! >$FIXTURE/neighbour`
  const terminal = fixture.inTerminal(
    `${neighbour}; ${leasehold} run left -- sh -c 'sleep 60 & echo $! >$FIXTURE/left; exit 3'; echo "status $?"; read wait`,
  )
  await terminal.says('status 3')
  expect(isAlive(Number(await fixture.waitForFile('left')))).toBe(false)
  expect(isAlive(Number(await fixture.waitForFile('neighbour')))).toBe(true)
})

test('kill -9 of leasehold run: the command and its orphans die in a terminal, too', async () => {
  const orphan = `(trap "" TERM HUP; exec sleep 60) & echo $! >$FIXTURE/orphan`
  const terminal = fixture.inTerminal(
    `${leasehold} run killed --ttl 3s -- sh -c 'echo $PPID >$FIXTURE/run; ${orphan}; echo ready; cat'; cat`,
  )
  await terminal.says('ready')
  process.kill(Number(await fixture.waitForFile('run')), 'SIGKILL')
  const pid = Number(await fixture.waitForFile('orphan'))
  await until('the orphan is dead', () => !isAlive(pid))
  await until('the watchdog says so', () => terminal.stdout.includes('stopping its command'))
})

test('workers that timeout and set -m put into process groups of their own die in a terminal, too', async () => {
  const stubborn = (file: string): string =>
    `sh -c "trap \\"\\" TERM HUP; echo \\$\\$ >$FIXTURE/${file}; sleep 60; sleep 60"`
  const script = `set -m; ${stubborn('of-set-m')} & timeout 50 ${stubborn('of-timeout')} & echo $PPID >$FIXTURE/run-of-both; wait`
  const terminal = fixture.inTerminal(
    `${leasehold} run both --kill-after 300ms -- bash -c '${script}'; echo "status $?"; read wait`,
  )
  const workers = [await fixture.waitForFile('of-set-m'), await fixture.waitForFile('of-timeout')].map(Number)
  expect(workers.map(isAlive)).toEqual([true, true])
  process.kill(Number(await fixture.waitForFile('run-of-both')), 'SIGTERM')
  await terminal.says('status 143')
  expect(workers.map(isAlive)).toEqual([false, false])
})

test('ctrl-z suspends it all, and fg goes on', async () => {
  const terminal = fixture.inTerminal('bash --norc --noprofile -i')
  terminal.type(`${leasehold} run suspended -- sh -c 'echo re""ady; read a; echo "got $a"'\n`)
  await terminal.says('ready')
  terminal.type(CTRL_Z)
  await terminal.says('Stopped')
  terminal.type('fg\n')
  terminal.type('li""ne\n')
  await terminal.says('got li""ne')
})

test('suspended for longer than the lock lasts, the command is killed in time, and fg gives 70', async () => {
  const terminal = fixture.inTerminal('bash --norc --noprofile -i')
  terminal.type(`${leasehold} run late --ttl 2s -- sh -c 'echo $$ >$FIXTURE/late; exec sleep 60'\n`)
  const pid = Number(await fixture.waitForFile('late'))
  terminal.type(CTRL_Z)
  await terminal.says('Stopped')
  await until('the command is dead', () => !isAlive(pid))
  terminal.type('fg; echo "status $((0+$?))"\n')
  await terminal.says('status 70')
})
