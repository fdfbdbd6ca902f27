/** Finds the programs of the servers. */
import { accessSync, constants, readdirSync } from 'node:fs'
import { delimiter, join } from 'node:path'

const DEBIAN_POSTGRES = '/usr/lib/postgresql'

/**
 * Debian keeps the programs of PostgreSQL out of PATH, in one folder per version. A program of that name in PATH may be
 * a wrapper.
 */
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

/** The program of a server. Debian has some of them in sbin, which is not in every PATH. */
export function serverBinary(name: string): string {
  return find(name, [...path(), '/usr/sbin', '/usr/local/sbin'])
}
