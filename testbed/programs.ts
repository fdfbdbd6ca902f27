/**
 * Runs TypeScript files as separate programs. A loader that translates at every start costs half a second of processor
 * time, more than most of these processes work for. So everything is translated once, into a tree of the same shape.
 */
import { cpSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { buildSync } from 'esbuild'

export const ROOT: string = fileURLToPath(new URL('..', import.meta.url))

/** Environment variable with the folder into which a parent process has translated everything. */
const INHERITED = 'LEASEHOLD_PROGRAMS'
/** Prefix of the folder. The id of the process that made it follows. */
const FOLDER = 'leasehold-programs-'

/** The path of the translated file, for `node` to run. */
export function program(script: URL): string {
  return translated(relative(ROOT, fileURLToPath(script)))
}

/** The translated src/ folder. */
export const translatedSource = (): string => translated('src')

function translated(path: string): string {
  return join((process.env[INHERITED] ??= translateHere()), path.replace(/\.ts$/, '.js'))
}

/** Translates everything, for this process and all its children, until this process ends. */
function translateHere(): string {
  sweep()
  const folder = mkdtempSync(join(tmpdir(), `${FOLDER}${process.pid}-`))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  settle(folder)
  translateAll(folder)
  return folder
}

/** Removes the folders of killed processes, which could not remove them themselves. */
function sweep(): void {
  for (const name of readdirSync(tmpdir()).filter((entry) => entry.startsWith(FOLDER))) {
    const pid = Number(name.slice(FOLDER.length).split('-')[0])
    if (!isAlive(pid)) rmSync(join(tmpdir(), name), { recursive: true, force: true })
  }
}

/** True also for a process of another user. */
function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH'
  }
}

function translateAll(folder: string): void {
  for (const part of ['src', 'test', 'testbed', 'verify', 'scripts']) {
    cpSync(join(ROOT, part), join(folder, part), { recursive: true, filter: (file) => !file.endsWith('.ts') })
    translate(join(ROOT, part), join(folder, part))
  }
}

/** Makes copies of the sources in this folder find the packages that they import. */
export function settle(folder: string): void {
  cpSync(join(ROOT, 'package.json'), join(folder, 'package.json'))
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
}

/** Translates each TypeScript file of `from` to JavaScript at the same path below `to`. */
export function translate(from: string, to: string): void {
  const files = readdirSync(from, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'))
  buildSync({
    entryPoints: files.map((file) => join(from, file)),
    outbase: from,
    outdir: to,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    tsconfig: join(ROOT, 'tsconfig.json'),
    logLevel: 'warning',
  })
}

/** The global set-up of vitest: translates once for all test files, and again when a file has changed. */
export function setup(run: { onTestsRerun(again: () => void): void }): void {
  const folder = (process.env[INHERITED] ??= translateHere())
  run.onTestsRerun(() => translateAll(folder))
}
