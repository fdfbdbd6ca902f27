/**
 * Completion for bash, zsh and fish, made from what the commands say about themselves.
 *
 * @module
 */
import type { Command, OptionSpec } from './command.js'

type Commands = readonly (readonly [name: string, command: Command])[]

export function completionScript(shell: string, commands: Commands): string {
  const all: Commands = [...commands, ['help', helpFor(commands)]]
  if (shell === 'bash') return bashScript(all)
  return shell === 'zsh' ? zshScript(all) : fishScript(all)
}

/** `help` is none of the commands, but is typed like one. */
function helpFor(commands: Commands): Command {
  return {
    usage: '[command]',
    summary: 'more about one command, with examples',
    options: {},
    words: commands.map(([name]) => name),
    examples: [],
    run: async () => 0,
  }
}

/** Pairs of command and option, for all options with a value that satisfies the condition. */
function optionsWhere(commands: Commands, wanted: (spec: OptionSpec) => boolean): [string, string, OptionSpec][] {
  return commands.flatMap(([name, { options }]) =>
    Object.entries(options)
      .filter(([, spec]) => spec.value !== undefined && wanted(spec))
      .map(([option, spec]): [string, string, OptionSpec] => [name, option, spec]),
  )
}

const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`
const runners = (commands: Commands): string[] =>
  commands.filter(([, { runsCommand }]) => runsCommand).map(([name]) => name)

function bashScript(commands: Commands): string {
  const pattern = (pairs: [string, string, OptionSpec][]): string =>
    pairs.map(([command, option]) => `'${command} --${option}'`).join('|')
  const chosen = optionsWhere(commands, ({ words }) => words !== undefined).map(
    (pair) => `    ${pattern([pair])}) words=${quoted((pair[2].words ?? []).join(' '))} ;;`,
  )
  const files = optionsWhere(commands, ({ file }) => file === true)
  const others = optionsWhere(commands, ({ words, file }) => words === undefined && !file)
  const perCommand = commands.map(([name, { options, words = [] }]) => {
    const typed = [...words, ...Object.keys(options).map((option) => `--${option}`), '--help']
    return `      ${name}) words=${quoted(typed.join(' '))} ;;`
  })
  return `# Completion of leasehold for bash.
_leasehold() {
  local current=\${COMP_WORDS[COMP_CWORD]} previous=\${COMP_WORDS[COMP_CWORD-1]} command=\${COMP_WORDS[1]} words= i
  # Names of files may contain spaces.
  local IFS=$' \\t\\n'
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=( $(compgen -W ${quoted([...commands.map(([name]) => name), '--help', '--version'].join(' '))} -- "$current") )
    return
  fi
  for (( i = 2; i < COMP_CWORD; i++ )); do
    [[ \${COMP_WORDS[i]} == -- ]] || continue
    IFS=$'\\n'
    case $command in
      ${runners(commands).join('|')})
        compopt -o filenames 2>/dev/null
        if (( i + 1 == COMP_CWORD )); then COMPREPLY=( $(compgen -c -- "$current") )
        else COMPREPLY=( $(compgen -f -- "$current") ); fi ;;
    esac
    return
  done
  case "$command $previous" in
${chosen.join('\n')}
    ${pattern(files)})
      IFS=$'\\n'
      compopt -o filenames 2>/dev/null
      COMPREPLY=( $(compgen -f -- "$current") )
      return ;;
    ${pattern(others)}) return ;;
    *) case $command in
${perCommand.join('\n')}
    esac ;;
  esac
  COMPREPLY=( $(compgen -W "$words" -- "$current") )
}
complete -F _leasehold leasehold`
}

function zshScript(commands: Commands): string {
  // Brackets and colons separate the parts of a specification.
  const escaped = (text: string): string => text.replaceAll(/[[\]:\\]/g, '\\$&')
  const specOf = ([option, { value, help, words, file }]: [string, OptionSpec]): string => {
    const action = file ? '_files' : words ? `(${words.join(' ')})` : ' '
    return quoted(`--${option}[${escaped(help)}]${value === undefined ? '' : `:${escaped(value)}:${action}`}`)
  }
  const branches = commands.map(([name, { options, words }]) => {
    const specs = [...Object.entries(options).map(specOf), quoted('--help[show help]')]
    // Without a specification for them, nothing is offered behind a name.
    specs.push(quoted(words ? `1:argument:(${words.join(' ')})` : '*: :->nothing'))
    return `    ${name}) _arguments ${specs.join(' \\\n      ')} ;;`
  })
  const described = commands.map(([name, { summary }]) => `    ${quoted(`${name}:${escaped(summary)}`)}`)
  return `#compdef leasehold
# Completion of leasehold for zsh.
_leasehold() {
  # Not "commands": that is zsh's own table of programs, which has to stay visible.
  local -a subcommands
  subcommands=(
${described.join('\n')}
  )
  if (( CURRENT == 2 )); then
    _describe command subcommands
    return
  fi
  local command=$words[2] state line
  local -A opt_args
  local -i end=\${words[(i)--]}
  if (( end < CURRENT )); then
    case $command in
      ${runners(commands).join('|')})
        words=( "\${(@)words[end+1,-1]}" )
        (( CURRENT -= end ))
        _normal ;;
    esac
    return
  fi
  shift words
  (( CURRENT-- ))
  case $command in
${branches.join('\n')}
  esac
}
if [[ $funcstack[1] == _leasehold ]]; then _leasehold "$@"; else compdef _leasehold leasehold; fi`
}

function fishScript(commands: Commands): string {
  // In fish, a backslash is special between single quotes, too.
  const text = (words: string): string => `'${words.replaceAll(/['\\]/g, '\\$&')}'`
  const lines = commands.flatMap(([name, { summary, options, words }]) => {
    const within = `complete -c leasehold -n '__leasehold_typing ${name}'`
    const own = Object.entries(options).map(([option, { value, help, words: choices, file }]) => {
      const argument =
        value === undefined ? '' : file ? ' -r -F' : choices ? ` -x -a ${text(choices.join(' '))}` : ' -x'
      return `${within} -l ${option}${argument} -d ${text(help)}`
    })
    const positional = words ? [`${within} -a ${text(words.join(' '))}`] : []
    return [`complete -c leasehold -n __fish_use_subcommand -a ${name} -d ${text(summary)}`, ...own, ...positional]
  })
  return `# Completion of leasehold for fish.
function __leasehold_typing --description 'whether the options of this command are being typed'
    set -l typed (commandline -opc)
    test "$typed[2]" = $argv[1]; and not contains -- -- $typed
end
function __leasehold_command --description 'whether the command after -- is being typed'
    set -l typed (commandline -opc)
    contains -- "$typed[2]" ${runners(commands).join(' ')}; and contains -- -- $typed
end
complete -c leasehold -f
${lines.join('\n')}
complete -c leasehold -n __leasehold_command -F -a '(__fish_complete_command)'`
}
