/**
 * TypeScript files as programs of their own. A loader that translates at every start costs half a second of a core each
 * time, more than most of these processes work for: so everything is translated once, into a tree of the same shape.
 */
import { cpSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { buildSync } from 'esbuild'

export const ROOT: string = fileURLToPath(new URL('../..', import.meta.url))

/** Where a parent has translated everything already. */
const INHERITED = 'LEASEHOLD_PROGRAMS'
/** Named after the process that made it. */
const FOLDER = 'leasehold-programs-'

/** The path of what `node` runs in place of this file. */
export function program(script: URL): string {
  return translated(relative(ROOT, fileURLToPath(script)))
}

/** src/ as JavaScript. */
export const translatedSource = (): string => translated('src')

function translated(path: string): string {
  return join((process.env[INHERITED] ??= translateHere()), path.replace(/\.ts$/, '.js'))
}

/** Everything, for as long as this process lives, for itself and all its children. */
function translateHere(): string {
  sweep()
  const folder = mkdtempSync(join(tmpdir(), `${FOLDER}${process.pid}-`))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  settle(folder)
  translateAll(folder)
  return folder
}

/** Whoever was killed could not clear up after itself. */
function sweep(): void {
  for (const name of readdirSync(tmpdir()).filter((entry) => entry.startsWith(FOLDER))) {
    const pid = Number(name.slice(FOLDER.length).split('-')[0])
    if (!isAlive(pid)) rmSync(join(tmpdir(), name), { recursive: true, force: true })
  }
}

/** Also if it is somebody else's. */
function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH'
  }
}

function translateAll(folder: string): void {
  for (const part of ['src', 'test', 'scripts']) {
    cpSync(join(ROOT, part), join(folder, part), { recursive: true, filter: (file) => !file.endsWith('.ts') })
    translate(join(ROOT, part), join(folder, part))
  }
}

/** Makes a folder one in which copies of our sources find what they import and read. */
export function settle(folder: string): void {
  cpSync(join(ROOT, 'package.json'), join(folder, 'package.json'))
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
}

/** Each TypeScript file of `from` as JavaScript at the same place of `to`. */
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

/** For a run of the tests: once for all its files, and again when something has changed. */
export function setup(run: { onTestsRerun(again: () => void): void }): void {
  const folder = (process.env[INHERITED] ??= translateHere())
  run.onTestsRerun(() => translateAll(folder))
}
