import { parseArgs, type ParseArgsConfig } from 'node:util'

/** The exit status for wrong usage, as in sysexits.h and as of the package's own command line. */
const USAGE_ERROR = 64

/** The options of a command of this repository. `--help` prints its usage; a mistake is told with it, instead of a stack trace. */
export function commandLine<T extends ParseArgsConfig>(usage: string, config: T): ReturnType<typeof parseArgs<T>> {
  if (process.argv.slice(2).some((each) => each === '--help' || each === '-h')) {
    console.log(usage)
    process.exit(0)
  }
  try {
    return parseArgs(config)
  } catch (error) {
    return badUsage((error as Error).message, usage)
  }
}

export function badUsage(message: string, usage: string): never {
  console.error(`${message}\n\n${usage}`)
  process.exit(USAGE_ERROR)
}
