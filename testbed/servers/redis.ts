/** Starts a single Redis server. */
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { serverBinary } from './binaries.js'
import { type Certificates, makeCertificates } from './certificates.js'
import { LocalServer, type ServerHome, type Server, startIn } from './process.js'
import { type RespReply, redisCommand } from './resp.js'

export interface RedisOptions {
  /** Further settings as on the command line: `['--maxmemory', '10mb']`. */
  args?: string[]
  port?: number
  password?: string
  /** Only TLS on the port. Clients must trust `ca` of the result. */
  tls?: boolean
  /** Every write is on disk before its reply (appendfsync always), so data survives `kill()`. */
  appendonly?: boolean
}

export interface RedisServer extends Server {
  readonly ca: string | undefined
  readonly password: string | undefined
  /** Runs one command on a separate connection, for set-up and to inspect the server without the library. */
  command(...args: string[]): Promise<RespReply>
}

/** The settings of a `RedisProcess` that is part of a cluster or of a sentinel group. */
export interface RedisRole {
  /** Lines of the configuration file, which the server itself may rewrite later (replicaof after a failover). */
  config?: string[]
  binary?: 'redis-server' | 'redis-sentinel'
  alsoBus?: boolean
  name?: string
}

export class RedisProcess extends LocalServer implements RedisServer {
  readonly password: string | undefined
  readonly #options: RedisOptions
  readonly #role: RedisRole
  readonly #certificates: Certificates | undefined

  constructor(home: ServerHome, options: RedisOptions, role: RedisRole, certificates?: Certificates) {
    super(home)
    this.password = options.password
    this.#options = options
    this.#role = role
    this.#certificates = certificates
  }

  get url(): string {
    const credentials = this.password === undefined ? '' : `:${encodeURIComponent(this.password)}@`
    return `${this.#certificates ? 'rediss' : 'redis'}://${credentials}127.0.0.1:${this.port}`
  }

  get ca(): string | undefined {
    return this.#certificates?.ca
  }

  /** Writes the first configuration. The server owns the file from then on. */
  async writeConfig(): Promise<void> {
    const { appendonly, password, tls } = this.#options
    const certificates = this.#certificates
    const lines = [
      'bind 127.0.0.1',
      ...(tls && certificates
        ? [
            'port 0',
            `tls-port ${this.port}`,
            `tls-cert-file ${certificates.certFile}`,
            `tls-key-file ${certificates.keyFile}`,
            `tls-ca-cert-file ${certificates.caFile}`,
            'tls-auth-clients no',
          ]
        : [`port ${this.port}`]),
      `dir ${this.dir}`,
      ...(password === undefined ? [] : [`requirepass ${password}`]),
      ...(this.#role.binary === 'redis-sentinel'
        ? []
        : ['save ""', `appendonly ${appendonly ? 'yes' : 'no'}`, 'appendfsync always', 'shutdown-timeout 1']),
      ...(this.#role.config ?? []),
    ]
    await writeFile(join(this.dir, 'redis.conf'), `${lines.join('\n')}\n`)
  }

  protected override commandLine(): string[] {
    return [
      serverBinary(this.#role.binary ?? 'redis-server'),
      join(this.dir, 'redis.conf'),
      ...(this.#options.args ?? []),
    ]
  }

  command(...args: string[]): Promise<RespReply> {
    return redisCommand({ port: this.port, password: this.password, ca: this.ca }, args)
  }

  protected override async isReady(): Promise<boolean> {
    return (await this.command('PING').catch(() => '')) === 'PONG'
  }

  protected override async wipe(): Promise<void> {
    // Not nodes.conf nor redis.conf: a node that lost its data still knows its identity.
    for (const name of ['dump.rdb', 'appendonlydir']) await rm(join(this.dir, name), { recursive: true, force: true })
  }

  protected override async prepareToKeepData(mode: 'fast' | 'immediate'): Promise<void> {
    if (this.#options.appendonly) return
    if (mode === 'immediate' || !this.running) {
      throw new Error('this Redis has no persistence: start it with { appendonly: true } to keep data through a crash')
    }
    await this.thaw()
    await this.command('SAVE')
  }
}

export async function launchRedis(options: RedisOptions, role: RedisRole = {}): Promise<RedisProcess> {
  const { name = 'redis', alsoBus = false } = role
  return startIn({ name, port: options.port, alsoBus }, async (home) => {
    const certificates = options.tls ? await makeCertificates(home.dir) : undefined
    const server = new RedisProcess(home, options, role, certificates)
    await server.writeConfig()
    return server
  })
}

/** Starts a single Redis server, without persistence by default. */
export function startRedis(options: RedisOptions = {}): Promise<RedisServer> {
  return launchRedis(options)
}
