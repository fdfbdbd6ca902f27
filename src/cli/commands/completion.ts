import { type Command, type Input, type Program, UsageError } from '../command.js'
import { exitCode } from '../exit-codes.js'
import { print } from '../output.js'
import { unknownWord } from '../usage-error.js'

const SHELLS: readonly string[] = ['bash', 'zsh', 'fish']

export const completion: Command = {
  usage: 'bash|zsh|fish',
  summary: 'prints the completion script for a shell',
  about: `
Completes commands, options and their fixed values, and after "--" the command to run. It never connects to a store.
The script names the commands of this version: print it again after an update, or let the shell do so, as below.`,
  options: {},
  words: SHELLS,
  examples: [
    ['leasehold completion bash >> ~/.bash_completion', 'or in ~/.bashrc: eval "$(leasehold completion bash)"'],
    [
      'leasehold completion zsh > ~/.zfunc/_leasehold',
      'or in ~/.zshrc, after compinit: eval "$(leasehold completion zsh)"',
    ],
    ['leasehold completion fish > ~/.config/fish/completions/leasehold.fish', 'fish loads it by itself'],
  ],
  run: printScript,
}

async function printScript(input: Input, program: Program): Promise<number> {
  const shell = input.atMostOne('shell')
  if (shell === undefined) throw new UsageError(`for which shell? One of ${SHELLS.join(', ')}`)
  if (!SHELLS.includes(shell)) throw unknownWord('shell', shell, SHELLS)
  const { completionScript } = await import('../completion-scripts.js')
  print(completionScript(shell, await program.commands()))
  return exitCode.ok
}
