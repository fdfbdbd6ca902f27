import { parseArgs } from 'node:util'
import { InvalidOptionError } from '../errors.js'
import { type Duration, type DurationRange, milliseconds } from '../util/duration.js'
import { describe } from '../util/redact.js'
import { UsageError, unknownWord } from './usage-error.js'

export { UsageError }

/** One word after `leasehold`: what it takes, how it is explained, and what it does. */
export interface Command {
  /** What follows the command's name in the usage line, without the options. */
  usage: string
  /** One line, for the list of commands. */
  summary: string
  /** What help says beyond that. */
  about?: string
  options: Record<string, OptionSpec>
  /** What its positional argument is chosen from, for completion. */
  words?: readonly string[]
  /** A command of the user's follows after `--`. */
  runsCommand?: boolean
  /** Each with the reason one would type it. */
  examples: readonly (readonly [line: string, why: string])[]
  /** Resolves with the exit status. */
  run: (input: Input, program: Program) => Promise<number>
}

/** What only main knows: a bundler may move every file but the entries, and main has the list of commands. */
export interface Program {
  watchdogFile: string
  commands: () => Promise<(readonly [name: string, command: Command])[]>
}

export interface OptionSpec {
  /** What stands for its value in help, such as `DURATION`. Absent: a switch. */
  value?: string
  help: string
  /** What its value is chosen from, for completion. */
  words?: readonly string[]
  /** Its value is the name of a file. */
  file?: boolean
}

/** The arguments after the command's name, checked against the options that the command takes. */
export class Input {
  readonly positionals: readonly string[]
  /** The user's command, which followed `--`; undefined if there was none. */
  readonly rest: readonly string[] | undefined
  readonly #values: ReadonlyMap<string, string | true>

  constructor(command: Command, argv: readonly string[]) {
    const end = argv.indexOf('--')
    const after = end === -1 ? undefined : argv.slice(end + 1)
    const { values, positionals } = parse(command, end === -1 ? argv : argv.slice(0, end))
    this.#values = values
    this.rest = command.runsCommand ? after : undefined
    // Where no command follows, "--" ends the options, as everywhere: a name may begin with "-".
    this.positionals = command.runsCommand ? positionals : [...positionals, ...(after ?? [])]
  }

  has(option: string): boolean {
    return this.#values.has(option)
  }

  value(option: string): string | undefined {
    return this.#values.get(option) as string | undefined
  }

  /** In milliseconds. A bare number is milliseconds, too. */
  duration(option: string, range?: DurationRange): number | undefined {
    const text = this.value(option)
    if (text === undefined) return undefined
    return milliseconds(`--${option}`, /^\d+(\.\d+)?$/.test(text) ? Number(text) : (text as Duration), range)
  }

  /** A whole number within these bounds. */
  count(option: string, { least = 1, most }: { least?: number; most: number }): number | undefined {
    const text = this.value(option)
    if (text === undefined) return undefined
    const count = /^\d+$/.test(text) ? Number(text) : Number.NaN
    if (count >= least && count <= most) return count
    throw new InvalidOptionError(`--${option}`, text, `a whole number from ${least} to ${most}`)
  }

  /** One of these words. */
  oneOf(option: string, known: readonly string[]): string | undefined {
    const word = this.value(option)
    if (word === undefined || known.includes(word)) return word
    throw unknownWord(option, word, known)
  }

  /** The only positional argument, which has to be there. */
  one(what: string): string {
    const [first, second] = this.positionals
    if (first === undefined) throw new UsageError(`${what} is missing`)
    if (second !== undefined) throw new UsageError(`one ${what} is enough; what is ${describe(second)}?`)
    return first
  }

  /** Refuses positional arguments. "doctor redis://db" would otherwise examine the default store, and call that one safe. */
  none(command: string): void {
    if (this.positionals.length === 0) return
    throw new UsageError(`${command} takes no argument; name the store with --store`)
  }

  /** The only positional argument, if there is any. */
  atMostOne(what: string): string | undefined {
    return this.positionals.length === 0 ? undefined : this.one(what)
  }
}

interface ParsedArguments {
  values: Map<string, string | true>
  positionals: string[]
}

function parse(command: Command, args: readonly string[]): ParsedArguments {
  const options: Record<string, { type: 'string' | 'boolean' }> = {}
  for (const [name, { value }] of Object.entries(command.options))
    options[name] = { type: value ? 'string' : 'boolean' }
  const { tokens } = parseArgs({ args: [...args], options, strict: false, allowPositionals: true, tokens: true })
  const typed: ParsedArguments = { values: new Map(), positionals: [] }
  for (const token of tokens) {
    if (token.kind === 'positional') typed.positionals.push(token.value)
    else if (token.kind === 'option') typed.values.set(token.name, checked(command, token))
  }
  return typed
}

interface OptionToken {
  name: string
  rawName: string
  value?: string | undefined
  inlineValue?: boolean | undefined
}

function checked(command: Command, { name, rawName, value, inlineValue }: OptionToken): string | true {
  const spec = Object.hasOwn(command.options, name) && rawName.startsWith('--') ? command.options[name] : undefined
  if (!spec) {
    const known = Object.keys(command.options).map((option) => `--${option}`)
    throw unknownWord('option', rawName, known)
  }
  if (!spec.value) {
    if (value === undefined) return true
    throw new UsageError(`${rawName} is a switch and takes no value; it was given ${describe(value)}`)
  }
  if (value === undefined) throw new UsageError(`${rawName} takes ${spec.value}; there was none`)
  // In "--ttl --wait 5s" the value of --ttl is missing: without this check, "--wait" would be taken for it.
  if (!inlineValue && value.startsWith('-')) {
    throw new UsageError(`${rawName} takes ${spec.value}; it was ${describe(value)}`)
  }
  return value
}
