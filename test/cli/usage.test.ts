import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { type Command, Input } from '../../src/cli/command.js'
import { ls } from '../../src/cli/commands/ls.js'
import { migrate } from '../../src/cli/commands/migrate.js'
import { release } from '../../src/cli/commands/release.js'
import { run } from '../../src/cli/commands/run.js'
import { show } from '../../src/cli/commands/show.js'
import { Place } from './harness.js'

const place = new Place()

test('bad usage exits with 64 and says what was wrong, before anything is touched', async () => {
  const wrong: [typed: string[], says: string][] = [
    [['runn'], 'unknown command "runn" (did you mean "run"? known: run, ls, '],
    [['run', 'x', '--ttl', '10 parsecs', '--', 'true'], '--ttl takes a duration of at least 1s'],
    [['run', 'x', '--store', 'floppy:', '--', 'true'], 'it was "floppy:"'],
    [['run', 'x'.repeat(256), '--', 'true'], 'name takes'],
    [['ls', '--kind', 'semaphor'], 'unknown kind "semaphor" (did you mean "semaphore"? known: lock, '],
    [['show', 'x', '--kind', 'all'], 'unknown kind "all" (known: lock, '],
    [['release', 'x', '--force', '--kind', 'locks'], 'unknown kind "locks" (did you mean "lock"? known: lock, '],
    [['ls', '--jsn'], 'unknown option "--jsn" (did you mean "--json"? known: --older-than, '],
  ]
  for (const [typed, says] of wrong) {
    const { code, stdout, stderr } = await place.leasehold(...typed).ended
    expect(stderr).toContain(says)
    expect({ code, stdout }).toEqual({ code: 64, stdout: '' })
  }
})

test.each([
  ['', 'the command is missing; it comes after "--"'],
  ['name --', 'the command is missing; it comes after "--"'],
  ['-- true', 'name is missing'],
  ['a b -- true', 'one name is enough; what is "b"?'],
  ['x --tll 5s -- true', 'unknown option "--tll" (did you mean "--ttl"? known: --ttl, --wait, '],
  ['x -t 5s -- true', 'unknown option "-t" (known: --ttl, --wait, '],
  ['x --ttl -- true', '--ttl takes DURATION; there was none'],
  ['x --ttl --wait 5s -- true', '--ttl takes DURATION; it was "--wait"'],
  ['x --ttl 999 -- true', 'it was 999'],
  ['x --ttl 9s --kill-after 3001 -- true', '--kill-after takes a duration from 0ms to 3s'],
  ['x --wait ever -- true', 'or forever; it was "ever"'],
  ['x --permits 1.5 -- true', '--permits takes a whole number from 1 to 1000000; it was "1.5"'],
  ['x --permits 2 --shared -- true', '--shared and --permits exclude each other'],
  ['x --shared=no -- true', '--shared is a switch and takes no value; it was given "no"'],
])('run %s: %s', async (typed, says) => {
  const start = async (): Promise<number> =>
    run.run(new Input(run, typed.split(' ').filter(Boolean)), { watchdogFile: 'not started' })
  await expect(start()).rejects.toThrow(says)
})

test('without a command it shows help, as bad usage', async () => {
  const { code, stdout, stderr } = await place.leasehold().ended
  expect(stderr).toContain('run <name> [options] -- command [args…]')
  expect({ code, stdout }).toEqual({ code: 64, stdout: '' })
})

test('help is data: of all commands, and of one with its options and examples, however it is asked for', async () => {
  const [all, ...ofRun] = await Promise.all(
    [['--help'], ['help', 'run'], ['run', '--help'], ['run', 'x', '-h']].map(
      (typed) => place.leasehold(...typed).ended,
    ),
  )
  expect(all).toMatchObject({ code: 0, stdout: expect.stringContaining('release <name> --force'), stderr: '' })
  for (const help of ofRun) {
    expect(help).toMatchObject({ code: 0, stderr: '' })
    expect(help.stdout).toMatch(/^Usage: leasehold run <name> .*--ttl DURATION .*Examples\n/s)
  }
})

test('what belongs to the command is not read as an option of ours', async () => {
  const run = place.leasehold('run', 'theirs', '--', 'printf', '%s,', '--help', '--ttl', '--', '-h')
  expect(await run.ended).toMatchObject({ code: 0, stdout: '--help,--ttl,--,-h,' })
})

test('--version is that of the package', async () => {
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'))
  expect(await place.leasehold('--version').ended).toMatchObject({ code: 0, stdout: `${version}\n` })
})

test('every example in help and in the guide is typed as the command takes it', async () => {
  const commands: Record<string, Command> = { run, ls, show, release, migrate }
  const guide = readFileSync(new URL('../../docs/guide/command-line.md', import.meta.url), 'utf8')
  const lines = [...guide.matchAll(/^leasehold .*$/gm)].map(([line]) => line)
  expect(lines.length).toBeGreaterThan(8)
  for (const command of Object.values(commands)) lines.push(...command.examples.map(([line]) => line))
  for (const line of lines) {
    const [, name = '', ...words] = line.replace(/\s+#.*| [|>] .*|;.*/g, '').split(' ')
    const typed = new Input(commands[name] as Command, words.filter(Boolean))
    expect(typed.positionals.length, line).toBeLessThanOrEqual(1)
    expect(typed.rest !== undefined, line).toBe(name === 'run')
  }
})

test('help says whom the default store covers', async () => {
  const { stdout } = await place.leasehold('help').ended
  expect(stdout).toContain('this user on this machine')
  expect(stdout).not.toContain('all processes of this machine')
})
