import type { PgPool, PgPoolClient, PgResult } from './types.js'
import { StoreUnavailableError } from '../../errors.js'
import { formatDuration } from '../../util/duration.js'
import { realWorld } from '../../util/world.js'
import type { PostgresDriver, NotificationListener, NotificationHandler } from './driver.js'
import { type OwnConnection, ownConnectionOf } from './own-connection.js'
import { listenOn } from './listener.js'
import { isConnectionLost } from './errors.js'
import { clientsLike, openSession } from './pg-session.js'

export function isPool(client: unknown): client is PgPool {
  const pool = client as Partial<PgPool> | null
  return typeof pool?.connect === 'function' && typeof pool.totalCount === 'number' && typeof pool.options === 'object'
}

export class PgDriver implements PostgresDriver {
  readonly #pool: PgPool

  constructor(pool: PgPool) {
    this.#pool = pool
  }

  async run(sql: string, timeoutMs: number): Promise<string | undefined> {
    const client = await this.#checkOut(timeoutMs)
    // pg takes its own listener off a client that is checked out: an error without a listener would end the process.
    client.on('error', ignore)
    let done = false
    const checkIn = (error?: Error): void => {
      if (done) return
      done = true
      client.release(error)
      client.off('error', ignore)
    }
    // A connection whose packets are dropped never answers. Without this it would be missing in the pool for ever.
    const cancel = realWorld.after(timeoutMs * 1.5, () => checkIn(new Error('gave up')))
    try {
      const result = (await client.query(sql)) as PgResult | PgResult[]
      checkIn()
      const last = Array.isArray(result) ? (result.at(-1) as PgResult) : result
      return last.rows[0] ? (Object.values(last.rows[0])[0] as string | undefined) : undefined
    } catch (error) {
      // After an error of the server the connection is as good as before: the message was one transaction.
      checkIn(!isConnectionLost(error) ? undefined : (error as Error))
      throw error
    } finally {
      cancel()
    }
  }

  #checkOut(timeoutMs: number): Promise<PgPoolClient> {
    const pool = this.#pool
    const { max = 10 } = pool.options as { max?: number }
    const mayWait = pool.idleCount === 0 && pool.totalCount >= max
    const asked = pool.connect()
    if (!mayWait) return asked
    return new Promise((resolve, reject) => {
      let late = false
      // Rejects sooner than the caller gives up, to say why. A connection that comes later must not carry the call any more.
      const cancel = realWorld.after(timeoutMs * 0.9, () => {
        late = true
        const waited = formatDuration(Math.round(timeoutMs * 0.9))
        reject(
          new StoreUnavailableError(
            `postgres is unavailable: all ${max} connections of the pool were in use for ${waited}`,
          ),
        )
      })
      asked.then(
        (client) => {
          cancel()
          if (late) client.release()
          else resolve(client)
        },
        (error: unknown) => {
          cancel()
          reject(error)
        },
      )
    })
  }

  listen(channels: readonly string[], handler: NotificationHandler, timeoutMs: number): NotificationListener {
    return listenOn(this.#pool, channels, handler, timeoutMs)
  }

  ownConnection(timeoutMs: number): OwnConnection {
    const make = clientsLike(this.#pool)
    return ownConnectionOf(this.#pool, (broken) => openSession(make(), broken, timeoutMs))
  }

  onConnectionLost(listener: () => void): () => void {
    // A pool whose idle connection broke emits `error`, which without a listener would end the process.
    this.#pool.on('error', listener)
    return () => this.#pool.off('error', listener)
  }
}

function ignore(): void {}
