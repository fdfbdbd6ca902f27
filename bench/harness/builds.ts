// Builds to measure: the working tree's, and that of the commit given with --against.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { ROOT, translate } from '../../testbed/programs.js'
import { atExit } from './exit.js'

const BUILD_LIMIT_MS = 120_000
const INSTALL_LIMIT_MS = 180_000

export interface Build {
  /** "leasehold", or "leasehold@<commit>". */
  label: string
  /** URL of its `dist` folder. */
  url: string
  remove(): void
}

export const distOf = (folder: string): string => pathToFileURL(join(folder, 'dist/')).href

export const git = (...args: string[]): string =>
  execFileSync('git', args, { cwd: ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim()

export function temporaryFolder(name: string): { folder: string; remove(): void } {
  const folder = mkdtempSync(join(tmpdir(), `leasehold-bench-${name}-`))
  return { folder, remove: atExit(() => rmSync(folder, { recursive: true, force: true })) }
}

/** The packages of the working tree serve if the commit locks the same ones; otherwise it gets its own. */
function linkPackages(folder: string): void {
  const lockOf = (root: string): string => readFileSync(join(root, 'package-lock.json'), 'utf8')
  if (lockOf(folder) === lockOf(ROOT)) symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  else
    execFileSync('npm', ['ci', '--no-audit', '--no-fund'], {
      cwd: folder,
      stdio: 'pipe',
      timeout: INSTALL_LIMIT_MS,
    })
}

export function buildCommit(commit: string): Build {
  const hash = git('rev-parse', '--verify', '--short', `${commit}^{commit}`)
  const { folder, remove } = temporaryFolder('against')
  execFileSync('sh', ['-c', 'git archive "$1" | tar -x -C "$2"', 'sh', hash, folder], {
    cwd: ROOT,
    timeout: BUILD_LIMIT_MS,
  })
  linkPackages(folder)
  execFileSync('npm', ['run', '--silent', 'build'], {
    cwd: folder,
    stdio: 'pipe',
    timeout: BUILD_LIMIT_MS,
  })
  return { label: `leasehold@${hash}`, url: distOf(folder), remove }
}

/** bench/ as JavaScript: a loader that translates at run time would slow down every closure of a library's process. */
export function translateBench(): { program: string; remove(): void } {
  const { folder, remove } = temporaryFolder('programs')
  for (const name of ['package.json', 'node_modules']) symlinkSync(join(ROOT, name), join(folder, name))
  for (const part of ['harness', 'libraries', 'scenarios'])
    translate(join(ROOT, 'bench', part), join(folder, 'bench', part))
  return { program: join(folder, 'bench/harness/child.js'), remove }
}
