/**
 * What a node needs of a Redis client: ioredis 5 and 6, node-redis 5 and 6, one server each.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'

/** One connection that sends scripts, and can make another that listens. */
export interface Line {
  readonly name: string
  /** What the client puts before every key by itself. */
  readonly keyPrefix: string
  ready(): boolean
  /** Why it is not ready, as far as known; undefined: it is still connecting for the first time. */
  trouble(): unknown
  wake(): void
  onTurn(listener: () => void): () => void
  evalsha(sha: string, keys: string[], args: string[]): Promise<unknown>
  eval(source: string, keys: string[], args: string[]): Promise<unknown>
  listen(on: { message(channel: string, text: string): void; broken(error: unknown): void }): Ear
  detach(): void
}

export interface Ear {
  subscribe(channel: string): Promise<void>
  unsubscribe(channel: string): void
  close(): void
}

type Listener = (...args: never[]) => void

interface Emitter {
  on(event: string, listener: Listener): unknown
  off(event: string, listener: Listener): unknown
}

/** The part of an ioredis `Redis` that is used. */
interface IoRedisClient extends Emitter {
  status: string
  options: object
  evalsha(...args: (string | number)[]): Promise<unknown>
  eval(...args: (string | number)[]): Promise<unknown>
  connect(): Promise<void>
  disconnect(): void
  duplicate(override?: object): IoRedisClient
  subscribe(...channels: string[]): Promise<unknown>
  unsubscribe(...channels: string[]): Promise<unknown>
}

/** The part of a node-redis client that is used. */
interface NodeRedisClient extends Emitter {
  isOpen: boolean
  isReady: boolean
  options?: object | undefined
  sendCommand(args: string[]): Promise<unknown>
  connect(): Promise<unknown>
  destroy(): void
  duplicate(): NodeRedisClient
  subscribe(channel: string, listener: (message: string, channel: string) => void): Promise<unknown>
  unsubscribe(channel: string): Promise<unknown>
}

/** An ioredis `Redis` (5 or 6) or a node-redis client (5 or 6), each of one server. */
export type RedlockClient =
  | { status: string; evalsha(...args: never[]): unknown; on(...args: never[]): unknown }
  | { isOpen: boolean; sendCommand(...args: never[]): unknown; on(...args: never[]): unknown }

const ignore = (): void => {}

export function lineFor(client: unknown, place: number): Line {
  if (isIoRedis(client)) return new IoRedisLine(client, place)
  if (isNodeRedis(client)) return new NodeRedisLine(client, place)
  throw new InvalidOptionError(`clients[${place}]`, client, 'an ioredis Redis or a node-redis client of one server')
}

function isIoRedis(client: unknown): client is IoRedisClient {
  const { status, evalsha, duplicate, isCluster } = Object(client)
  return typeof status === 'string' && typeof evalsha === 'function' && typeof duplicate === 'function' && !isCluster
}

function isNodeRedis(client: unknown): client is NodeRedisClient {
  const candidate = Object(client)
  if (typeof candidate.isOpen !== 'boolean' || typeof candidate.sendCommand !== 'function') return false
  return typeof candidate.duplicate === 'function' && !('nodeClient' in candidate) && !('getMasterNode' in candidate)
}

abstract class BaseLine {
  protected lastError: unknown
  readonly #listeners = new Set<() => void>()
  readonly #attached: { emitter: Emitter; event: string; listener: Listener }[] = []

  onTurn(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  detach(): void {
    for (const { emitter, event, listener } of this.#attached) emitter.off(event, listener)
    this.#listeners.clear()
  }

  protected attach(emitter: Emitter): void {
    const on = (event: string, listener: Listener): void => {
      emitter.on(event, listener)
      this.#attached.push({ emitter, event, listener })
    }
    on('ready', () => {
      this.lastError = undefined
      this.#turn()
    })
    on('end', () => this.#turn())
    on('error', (error: unknown) => {
      this.lastError = error
      this.#turn()
    })
  }

  #turn(): void {
    for (const listener of [...this.#listeners]) listener()
  }
}

class IoRedisLine extends BaseLine implements Line {
  readonly name: string
  readonly keyPrefix: string
  readonly #client: IoRedisClient

  constructor(client: IoRedisClient, place: number) {
    super()
    this.#client = client
    const { host, port, path, keyPrefix } = client.options as Record<string, unknown>
    this.name = path ? String(path) : host ? `${host}:${port}` : `node ${place + 1}`
    this.keyPrefix = keyPrefix === undefined || keyPrefix === null ? '' : String(keyPrefix)
    this.attach(client)
  }

  ready(): boolean {
    return this.#client.status === 'ready'
  }

  trouble(): unknown {
    return this.lastError ?? (this.#client.status === 'end' ? new Error('its client is closed') : undefined)
  }

  wake(): void {
    if (this.#client.status === 'wait') this.#client.connect().catch(ignore)
  }

  evalsha(sha: string, keys: string[], args: string[]): Promise<unknown> {
    return this.#client.evalsha(sha, keys.length, ...keys, ...args)
  }

  eval(source: string, keys: string[], args: string[]): Promise<unknown> {
    return this.#client.eval(source, keys.length, ...keys, ...args)
  }

  listen(on: { message(channel: string, text: string): void; broken(error: unknown): void }): Ear {
    const connection = this.#client.duplicate({
      keyPrefix: '',
      lazyConnect: true,
      retryStrategy: null,
      autoResubscribe: false,
      enableReadyCheck: false,
      maxRetriesPerRequest: null,
    })
    let open = true
    const broken = (error: unknown): void => {
      if (!open) return
      open = false
      connection.disconnect()
      on.broken(error)
    }
    connection.on('error', ignore)
    connection.on('end', broken)
    connection.on('close', broken)
    connection.on('message', on.message)
    const connected = connection.connect()
    connected.catch(broken)
    return {
      subscribe: async (channel) => {
        await connected
        await connection.subscribe(channel)
      },
      unsubscribe: (channel) => {
        if (open) connection.unsubscribe(channel).catch(ignore)
      },
      close: () => {
        open = false
        connection.disconnect()
      },
    }
  }
}

class NodeRedisLine extends BaseLine implements Line {
  readonly name: string
  readonly keyPrefix = ''
  readonly #client: NodeRedisClient

  constructor(client: NodeRedisClient, place: number) {
    super()
    this.#client = client
    const { host, port, path } = ((client.options as Record<string, unknown>)?.socket ?? {}) as Record<string, unknown>
    this.name = path ? String(path) : host || port ? `${host ?? 'localhost'}:${port ?? 6379}` : `node ${place + 1}`
    this.attach(client)
  }

  ready(): boolean {
    return this.#client.isReady
  }

  trouble(): unknown {
    if (!this.#client.isOpen) return new Error('its client is closed, or was never connected: connect() it first')
    return this.lastError
  }

  wake(): void {}

  evalsha(sha: string, keys: string[], args: string[]): Promise<unknown> {
    return this.#client.sendCommand(['EVALSHA', sha, String(keys.length), ...keys, ...args])
  }

  eval(source: string, keys: string[], args: string[]): Promise<unknown> {
    return this.#client.sendCommand(['EVAL', source, String(keys.length), ...keys, ...args])
  }

  listen(on: { message(channel: string, text: string): void; broken(error: unknown): void }): Ear {
    const connection = this.#client.duplicate()
    let open = true
    const broken = (error: unknown): void => {
      if (!open) return
      open = false
      quietly(() => connection.destroy())
      on.broken(error)
    }
    connection.on('error', broken)
    connection.on('end', broken)
    const connected = connection.connect()
    connected.catch(broken)
    return {
      subscribe: async (channel) => {
        await connected
        await connection.subscribe(channel, (message) => on.message(channel, message))
      },
      unsubscribe: (channel) => {
        if (open && connection.isReady) connection.unsubscribe(channel).catch(ignore)
      },
      close: () => {
        open = false
        quietly(() => connection.destroy())
      },
    }
  }
}

/** It says so when it was closed already. */
function quietly(run: () => void): void {
  try {
    run()
  } catch {}
}
