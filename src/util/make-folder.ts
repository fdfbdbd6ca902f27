import { existsSync, mkdirSync } from 'node:fs'
import { dirname } from 'node:path'

/**
 * Makes a folder and those above it that are missing. One by one: where nothing can be made (below /proc), Node's own `recursive`
 * never comes back.
 */
export function makeFolder(path: string, mode: number): void {
  const missing: string[] = []
  for (let at = path; !existsSync(at) && dirname(at) !== at; at = dirname(at)) missing.push(at)
  for (const folder of missing.reverse()) {
    try {
      mkdirSync(folder, { mode })
    } catch (error) {
      // Another process made it meanwhile.
      if ((error as { code?: string }).code !== 'EEXIST') throw error
    }
  }
  // Throws if a file is in its place.
  mkdirSync(path, { recursive: true })
}
