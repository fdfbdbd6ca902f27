import { constants, writeFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { createLocks, openStore } from '../../src/index.js'
import { loadDriver } from '../../src/stores/sqlite/driver.js'
import { CliFixture, isAlive, until } from './harness.js'

const fixture = new CliFixture()

/** Says who it is and ends when stdin does. */
const UNTIL_STDIN_ENDS = 'echo "holder $LEASEHOLD_HOLDER"; cat >/dev/null'

test('the command gets stdin and the facts about its lock, and run passes on its stdout and exit status', async () => {
  const script = 'cat; echo "$LEASEHOLD_NAME $LEASEHOLD_HOLDER $LEASEHOLD_FENCING_TOKEN"; exit 7'
  const subject = fixture.leasehold('run', 'facts', '--', 'sh', '-c', script)
  subject.type('typed\n')
  subject.closeStdin()
  const { code, stdout, stderr } = await subject.ended
  expect(stdout).toMatch(/^typed\nfacts \S+:\d+:[0-9a-f-]{36}\/1 \d{16}\n$/)
  expect(stderr).toBe('')
  expect(code).toBe(7)
})

test('the pipes of the command are blocking, as without leasehold run', async () => {
  const script = 'grep -h flags /proc/$$/fdinfo/0 /proc/$$/fdinfo/1 /proc/$$/fdinfo/2'
  const { stdout } = await fixture.leasehold('run', 'blocking', '--', 'sh', '-c', script).ended
  const flags = stdout.trim().split('\n')
  expect(flags).toHaveLength(3)
  for (const line of flags) expect(Number.parseInt(line.replace('flags:', ''), 8) & constants.O_NONBLOCK).toBe(0)
})

test('run exits with 128+n if a signal ended the command', async () => {
  const { code } = await fixture.leasehold('run', 'signalled', '--', 'sh', '-c', 'kill -USR1 $$').ended
  expect(code).toBe(138)
})

test('run exits with 127 without the command and 126 if it cannot be executed, and releases the lock', async () => {
  expect(await fixture.leasehold('run', 'missing', '--', 'no-such-command').ended).toMatchObject({
    code: 127,
    stderr: 'leasehold: there is no command "no-such-command"\n',
  })
  const file = fixture.path('not-executable')
  writeFileSync(file, '')
  expect((await fixture.leasehold('run', 'missing', '--wait', '0', '--', file).ended).code).toBe(126)
})

test('run exits with 75 and names the holder of a busy lock; a waiting run gets it next', async () => {
  const first = fixture.leasehold('run', 'busy', '--', 'sh', '-c', UNTIL_STDIN_ENDS)
  await first.says('/1\n')
  const impatient = fixture.leasehold('run', 'busy', '--wait', '0', '--', 'touch', fixture.path('never'))
  const patient = fixture.leasehold('run', 'busy', '--wait', 'forever', '--', 'echo', 'mine')
  const refused = await impatient.ended
  expect(refused.code).toBe(75)
  expect(refused.stderr).toContain(first.stdout.replace('holder ', '').trim())
  expect(fixture.exists('never')).toBe(false)
  expect(patient.stdout).toBe('')
  first.closeStdin()
  expect((await first.ended).code).toBe(0)
  expect(await patient.ended).toMatchObject({ code: 0, stdout: 'mine\n' })
})

test('runs with --shared run side by side, and keep out an exclusive one', async () => {
  const sharing = ['run', 'shared', '--shared', '--', 'sh', '-c', UNTIL_STDIN_ENDS]
  const both = [fixture.leasehold(...sharing), fixture.leasehold(...sharing)]
  for (const one of both) await one.says('holder')
  expect((await fixture.leasehold('run', 'shared', '--wait', '0', '--', 'true').ended).code).toBe(75)
  for (const one of both) one.closeStdin()
  for (const one of both) expect((await one.ended).code).toBe(0)
})

test('run --permits N lets N commands run at once and no more', async () => {
  const permitted = ['run', 'permits', '--permits', '2', '--wait', '0', '--', 'sh', '-c', UNTIL_STDIN_ENDS]
  const both = [fixture.leasehold(...permitted), fixture.leasehold(...permitted)]
  for (const one of both) await one.says('holder')
  expect((await fixture.leasehold(...permitted).ended).code).toBe(75)
  for (const one of both) one.closeStdin()
  for (const one of both) expect((await one.ended).code).toBe(0)
})

test('run exits with 69 and the reason if the store cannot be used', async () => {
  const file = fixture.path('not-a-database')
  writeFileSync(
    file,
    'something else, of more than a few bytes, so that it cannot be taken for an empty file\n'.repeat(20),
  )
  const { code, stderr } = await fixture.leasehold('run', 'x', '--wait', '0', '--store', `sqlite:${file}`, '--', 'true')
    .ended
  expect(stderr).toContain('is not a SQLite database')
  expect(code).toBe(69)
})

test('the lock is renewed for as long as the command runs', async () => {
  const long = fixture.leasehold('run', 'long', '--ttl', '3s', '--', 'sh', '-c', UNTIL_STDIN_ENDS)
  await long.says('holder')
  const other = fixture.leasehold('run', 'long', '--wait', '4s', '--', 'true')
  expect((await other.ended).code).toBe(75)
  long.closeStdin()
  expect((await long.ended).code).toBe(0)
})

test('processes that the command leaves behind in its group end before the lock is released', async () => {
  // Orphans under sh -c: one that ends when asked to, and one that does not.
  const gentle = `sleep 60 & echo $! >$FIXTURE/gentle`
  const stubborn = `sh -c 'trap "" TERM; echo $$ >$FIXTURE/stubborn; sleep 60; sleep 60' &`
  const waitForIt = 'while ! [ -s $FIXTURE/stubborn ]; do sleep 0.01; done'
  const script = `${gentle}; ${stubborn} ${waitForIt}; exit 5`
  const run = fixture.leasehold('run', 'orphans', '--kill-after', '300ms', '--', 'sh', '-c', script)
  const [one, other] = [await fixture.waitForFile('gentle'), await fixture.waitForFile('stubborn')].map(Number) as [
    number,
    number,
  ]
  expect((await run.ended).code).toBe(5)
  expect([isAlive(one), isAlive(other)]).toEqual([false, false])
})

test('run passes signals on to the command, and exits with its status', async () => {
  // Without $(seq …), which a signal cuts short in some shells.
  const script = `trap 'echo usr2' USR2; trap 'echo term; exit 9' TERM; echo ready; i=0; while [ $i -lt 600 ]; do i=$((i+1)); sleep 0.05; done`
  const run = fixture.leasehold('run', 'signals', '--', 'sh', '-c', script)
  await run.says('ready')
  run.signal('SIGUSR2')
  await run.says('usr2')
  run.signal('SIGTERM')
  expect(await run.ended).toMatchObject({ code: 9, stdout: 'ready\nusr2\nterm\n' })
  expect((await fixture.leasehold('run', 'signals', '--wait', '0', '--', 'true').ended).code).toBe(0)
})

test('a signal during the wait removes the queue entry, and run exits with 128+n', async () => {
  await using store = await openLocks()
  await using _held = await store.locks.acquire('line')
  const waiting = fixture.leasehold('run', 'line', '--wait', 'forever', '--', 'touch', fixture.path('never'))
  await until('it is in the queue', async () => (await store.locks.waiters('line')).length === 1)
  waiting.signal('SIGINT')
  expect((await waiting.ended).code).toBe(130)
  expect(await store.locks.waiters('line')).toEqual([])
  expect(fixture.exists('never')).toBe(false)
})

test('run kills the command at once and exits with 70 if the lock is taken away by force', async () => {
  const script = `trap "" TERM; sleep 60 & echo $! >$FIXTURE/forced-child; sleep 60; sleep 60`
  const run = fixture.leasehold('run', 'forced', '--ttl', '3s', '--', 'sh', '-c', script)
  const child = Number(await fixture.waitForFile('forced-child'))
  const release = await fixture.leasehold('release', 'forced', '--force').ended
  expect(release.stdout).toContain('forced')
  const { code, stderr } = await run.ended
  expect(stderr).toContain('"forced" is no longer held')
  expect(code).toBe(70)
  expect(isAlive(child)).toBe(false)
})

test('run stops the command in time and exits with 70 if the lock cannot be renewed, even if the command exits with 0', async () => {
  const script = `trap 'echo asked; exit 0' TERM; echo ready; i=0; while [ $i -lt 600 ]; do i=$((i+1)); sleep 0.05; done`
  const run = fixture.leasehold('run', 'outage', '--ttl', '3s', '--', 'sh', '-c', script)
  await run.says('ready')
  const database = new (loadDriver().DatabaseSync)(fixture.path('locks.db'))
  database.exec('BEGIN EXCLUSIVE')
  try {
    const { code, stdout, stderr } = await run.ended
    expect(stdout).toContain('asked')
    expect(stderr).toContain('could not be renewed in time')
    expect(code).toBe(70)
  } finally {
    database.exec('ROLLBACK')
    database.close()
  }
})

async function openLocks(): Promise<{ locks: ReturnType<typeof createLocks> } & AsyncDisposable> {
  const store = await openStore(fixture.store)
  const locks = createLocks(store)
  return {
    locks,
    async [Symbol.asyncDispose]() {
      await locks.close({ grace: 0 })
      await store.close()
    },
  }
}
