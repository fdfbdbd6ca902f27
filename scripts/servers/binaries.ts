import { accessSync, constants, readdirSync } from 'node:fs'
import { delimiter, join } from 'node:path'

const DEBIAN_POSTGRES = '/usr/lib/postgresql'

/** Debian keeps PostgreSQL's programs out of PATH, one folder per version; what PATH has under those names may be a wrapper. */
function postgresFolders(): string[] {
  try {
    const versions = readdirSync(DEBIAN_POSTGRES).sort((a, b) => Number(b) - Number(a))
    return versions.map((version) => join(DEBIAN_POSTGRES, version, 'bin'))
  } catch {
    return []
  }
}

function find(name: string, folders: string[]): string {
  for (const folder of folders) {
    const path = join(folder, name)
    try {
      accessSync(path, constants.X_OK)
      return path
    } catch {
      // the next folder
    }
  }
  throw new Error(
    `${name} is not installed (looked in ${folders.join(', ')}); \`npm test\` installs it on Debian as root`,
  )
}

const path = (): string[] => (process.env.PATH ?? '').split(delimiter).filter(Boolean)

export function postgresBinary(name: string): string {
  return find(name, [...postgresFolders(), ...path()])
}

/** A server's program; Debian has some of them in sbin, which is not in everybody's PATH. */
export function serverBinary(name: string): string {
  return find(name, [...path(), '/usr/sbin', '/usr/local/sbin'])
}
