#!/usr/bin/env node
import { readFileSync } from 'node:fs'
import { extname } from 'node:path'
import { fileURLToPath } from 'node:url'
import {
  InvalidOptionError,
  LeaseholdError,
  LockTimeoutError,
  MissingPackageError,
  StoreUnavailableError,
  UnsupportedError,
} from '../errors.js'
import { type Command, Input, type Program, UsageError } from './command.js'
import { exitCode } from './exit-codes.js'
import { leavePid1ToShell } from './pid1.js'
import { type Output, flushed, print, say } from './output.js'
import { unknownWord } from './usage-error.js'
import { redact } from '../util/redact.js'

/** Each command is loaded only when it is typed. A new command is a file in commands/ and a line here. */
const commands: Record<string, () => Promise<Command>> = {
  run: async () => (await import('./commands/run.js')).run,
  elect: async () => (await import('./commands/elect.js')).elect,
  ls: async () => (await import('./commands/ls.js')).ls,
  show: async () => (await import('./commands/show.js')).show,
  watch: async () => (await import('./commands/watch.js')).watch,
  release: async () => (await import('./commands/release.js')).release,
  doctor: async () => (await import('./commands/doctor.js')).doctor,
  bench: async () => (await import('./commands/bench.js')).bench,
  dashboard: async () => (await import('./commands/dashboard.js')).dashboard,
  migrate: async () => (await import('./commands/migrate.js')).migrate,
  completion: async () => (await import('./commands/completion.js')).completion,
}

/** What people type who know another tool, and which command does it here. */
const SYNONYMS: Record<string, string> = {
  check: 'doctor',
  exec: 'run',
  inspect: 'show',
  leader: 'elect',
  list: 'ls',
  lock: 'run',
  status: 'ls',
  top: 'watch',
  unlock: 'release',
}

const program: Program = {
  commands: () => Promise.all(Object.entries(commands).map(async ([name, load]) => [name, await load()] as const)),
  watchdogFile: fileURLToPath(new URL(`watchdog${extname(import.meta.url)}`, import.meta.url)),
}

async function main(argv: readonly string[]): Promise<number> {
  const [name, ...rest] = argv
  if (name === '--version' || name === '-v') return version()
  if (name === undefined) {
    say(`what should it do?\n\n${await overview('stderr')}`)
    return exitCode.usage
  }
  if (name === 'help' || name === '--help' || name === '-h') return help(rest)
  const command = await commandNamed(name)
  const end = rest.indexOf('--')
  const own = end === -1 ? rest : rest.slice(0, end)
  if (own.includes('--help') || own.includes('-h')) return help([name])
  try {
    return await command.run(new Input(command, rest), program)
  } catch (error) {
    if (error instanceof UsageError) error.message += `\nleasehold: try "leasehold help ${name}"`
    throw error
  }
}

async function commandNamed(name: string): Promise<Command> {
  const load = Object.hasOwn(commands, name) ? commands[name] : undefined
  if (!load) {
    const meant = Object.hasOwn(SYNONYMS, name) ? SYNONYMS[name] : undefined
    throw unknownWord('command', name, Object.keys(commands), meant)
  }
  return load()
}

async function help(names: readonly string[]): Promise<number> {
  const [name] = names
  if (name === undefined) print(await overview('stdout'))
  else print((await import('./help.js')).helpOf(name, await commandNamed(name)))
  return exitCode.ok
}

async function overview(output: Output): Promise<string> {
  const { helpOfAll } = await import('./help.js')
  return helpOfAll(await program.commands(), output)
}

function version(): number {
  const manifest = readFileSync(new URL('../../package.json', import.meta.url), 'utf8')
  print((JSON.parse(manifest) as { version: string }).version)
  return exitCode.ok
}

/** Busy, outage and bad input are never confused. */
function exitCodeOf(error: unknown): number {
  if (error instanceof UsageError || error instanceof InvalidOptionError || error instanceof UnsupportedError) {
    return exitCode.usage
  }
  if (error instanceof LockTimeoutError) return exitCode.busy
  if (error instanceof StoreUnavailableError || error instanceof MissingPackageError) return exitCode.unavailable
  return exitCode.lost
}

function printError(error: unknown): void {
  if (!(error instanceof Error)) return say(String(error))
  const known = error instanceof LeaseholdError || error instanceof UsageError
  // An unexpected error is a bug: its stack is needed for a fix.
  say(known ? error.message : (error.stack ?? error.message))
  if (error instanceof MissingPackageError) say(`or without installing anything:\n  ${withPackage(error)}`)
  for (let cause = error.cause; cause instanceof Error; cause = cause.cause) say(`because: ${cause.message}`)
}

/** The same command with the package that it lacks. */
function withPackage({ packages }: MissingPackageError): string {
  const words = process.argv
    .slice(2)
    .map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`))
  return redact(`npx -p leasehold -p ${packages[0]} leasehold ${words.join(' ')}`)
}

function fail(error: unknown): never {
  printError(error)
  process.exit(exitCodeOf(error))
}

async function exit(code: number): Promise<never> {
  try {
    await flushed()
  } catch (error) {
    say(`the output could not be written: ${error instanceof Error ? error.message : error}`)
    process.exit(exitCode.outputFailed)
  }
  process.exit(code)
}

process.on('uncaughtException', fail)
leavePid1ToShell()
main(process.argv.slice(2)).then(exit, fail)
