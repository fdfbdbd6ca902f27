/** Starts PgBouncer in front of a PostgreSQL server. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { serverBinary } from './binaries.js'
import { opensSession } from './pg-probe.js'
import { type PostgresServer, psql } from './postgres.js'
import { LocalServer, type ServerHome, type Server, startIn } from './process.js'
import { unprivilegedUser } from './user.js'

export interface PgBouncerOptions {
  postgres: PostgresServer
  mode: 'transaction' | 'session'
  /** Server connections per database. */
  poolSize?: number
  /** Further lines of the [pgbouncer] section. */
  settings?: Record<string, string | number>
}

export interface PgBouncer extends Server {
  /** The URL of a database of the server behind it. */
  urlOf(database: string): string
  /** psql() of the server, through the pool. */
  psql(sql: string, database?: string): Promise<string>
}

class PgBouncerProcess extends LocalServer implements PgBouncer {
  readonly #options: PgBouncerOptions
  // SIGINT waits until all clients have left. SIGTERM is an orderly end at once.
  protected override readonly signals = { fast: 'SIGTERM', immediate: 'SIGKILL' } as const

  constructor(home: ServerHome, options: PgBouncerOptions) {
    super(home)
    this.#options = options
  }

  get url(): string {
    return this.urlOf('postgres')
  }

  urlOf(database: string): string {
    return `postgres://postgres@127.0.0.1:${this.port}/${encodeURIComponent(database)}`
  }

  psql(sql: string, database = 'postgres'): Promise<string> {
    return psql(this.urlOf(database), sql)
  }

  async writeConfig(): Promise<void> {
    const { postgres, mode, poolSize = 20, settings } = this.#options
    const all = {
      listen_addr: '127.0.0.1',
      listen_port: this.port,
      unix_socket_dir: this.dir,
      auth_type: 'trust',
      auth_file: join(this.dir, 'users.txt'),
      admin_users: 'postgres',
      pool_mode: mode,
      default_pool_size: poolSize,
      max_client_conn: 1_000,
      ignore_startup_parameters: 'extra_float_digits,options',
      // The default of 15 s would reject clients for that long after PostgreSQL is back.
      server_login_retry: 0.2,
      ...settings,
    }
    const lines = Object.entries(all).map(([name, value]) => `${name} = ${value}`)
    await writeFile(join(this.dir, 'users.txt'), '"postgres" ""\n')
    await writeFile(
      join(this.dir, 'pgbouncer.ini'),
      `[databases]\n* = host=127.0.0.1 port=${postgres.port}\n\n[pgbouncer]\n${lines.join('\n')}\n`,
    )
  }

  protected override commandLine(): string[] {
    return [serverBinary('pgbouncer'), join(this.dir, 'pgbouncer.ini')]
  }

  protected override isReady(): Promise<boolean> {
    return opensSession(this.port)
  }

  protected override async wipe(): Promise<void> {} // PgBouncer has no data.
}

/** Starts PgBouncer in front of a PostgreSQL server of this testbed. */
export function startPgBouncer(options: PgBouncerOptions): Promise<PgBouncer> {
  return startIn({ name: 'pgbouncer', runAs: unprivilegedUser() }, async (home) => {
    const bouncer = new PgBouncerProcess(home, options)
    await bouncer.writeConfig()
    return bouncer
  })
}
