import type { Command } from './command.js'
import { type Output, paint } from './output.js'

export function helpOf(name: string, command: Command): string {
  const options = Object.entries(command.options).map(
    ([option, spec]) => [`--${option}${spec.value ? ` ${spec.value}` : ''}`, spec.help] as const,
  )
  const examples = command.examples.map(([line, why]) => `  ${paint('dim', `# ${why}`)}\n  ${line}`)
  return [
    `${paint('bold', 'Usage:')} leasehold ${name} ${command.usage}`,
    sentence(command.summary) + (command.about ? `\n${command.about}` : ''),
    `${paint('bold', 'Options')}\n${aligned(options)}`,
    `${paint('bold', 'Examples')}\n${examples.join('\n')}`,
  ].join('\n\n')
}

export function helpOfAll(commands: readonly (readonly [string, Command])[], output: Output): string {
  const title = (text: string): string => paint('bold', text, output)
  const lines = commands.map(([name, command]) => [`${name} ${command.usage}`, command.summary] as const)
  return [
    `${title('Usage:')} leasehold <command> …`,
    'Locks for commands and scripts: with a holder, a time limit and a fencing token.',
    `${title('Commands')}\n${aligned(lines)}`,
    `  leasehold help <command>   more about one of them, with examples\n  leasehold --version`,
    `Locks are kept in the store that --store or LEASEHOLD_STORE names, such as redis://localhost:6379;
by default in an SQLite file in your state directory, which covers this user on this machine: other users
(root, too) and other machines do not see these locks.`,
  ].join('\n\n')
}

function aligned(lines: readonly (readonly [string, string])[]): string {
  const width = Math.max(...lines.map(([left]) => left.length))
  return lines.map(([left, right]) => `  ${left.padEnd(width)}   ${right}`).join('\n')
}

function sentence(summary: string): string {
  return `${summary.charAt(0).toUpperCase()}${summary.slice(1)}.`
}
