import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { type RedisOptions, type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import type { Store } from '../../../src/store.js'
import { redlock, type RedlockClient, type RedlockOptions } from '../../../src/stores/redlock/index.js'

/** Independent servers, and clients of all of them. */
export class Servers {
  readonly all: readonly RedisServer[]
  readonly #close: (() => unknown)[] = []

  constructor(all: readonly RedisServer[]) {
    this.all = all
  }

  static async start(count: number, options: RedisOptions = {}): Promise<Servers> {
    return new Servers(await Promise.all(Array.from({ length: count }, () => startRedis(options))))
  }

  get ports(): string[] {
    return this.all.map((server) => `127.0.0.1:${server.port}`)
  }

  ioredis(options: object = {}): Redis[] {
    return this.all.map((server) => {
      const client = new Redis(server.url, options)
      client.on('error', () => {})
      this.#close.push(() => client.disconnect())
      return client
    })
  }

  /** Of both kinds by turns. */
  mixed(): RedlockClient[] {
    return this.ioredis({ lazyConnect: true }).map((client, i): RedlockClient => {
      if (i % 2 === 0) return client
      const other = createClient({ url: (this.all[i] as RedisServer).url })
      other.on('error', () => {})
      other.connect().catch(() => {})
      this.#close.push(() => other.destroy())
      return other
    })
  }

  store(options: Partial<RedlockOptions> = {}, clients: readonly RedlockClient[] = this.ioredis()): Store {
    const store = redlock(clients, { maxTtl: '1m', ...options })
    this.#close.push(() => store.close())
    return store
  }

  async stop(): Promise<void> {
    for (const close of this.#close.reverse()) await close()
    await Promise.all(this.all.map((server) => server.stop()))
  }
}
