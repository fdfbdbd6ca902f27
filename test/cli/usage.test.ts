import { readFileSync, readdirSync } from 'node:fs'
import { expect, test } from 'vitest'
import { type Command, Input } from '../../src/cli/command.js'
import { run } from '../../src/cli/commands/run.js'
import { CliFixture } from './harness.js'

const fixture = new CliFixture()

test('bad usage exits with 64 and says what was wrong, before anything is touched', async () => {
  const wrong: [typed: string[], says: string][] = [
    [['runn'], 'unknown command "runn" (did you mean "run"? known: run, elect, ls, '],
    [['run', 'x', '--ttl', '10 parsecs', '--', 'true'], '--ttl takes a duration of at least 1s'],
    [['run', 'x', '--store', 'floppy:', '--', 'true'], 'it was "floppy:"'],
    [['run', 'x'.repeat(256), '--', 'true'], 'name takes'],
    [['ls', '--kind', 'semaphor'], 'unknown kind "semaphor" (did you mean "semaphore"? known: lock, '],
    [['show', 'x', '--kind', 'all'], 'unknown kind "all" (known: lock, '],
    [['release', 'x', '--force', '--kind', 'locks'], 'unknown kind "locks" (did you mean "lock"? known: lock, '],
    [['unlock', 'x'], 'unknown command "unlock" (did you mean "release"? known: '],
    [['doctor', '--stict'], 'unknown option "--stict" (did you mean "--strict"? known: --ttl, '],
    [['doctor', '--ignore', 'sqlite.spce'], 'unknown check "sqlite.spce" (did you mean "sqlite.space"? known: '],
    [['watch', '--interval', '1ms'], '--interval takes a duration from 100ms to 1h'],
    [['bench', '--for', '2m'], '--for takes a duration from 300ms to 30s'],
    [['run', 'x', '--store', '', '--', 'true'], '--store takes URL; it was empty'],
    [['doctor', 'redis://db'], 'doctor takes no argument; name the store with --store'],
    [['bench', 'redis://db'], 'bench takes no argument; name the store with --store'],
    [['migrate', '--print', 'postgres://db'], 'migrate takes no argument; name the store with --store'],
    [['ls', 'a', '--', 'b'], 'one prefix is enough; what is "b"?'],
    [['ls', '--jsn'], 'unknown option "--jsn" (did you mean "--json"? known: --older-than, '],
  ]
  const ends = await Promise.all(wrong.map(([typed]) => fixture.leasehold(...typed).ended))
  for (const [i, { code, stdout, stderr }] of ends.entries()) {
    expect(stderr).toContain(wrong[i]?.[1])
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
    run.run(new Input(run, typed.split(' ').filter(Boolean)), { watchdogFile: 'not started', commands: async () => [] })
  await expect(start()).rejects.toThrow(says)
})

test('a name that begins with a dash comes after "--" where no command follows', async () => {
  const holder = fixture.leasehold('run', 'x', '--', 'sh', '-c', 'echo ready; cat')
  await holder.says('ready')
  const [ls, show] = await Promise.all([
    fixture.leasehold('ls', '--json', '--', '-no-such-prefix').ended,
    fixture.leasehold('show', '--json', '--', '-x').ended,
  ])
  expect(JSON.parse(ls.stdout)).toEqual([])
  expect(JSON.parse(show.stdout)).toMatchObject({ name: '-x', holders: [] })
  holder.closeStdin()
  expect((await holder.ended).code).toBe(0)
})

test('without a command it shows help, as bad usage', async () => {
  const { code, stdout, stderr } = await fixture.leasehold().ended
  expect(stderr).toContain('run <name> [options] -- command [args…]')
  expect({ code, stdout }).toEqual({ code: 64, stdout: '' })
})

test('help is data: of all commands, and of one with its options and examples, however it is asked for', async () => {
  const [all, ...ofRun] = await Promise.all(
    [['--help'], ['help', 'run'], ['run', '--help'], ['run', 'x', '-h']].map(
      (typed) => fixture.leasehold(...typed).ended,
    ),
  )
  expect(all).toMatchObject({ code: 0, stdout: expect.stringContaining('release <name> --force'), stderr: '' })
  for (const help of ofRun) {
    expect(help).toMatchObject({ code: 0, stderr: '' })
    expect(help.stdout).toMatch(/^Usage: leasehold run <name> .*--ttl DURATION .*Examples\n/s)
  }
})

test('what belongs to the command is not read as an option of ours', async () => {
  const run = fixture.leasehold('run', 'theirs', '--', 'printf', '%s,', '--help', '--ttl', '--', '-h')
  expect(await run.ended).toMatchObject({ code: 0, stdout: '--help,--ttl,--,-h,' })
})

test('--version is that of the package', async () => {
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'))
  expect(await fixture.leasehold('--version').ended).toMatchObject({ code: 0, stdout: `${version}\n` })
})

/** All commands, by their files: each exports itself under the name of its file. */
async function allCommands(): Promise<Record<string, Command>> {
  const folder = new URL('../../src/cli/commands/', import.meta.url)
  const names = readdirSync(folder).map((file) => file.replace('.ts', ''))
  const load = async (name: string): Promise<[string, Command]> => [name, (await import(`${folder}${name}.ts`))[name]]
  return Object.fromEntries(await Promise.all(names.map(load)))
}

test('every example in help and in the guides is typed as the command takes it', async () => {
  const commands = await allCommands()
  const guides = ['command-line', 'doctor'].map((name) =>
    readFileSync(new URL(`../../docs/guide/${name}.md`, import.meta.url), 'utf8'),
  )
  const lines = [...guides.join('\n').matchAll(/^leasehold .*$/gm)].map(([line]) => line)
  expect(lines.length).toBeGreaterThan(20)
  for (const command of Object.values(commands)) {
    expect(command.examples.length, command.summary).toBeGreaterThan(0)
    lines.push(...command.examples.map(([line]) => line))
  }
  for (const line of lines) {
    const [, name = '', ...words] = line.replace(/\s+#.*| (\||>>?) .*|;.*/g, '').split(' ')
    const typed = new Input(commands[name] as Command, words.filter(Boolean))
    expect(typed.positionals.length, line).toBeLessThanOrEqual(1)
    expect(typed.rest !== undefined, line).toBe(commands[name]?.runsCommand === true)
  }
})

test('every command is in the list of commands, and in help', async () => {
  const { stdout } = await fixture.leasehold('help').ended
  for (const name of Object.keys(await allCommands())) expect(stdout).toMatch(new RegExp(`^  ${name} `, 'm'))
})

test('the guide lists every check of doctor', () => {
  const folder = new URL('../../src/doctor/', import.meta.url)
  const source = readdirSync(folder)
    .map((file) => readFileSync(new URL(file, folder), 'utf8'))
    .join('')
  const stores = ['redis', 'redlock', 'postgres', 'advisory', 'sqlite', 'etcd']
  const ids = [...source.matchAll(/'((?:redis|redlock|postgres|advisory|sqlite|etcd)\.[a-z-]+)'/g)].map(([, id]) => id)
  for (const name of [...source.matchAll(/^ +check\('([a-z-]+)'/gm)].map(([, check]) => check)) {
    ids.push(`postgres.${name}`, `advisory.${name}`)
  }
  for (const store of stores) ids.push(`${store}.reachable`, `${store}.trial`)
  const guide = readFileSync(new URL('../../docs/guide/doctor.md', import.meta.url), 'utf8')
  const [, table = ''] = guide.split('## The checks')
  const listed = [...table.matchAll(/`([a-z]+\.[a-z-]+)`/g)].map(([, id]) => id)
  expect(listed.sort()).toEqual([...new Set(ids)].sort())
})

test('help says whom the default store covers', async () => {
  const { stdout } = await fixture.leasehold('help').ended
  expect(stdout).toContain('this user on this machine')
  expect(stdout).not.toContain('all processes of this machine')
})
