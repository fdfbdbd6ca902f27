/** Packs the package and installs it into fresh projects, one after the other: bursts of installs are throttled. */
import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { delimiter, dirname, join } from 'node:path'
import { ensureBuilt } from '../build.mjs'
import { ROOT } from '../../testbed/programs.js'
import type { Project, Runtime } from './projects.js'

/** Tools and run-times weigh some 600 MB: kept between runs, outside of git and of the package. */
const CACHE = join(ROOT, '.cache/newcomer')

/** Packs the package as npm would publish it now. Returns the path of the tarball. */
export function pack(): string {
  ensureBuilt()
  const folder = join(CACHE, `packed-${process.pid}`)
  mkdirSync(folder, { recursive: true })
  npm(ROOT, 'pack', '--ignore-scripts', '--pack-destination', folder)
  const tarball = join(folder, readdirSync(folder)[0] as string)
  refuseIncomplete(tarball)
  return tarball
}

/**
 * A build that another process starts meanwhile empties dist. Without this check every project would fail with
 * "Cannot find module 'leasehold'", which looks like a fault of the package.
 */
function refuseIncomplete(tarball: string): void {
  const packed = new Set(execFileSync('tar', ['-tzf', tarball], { encoding: 'utf8' }).split('\n'))
  const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { exports: unknown; bin: unknown }
  const named = JSON.stringify([manifest.exports, manifest.bin]).match(/dist\/[^"]+/g) ?? []
  const missing = named.filter((file) => !packed.has(`package/${file}`))
  if (missing.length === 0) return
  throw new Error(
    `dist changed while it was packed; run it again without a build beside it (missing: ${missing.join(', ')})`,
  )
}

function npm(cwd: string, ...args: string[]): void {
  const quiet = ['--no-audit', '--no-fund', '--loglevel=error']
  const { status, stdout, stderr } = spawnSync('npm', [...args, ...quiet], { cwd, encoding: 'utf8' })
  if (status !== 0) throw new Error(`npm ${args.join(' ')} failed in ${cwd}:\n${stdout}${stderr}`)
}

/** A folder of that name with these packages and nothing else, installed when first needed. */
function cached(name: string, packages: Record<string, string>): string {
  const wanted = Object.entries(packages).map(([pack, version]) => `${pack}@${version}`)
  const digest = createHash('sha256').update(wanted.join(' ')).digest('hex').slice(0, 8)
  const folder = join(CACHE, `${name.replaceAll(/\W+/g, '-')}-${digest}`)
  const done = join(folder, '.installed')
  if (existsSync(done)) return folder
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'package.json'), '{ "private": true }')
  if (wanted.length > 0) npm(folder, 'install', '--ignore-scripts', ...wanted)
  writeFileSync(done, '')
  return folder
}

function binaryOf(runtime: Runtime): string {
  const modules = join(cached('runtime', runtime.packages), 'node_modules')
  const binary = runtime.binaries.map((path) => join(modules, path)).find((path) => existsSync(path))
  if (!binary) throw new Error(`none of ${runtime.binaries.join(', ')} is in ${modules}`)
  return binary
}

/** A project with the packed package in it, ready to run. */
export function install(project: Project, tarball: string): string {
  const folder = cached(project.name, { ioredis: '5', ...project.packages })
  return fill(folder, project, tarball)
}

/** As `install`, with what this repository has installed already where it has everything: for the tests, in seconds. */
export function installQuickly(project: Project, tarball: string, parent: string): string {
  const packages = ['ioredis', ...Object.keys(project.packages)]
  const own = (name: string): string => join(ROOT, 'node_modules', name)
  if (!packages.every((name) => existsSync(own(name)))) return install(project, tarball)
  const folder = join(parent, project.name.replaceAll(/\W+/g, '-'))
  for (const name of packages) {
    const link = join(folder, 'node_modules', name)
    mkdirSync(dirname(link), { recursive: true })
    symlinkSync(own(name), link)
  }
  symlinkSync(own('.bin'), join(folder, 'node_modules/.bin'))
  return fill(folder, project, tarball)
}

function fill(folder: string, project: Project, tarball: string): string {
  for (const [name, text] of Object.entries(project.files)) writeFileSync(join(folder, name), text)
  rmSync(join(folder, 'out'), { recursive: true, force: true })
  const target = join(folder, 'node_modules/leasehold')
  rmSync(target, { recursive: true, force: true })
  mkdirSync(target, { recursive: true })
  execFileSync('tar', ['-xzf', tarball, '-C', target, '--strip-components=1'])
  return folder
}

/** Runs the steps of a project. Throws with everything that was said if one fails. */
export function runProject(project: Project, folder: string, redisUrl: string): string {
  const node = project.runtime ? binaryOf(project.runtime) : process.execPath
  const path = [join(folder, 'node_modules/.bin'), dirname(process.execPath), process.env['PATH']].join(delimiter)
  const { VITEST: _, NODE_ENV: __, ...outer } = process.env
  const env = { ...outer, ...project.env, PATH: path, REDIS_URL: redisUrl, CI: '1' }
  let said = ''
  for (const [program = '', ...args] of project.steps) {
    const command = program === 'node' ? node : program
    const { status, stdout, stderr, error } = spawnSync(command, args, {
      cwd: folder,
      env,
      encoding: 'utf8',
      timeout: 120_000,
    })
    said += `$ ${program} ${args.join(' ')}\n${stdout ?? ''}${stderr ?? ''}`
    if (status !== 0) throw new Error(`${project.name}: ended with ${status ?? error?.message}\n${said}`)
  }
  return said
}

export function discard(tarball: string): void {
  rmSync(dirname(tarball), { recursive: true, force: true })
}
