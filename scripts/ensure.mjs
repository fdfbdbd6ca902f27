// What a fresh clone lacks: the packages, and the real servers that the tests run against. Plain JavaScript without
// dependencies, because it runs before there are any.
import { spawnSync } from 'node:child_process'
import { accessSync, constants, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const ROOT = fileURLToPath(new URL('..', import.meta.url))

const say = (line) => console.error(line)

function fail(message) {
  say(message)
  process.exit(1)
}

/** Why node_modules is not what package-lock.json asks for, or undefined if it is. */
function staleness() {
  const wanted = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8')).packages
  // npm writes down what it really installed; packages for other platforms are absent from it.
  const record = join(ROOT, 'node_modules', '.package-lock.json')
  if (!existsSync(record)) return 'node_modules is missing'
  const installed = JSON.parse(readFileSync(record, 'utf8')).packages
  for (const [path, { version, integrity, optional }] of Object.entries(wanted)) {
    if (path === '') continue
    const found = installed[path]
    if (!found && optional) continue
    if (!found || !existsSync(join(ROOT, path))) return `${path} is missing`
    if (found.version !== version || found.integrity !== integrity) return `${path} is not version ${version}`
  }
  return undefined
}

/** Runs `npm ci` unless node_modules already is what package-lock.json says. */
export function ensurePackages() {
  const why = staleness()
  if (!why) return
  say(`Installing packages with npm ci, because ${why} …`)
  const npm = process.env.npm_execpath?.endsWith('.js') ? [process.execPath, process.env.npm_execpath] : ['npm']
  const [command, ...args] = [...npm, 'ci', '--no-audit', '--no-fund']
  const { status, error } = spawnSync(command, args, { cwd: ROOT, stdio: ['ignore', 2, 2] })
  if (status !== 0)
    fail(`npm ci did not succeed${error ? ` (${error.message})` : ''}. Run it yourself, then this again.`)
}

function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

function onPath(name) {
  const folders = [...(process.env.PATH ?? '').split(delimiter).filter(Boolean), '/usr/sbin', '/usr/local/sbin']
  return folders.some((folder) => isExecutable(join(folder, name)))
}

/** Debian keeps PostgreSQL's programs out of PATH, in a folder per version. */
function hasPostgres() {
  const debian = '/usr/lib/postgresql'
  const folders = existsSync(debian) ? readdirSync(debian).map((version) => join(debian, version, 'bin')) : []
  const programs = ['initdb', 'postgres', 'psql', 'pg_basebackup']
  return folders.some((folder) => programs.every((name) => isExecutable(join(folder, name)))) || programs.every(onPath)
}

/** redis-py for the system's own Python, where Debian installs it, or for the one in PATH. */
function hasRedisPy() {
  return ['/usr/bin/python3', 'python3'].some((python) => spawnSync(python, ['-c', 'import redis']).status === 0)
}

const SERVERS = [
  { what: 'redis-server', debian: 'redis-server', isThere: () => onPath('redis-server') },
  { what: 'redis-sentinel', debian: 'redis-sentinel', isThere: () => onPath('redis-sentinel') },
  { what: 'PostgreSQL (initdb, postgres, psql, pg_basebackup)', debian: 'postgresql', isThere: hasPostgres },
  { what: 'pgbouncer', debian: 'pgbouncer', isThere: () => onPath('pgbouncer') },
  { what: 'etcd', debian: 'etcd-server', isThere: () => onPath('etcd') },
  { what: 'etcdctl', debian: 'etcd-client', isThere: () => onPath('etcdctl') },
  { what: 'openssl', debian: 'openssl', isThere: () => onPath('openssl') },
  // Shells whose completion is tested.
  { what: 'zsh', debian: 'zsh', isThere: () => onPath('zsh') },
  { what: 'fish', debian: 'fish', isThere: () => onPath('fish') },
  {
    what: 'Chromium (chromium, chromium-browser or google-chrome)',
    debian: 'chromium',
    isThere: () => ['chromium', 'chromium-browser', 'google-chrome'].some(onPath),
  },
  { what: 'redis-py for Python 3', debian: 'python3-redis', isThere: hasRedisPy },
]

const missingServers = () => SERVERS.filter(({ isThere }) => !isThere())

function apt(...args) {
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  // Another apt-get may be running: wait for it rather than fail.
  return spawnSync('apt-get', ['-o', 'DPkg::Lock::Timeout=120', ...args], { env, encoding: 'utf8' })
}

/** Debian starts a service as it is installed unless this file forbids it. One that exists already was put there on purpose. */
function withoutStartingServices(work) {
  const policy = '/usr/sbin/policy-rc.d'
  const ours = !existsSync(policy)
  const takeBack = () => ours && rmSync(policy, { force: true })
  if (ours) writeFileSync(policy, '#!/bin/sh\nexit 101\n', { mode: 0o755 })
  process.once('exit', takeBack)
  try {
    return work()
  } finally {
    takeBack()
    process.removeListener('exit', takeBack)
  }
}

function installWithApt(packages) {
  say(`Installing with apt-get (services are not started): ${packages.join(' ')} …`)
  const update = apt('update')
  const install = withoutStartingServices(() => apt('install', '-y', '--no-install-recommends', ...packages))
  if (install.status === 0) return
  say(update.status === 0 ? '' : `${update.stdout}${update.stderr}`)
  fail(`${install.stdout}${install.stderr}\napt-get did not succeed.`)
}

/** The servers that the tests need, installed where that is possible. A missing one is an error: nothing is skipped. */
export function ensureServers() {
  const missing = missingServers()
  if (missing.length === 0) return
  const packages = missing.map(({ debian }) => debian)
  if (process.getuid?.() === 0 && onPath('apt-get')) installWithApt(packages)
  const still = missingServers()
  if (still.length === 0) return
  fail(
    [
      `Not installed: ${still.map(({ what }) => what).join(', ')}.`,
      'The tests run against real servers. On Debian or Ubuntu:',
      `  sudo apt-get install --no-install-recommends ${still.map(({ debian }) => debian).join(' ')}`,
      'Elsewhere: install the programs named above and have them in PATH. The services need not run.',
    ].join('\n'),
  )
}
