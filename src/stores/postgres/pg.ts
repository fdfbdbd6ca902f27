import { StoreUnavailableError } from '../../errors.js'
import { formatDuration } from '../../kit/duration.js'
import { realWorld } from '../../kit/world.js'
import type { Database, Listening, Subscriber } from './database.js'
import { type Dedicated, dedicatedOf } from './dedicated.js'
import { listenOn } from './pg-listener.js'
import { clientsLike, isVerdict, openSession } from './pg-session.js'

/** The few methods of a `pg` Pool that are called. */
export interface PgPool {
  connect(): Promise<PgPoolClient>
  on(event: 'error', listener: (error: Error) => void): unknown
  off(event: 'error', listener: (error: Error) => void): unknown
  readonly options: object
  readonly totalCount: number
  readonly idleCount: number
}

export interface PgPoolClient extends PgQueryable {
  on(event: 'error', listener: (error: Error) => void): unknown
  off(event: 'error', listener: (error: Error) => void): unknown
  release(error?: Error | boolean): void
}

/** What can run a query: a client that was taken out of a pool, or one of your own. */
export interface PgQueryable {
  query(text: string, values?: unknown[]): Promise<PgResult>
}

export interface PgResult {
  /** What the server says it did: COMMIT of a failed transaction answers ROLLBACK. */
  command: string
  rows: Record<string, unknown>[]
  rowCount: number | null
}

export function isPool(client: unknown): client is PgPool {
  const pool = client as Partial<PgPool> | null
  return typeof pool?.connect === 'function' && typeof pool.totalCount === 'number' && typeof pool.options === 'object'
}

export class PgDatabase implements Database {
  readonly #pool: PgPool

  constructor(pool: PgPool) {
    this.#pool = pool
  }

  async run(sql: string, timeoutMs: number): Promise<string | undefined> {
    const client = await this.#checkOut(timeoutMs)
    // While it is out, nobody but us listens: an error without listener would end the process.
    client.on('error', ignore)
    let done = false
    const giveBack = (error?: Error): void => {
      if (done) return
      done = true
      client.release(error)
      client.off('error', ignore)
    }
    // A connection into a black hole never answers. Kept, it would be missing in the pool for ever.
    const cancel = realWorld.after(timeoutMs * 1.5, () => giveBack(new Error('gave up')))
    try {
      const result = (await client.query(sql)) as PgResult | PgResult[]
      giveBack()
      const last = Array.isArray(result) ? (result.at(-1) as PgResult) : result
      return last.rows[0] ? (Object.values(last.rows[0])[0] as string | undefined) : undefined
    } catch (error) {
      // After an answer of the server the connection is as good as before: the message was one transaction.
      giveBack(isVerdict(error) ? undefined : (error as Error))
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
      // Sooner than the caller gives up, to say why. What comes after that must not be carried out any more.
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

  listen(channels: readonly string[], subscriber: Subscriber, timeoutMs: number): Listening {
    return listenOn(this.#pool, channels, subscriber, timeoutMs)
  }

  dedicated(timeoutMs: number): Dedicated {
    const make = clientsLike(this.#pool)
    return dedicatedOf(this.#pool, (broken) => openSession(make(), broken, timeoutMs))
  }

  onBroken(listener: () => void): () => void {
    // A pool whose idle connection broke emits `error`, which without any listener would end the process.
    this.#pool.on('error', listener)
    return () => this.#pool.off('error', listener)
  }
}

function ignore(): void {}
