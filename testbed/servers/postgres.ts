/** Starts PostgreSQL, alone or with a streaming standby. */
import { execFile } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { postgresBinary } from './binaries.js'
import { opensSession } from './pg-probe.js'
import { LocalServer, type ServerHome, type Server, startIn, until } from './process.js'
import { reaper } from './reaper.js'
import { unprivilegedUser } from './user.js'

const run = promisify(execFile)

export type PostgresSettings = Record<string, string | number | boolean>

export interface PostgresOptions {
  /** Settings as in postgresql.conf. They override those of the testbed. */
  settings?: PostgresSettings
  port?: number
}

export interface PostgresServer extends Server {
  readonly settings: PostgresSettings
  urlOf(database: string): string
  /** Creates an empty database and returns its URL. */
  createDatabase(name?: string): Promise<string>
  /** Runs psql and returns its output, unaligned and without headers. Rejects with its message. */
  psql(sql: string, database?: string): Promise<string>
}

export interface StandbyServer extends PostgresServer {
  /** Ends recovery. Resolves when the standby accepts writes. The old primary is not informed. */
  promote(): Promise<void>
}

export interface StandbyOptions {
  /** Commits of the primary wait for this standby. */
  synchronous?: boolean
  settings?: PostgresSettings
  /** Replicates through this port, for instance of a proxy, instead of the port of the primary. */
  viaPort?: number
}

// fsync stays on. kill -9 loses nothing without it either (what was written survives the process), but commits without
// cost hide races and produce figures that no real server reaches.
const DEFAULT_SETTINGS: PostgresSettings = {
  listen_addresses: '127.0.0.1',
  max_connections: 200,
  shared_buffers: '32MB',
  // In files of the data directory, so that nothing stays in /dev/shm after kill -9.
  dynamic_shared_memory_type: 'mmap',
}

const INITDB = ['--username=postgres', '--auth=trust', '--encoding=UTF8', '--locale=C', '--no-sync']

export async function psql(url: string, sql: string): Promise<string> {
  const flags = ['-X', '-A', '-t', '-q', '-v', 'ON_ERROR_STOP=1']
  const { stdout } = await run(postgresBinary('psql'), [...flags, '-c', sql, url])
  return stdout.trimEnd()
}

class PostgresProcess extends LocalServer implements StandbyServer {
  readonly settings: PostgresSettings
  readonly #fill: (dir: string) => Promise<void>
  protected override readonly signals = { fast: 'SIGINT', immediate: 'SIGQUIT' } as const

  constructor(home: ServerHome, settings: PostgresSettings, fill: (dir: string) => Promise<void>) {
    super(home)
    this.settings = settings
    this.#fill = fill
  }

  get url(): string {
    return this.urlOf('postgres')
  }

  urlOf(database: string): string {
    return `postgres://postgres@127.0.0.1:${this.port}/${encodeURIComponent(database)}`
  }

  /** Creates the data directory. */
  async fill(): Promise<void> {
    await this.#fill(this.dir)
  }

  protected override commandLine(): string[] {
    const settings = { ...DEFAULT_SETTINGS, ...this.settings, port: this.port, unix_socket_directories: this.dir }
    const flags = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
    return [postgresBinary('postgres'), '-D', join(this.dir, 'data'), ...flags]
  }

  protected override isReady(): Promise<boolean> {
    return opensSession(this.port)
  }

  protected override async wipe(): Promise<void> {
    await rm(join(this.dir, 'data'), { recursive: true, force: true })
    await this.fill()
  }

  psql(sql: string, database = 'postgres'): Promise<string> {
    return psql(this.urlOf(database), sql)
  }

  async createDatabase(name: string = `test_${randomBytes(6).toString('hex')}`): Promise<string> {
    await this.psql(`CREATE DATABASE "${name}"`)
    return this.urlOf(name)
  }

  async promote(): Promise<void> {
    await this.psql('SELECT pg_promote(true, 30)')
    await until('the standby takes writes', async () => (await this.psql('SELECT pg_is_in_recovery()')) === 'f')
  }
}

/**
 * initdb takes a second and always writes the same. The result is cached beside the packages and unpacked for each
 * server.
 */
async function templateFile(): Promise<string> {
  const { stdout: version } = await run(postgresBinary('initdb'), ['--version'])
  const facts = [version, INITDB, unprivilegedUser()?.uid ?? process.getuid?.()]
  const key = createHash('sha256').update(JSON.stringify(facts)).digest('hex').slice(0, 12)
  return fileURLToPath(new URL(`../../node_modules/.cache/leasehold/initdb-${key}.tar`, import.meta.url))
}

async function fillByInitdb(dir: string): Promise<void> {
  const template = await templateFile()
  if (existsSync(template)) return reaper().run(dir, ['tar', '-xf', template, '-C', dir])
  await reaper().run(dir, [postgresBinary('initdb'), ...INITDB, '-D', join(dir, 'data')], unprivilegedUser())
  try {
    await mkdir(join(template, '..'), { recursive: true })
    const draft = `${template}.${randomBytes(4).toString('hex')}`
    await run('tar', ['-cf', draft, '-C', dir, 'data'])
    await rename(draft, template)
  } catch (error) {
    console.warn(`initdb's result could not be kept for the next time: ${String(error)}`)
  }
}

async function launch(
  options: PostgresOptions,
  name: string,
  fill: (dir: string) => Promise<void>,
): Promise<PostgresProcess> {
  return startIn({ name, port: options.port, runAs: unprivilegedUser() }, async (home) => {
    const server = new PostgresProcess(home, options.settings ?? {}, fill)
    await server.fill()
    return server
  })
}

/** Starts PostgreSQL with trust authentication on 127.0.0.1. */
export function startPostgres(options: PostgresOptions = {}): Promise<PostgresServer> {
  return launch(options, 'postgres', fillByInitdb)
}

/** Starts a streaming standby. Resolves when it has caught up; with `synchronous`, when the primary waits for it. */
export async function startStandby(
  primary: PostgresServer,
  { synchronous = false, settings, viaPort = primary.port }: StandbyOptions = {},
): Promise<StandbyServer> {
  const name = `standby_${randomBytes(4).toString('hex')}`
  const source = ['-h', '127.0.0.1', '-p', String(viaPort), '-U', 'postgres']
  const fill = (dir: string) =>
    reaper().run(
      dir,
      [
        postgresBinary('pg_basebackup'),
        ...source,
        '-D',
        join(dir, 'data'),
        '-X',
        'stream',
        '-R',
        '-c',
        'fast',
        '--no-sync',
      ],
      unprivilegedUser(),
    )
  // The primary may wait for a standby. This one, once promoted, must not wait for itself.
  const own = { ...primary.settings, synchronous_standby_names: '', cluster_name: name, ...settings }
  const standby = await launch({ settings: own }, 'standby', fill)
  if (synchronous) {
    await primary.psql(`ALTER SYSTEM SET synchronous_standby_names = '${name}'`)
    await primary.psql('SELECT pg_reload_conf()')
  }
  const seen = synchronous ? 'streaming|sync' : 'streaming|async'
  const question = `SELECT state, sync_state FROM pg_stat_replication WHERE application_name = '${name}'`
  await until(`the primary says ${seen} of ${name}`, async () => (await primary.psql(question)) === seen)
  return standby
}
