/** `leasehold run` with a watchdog of our choice: its file, then what follows `run`. */
import { Input } from '../../src/cli/command.js'
import { run } from '../../src/cli/commands/run.js'

const [, , watchdogFile, ...typed] = process.argv
const program = { watchdogFile: watchdogFile as string, commands: async () => [] }
process.exit(await run.run(new Input(run, typed), program))
