/** Completion as it works when people press TAB, in the real shells. */
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { beforeAll, expect, test } from 'vitest'
import { CliFixture, type TestProcess } from './harness.js'

const fixture = new CliFixture()
const SHELLS = ['bash', 'zsh', 'fish'] as const

beforeAll(async () => {
  const scripts = await Promise.all(SHELLS.map((shell) => fixture.leasehold('completion', shell).ended))
  for (const [i, { code, stdout, stderr }] of scripts.entries()) {
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    writeFileSync(fixture.path(`completion.${SHELLS[i]}`), stdout)
  }
  mkdirSync(fixture.path('bin'))
  writeFileSync(fixture.path('bin/unlikely-program'), '#!/bin/sh\n')
  chmodSync(fixture.path('bin/unlikely-program'), 0o755)
  writeFileSync(fixture.path('url file'), '')
})

/** What is typed, what is offered for its last word, and the arguments that the shell makes of it after TAB. */
const TYPED: [typed: string, offered: string, args: string][] = [
  ['el', 'elect', 'elect'],
  ['completion f', 'fish', 'completion fish'],
  ['ls --old', '--older-than', 'ls --older-than'],
  ['ls --kind sem', 'semaphore', 'ls --kind semaphore'],
  ['help wat', 'watch', 'help watch'],
  ['run x --store-file url', 'url file', 'run x --store-file url file'],
  ['run x -- unlikely-pr', 'unlikely-program', 'run x -- unlikely-program'],
]

/** A shell whose `leasehold` is a function that prints its arguments. */
async function shell(command: string, setUp: string[]): Promise<TestProcess> {
  const env = { PATH: `${fixture.path('bin')}:${process.env.PATH}`, TERM: 'xterm', HISTFILE: '/dev/null' }
  const terminal = fixture.inTerminal(`cd ${fixture.folder}; exec ${command}`, env)
  for (const line of [...setUp, 'leasehold() { printf "<%s>\\n" "$*"; }', 'echo rea""dy']) terminal.type(`${line}\n`)
  await terminal.says('ready')
  return terminal
}

test.each([
  ['bash', 'bash --norc --noprofile -i', ['source completion.bash']],
  ['zsh', 'zsh -f -i', ['autoload -U compinit', 'compinit -u -D', 'source ./completion.zsh']],
])('%s completes commands, options, values, files, and the command after --', async (_, command, setUp) => {
  const terminal = await shell(command, setUp)
  for (const [typed, , args] of TYPED) {
    terminal.type(`leasehold ${typed}\t\n`)
    await terminal.says(`<${args}>`)
  }
})

test('fish completes commands, options, values, files, and the command after --', async () => {
  const asked = TYPED.map(([typed]) => `complete -C 'leasehold ${typed}'`)
  const lines = [`cd ${fixture.folder}; source completion.fish`, ...asked]
  const env = { PATH: `${fixture.path('bin')}:${process.env.PATH}` }
  const { stdout, stderr } = await fixture.start(['fish', '--no-config', '-c', lines.join('; echo =; ')], env).ended
  expect(stderr).toBe('')
  const answers = stdout.split('=\n').slice(1)
  for (const [i, [typed, offered]] of TYPED.entries()) {
    const candidates = answers[i]?.split('\n').map((line) => line.split('\t')[0])
    expect(candidates, typed).toContain(offered)
  }
})

test('a shell that is not known is bad usage with a suggestion', async () => {
  const { code, stderr } = await fixture.leasehold('completion', 'bsh').ended
  expect(code).toBe(64)
  expect(stderr).toContain('unknown shell "bsh" (did you mean "bash"? known: bash, zsh, fish)')
})
