import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { serverBinary } from './binaries.js'
import { opensSession } from './pg-probe.js'
import { type PostgresServer, psql } from './postgres.js'
import { LocalServer, type Place, type Server, startIn } from './process.js'
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
  /** For a database of the server behind it. */
  urlOf(database: string): string
  /** Like the server's own, through the pool. */
  psql(sql: string, database?: string): Promise<string>
}

class PgBouncerProcess extends LocalServer implements PgBouncer {
  readonly #options: PgBouncerOptions
  // SIGINT waits until clients have left; SIGTERM ends it at once, in an orderly way.
  protected override readonly signals = { fast: 'SIGTERM', immediate: 'SIGKILL' } as const

  constructor(place: Place, options: PgBouncerOptions) {
    super(place)
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
      // Its default of 15 s is how long clients would be turned away after PostgreSQL is back.
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

  protected override async wipe(): Promise<void> {} // it has no data
}

/** PgBouncer in front of a PostgreSQL of this harness. */
export function startPgBouncer(options: PgBouncerOptions): Promise<PgBouncer> {
  return startIn({ name: 'pgbouncer', runAs: unprivilegedUser() }, async (place) => {
    const bouncer = new PgBouncerProcess(place, options)
    await bouncer.writeConfig()
    return bouncer
  })
}
