// Libraries to compare with: installed beside bench/peers/package.json, never into the project.
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT } from '../../testbed/programs.js'

const FOLDER = join(ROOT, 'bench/peers')
const INSTALL_LIMIT_MS = 300_000

function isInstalled(): boolean {
  const record = join(FOLDER, 'node_modules/.package-lock.json')
  if (!existsSync(record)) return false
  const versionsIn = (file: string): Record<string, { version?: string }> =>
    (JSON.parse(readFileSync(file, 'utf8')) as { packages: Record<string, { version?: string }> }).packages
  const installed = versionsIn(record)
  return Object.entries(versionsIn(join(FOLDER, 'package-lock.json'))).every(
    ([path, { version }]) => path === '' || installed[path]?.version === version,
  )
}

/** Path of the package.json beside which the peers are found. */
export function ensurePeers(): string {
  if (!isInstalled()) {
    console.error('Installing the libraries to compare with …')
    // Some ask for a newer Node than they need, and npm passes on that the project itself is strict.
    execFileSync('npm', ['ci', '--no-audit', '--no-fund', '--engine-strict=false', '--ignore-scripts'], {
      cwd: FOLDER,
      stdio: ['ignore', 'ignore', 'inherit'],
      timeout: INSTALL_LIMIT_MS,
    })
  }
  return join(FOLDER, 'package.json')
}
