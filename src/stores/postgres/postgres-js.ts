import { realWorld } from '../../kit/world.js'
import type { Database, Listening, Subscriber } from './database.js'
import { type Dedicated, dedicatedOf, type Session } from './dedicated.js'

/** The few methods of a postgres.js `sql` that are called. */
export interface PostgresJsSql {
  /** How it connects. */
  readonly options?: object
  unsafe(text: string): PromiseLike<unknown>
  listen(
    channel: string,
    heard: (payload: string) => void,
    listening?: () => void,
  ): Promise<{ unlisten: () => Promise<void> }>
  begin(work: (sql: PostgresJsTransaction) => Promise<unknown>): Promise<unknown>
}

/** What postgres.js gives to the callback of `sql.begin`. */
export interface PostgresJsTransaction {
  unsafe(text: string): PromiseLike<unknown>
}

export function isPostgresJs(client: unknown): client is PostgresJsSql {
  const sql = client as Partial<PostgresJsSql> | null
  return typeof client === 'function' && typeof sql?.unsafe === 'function' && typeof sql.listen === 'function'
}

/** A heartbeat comes every 10 s with a ttl of 30 s. */
const IDLE_SECONDS = 15

type Row = Record<string, unknown>

export class PostgresJsDatabase implements Database {
  readonly #sql: PostgresJsSql

  constructor(sql: PostgresJsSql) {
    this.#sql = sql
  }

  /**
   * Without a time limit of its own: postgres.js cannot take back a query that waits for a connection (cancelling one
   * leaves its connection unusable), and what runs is ended by the server. An answer after the caller has gone is
   * released by the core.
   */
  async run(text: string): Promise<string | undefined> {
    return valueOf(await this.#sql.unsafe(text))
  }

  /** A client like the user's with one connection. */
  dedicated(): Dedicated {
    return dedicatedOf(this.#sql, async (broken) => openSession(await this.#another(broken)))
  }

  async #another(broken: () => void): Promise<OwnSql> {
    const { default: postgres } = (await import('postgres')) as unknown as { default: (options: object) => OwnSql }
    if (!this.#sql.options) throw new Error('this version of postgres.js does not tell how it connects')
    const { idle_timeout } = this.#sql.options as { idle_timeout?: number | null }
    const sql = postgres({
      ...this.#sql.options,
      max: 1,
      // It would keep the process alive for ever. Heartbeats of the usual ttl keep it open.
      idle_timeout: idle_timeout ?? IDLE_SECONDS,
      max_lifetime: null,
      fetch_types: false,
      // Its own pause grows to 20 s, in which locks run out.
      backoff: () => 0.1,
      onnotice: () => {},
      // It would connect again by itself, but queries that were under way meanwhile may never be answered.
      onclose: broken,
      // Of this client alone: how often it failed to connect.
      shared: { retries: 0, typeArrayMap: {} },
    })
    try {
      await sql.unsafe('SELECT 1')
      return sql
    } catch (error) {
      void sql.end({ timeout: 0 }).catch(() => {})
      throw error
    }
  }

  /**
   * postgres.js keeps a connection of its own for listening and makes a new one by itself, but does not say that it
   * broke: that shows when nothing is heard.
   */
  listen(channels: readonly string[], subscriber: Subscriber): Listening {
    let open = true
    let listening = 0
    const asked = channels.map((channel) =>
      this.#sql.listen(
        channel,
        (payload) => {
          if (open) subscriber.heard(payload, channel)
        },
        () => {
          // Once for every channel of a connection: all of them, and the server tells.
          if (open && ++listening % channels.length === 0) subscriber.up()
        },
      ),
    )
    // It goes on trying, whatever became of the first attempt.
    for (const promise of asked) promise.catch(() => {})
    return {
      suspect: () => {},
      close: async () => {
        open = false
        const unlisten = asked.map((promise) => promise.then((subscription) => subscription.unlisten()).catch(() => {}))
        await Promise.race([Promise.all(unlisten), new Promise<void>((resolve) => realWorld.after(500, resolve))])
      },
    }
  }

  /** What broke shows in the next call. */
  onBroken(): () => void {
    return () => {}
  }
}

interface OwnSql {
  unsafe(text: string): PromiseLike<unknown>
  end(options: { timeout: number }): Promise<void>
}

/** postgres.js writes queries without waiting for the answers to earlier ones. */
function openSession(sql: OwnSql): Session {
  return {
    send: (text, afterwards) => {
      const answer = Promise.resolve(sql.unsafe(text)).then(valueOf)
      if (afterwards !== undefined) Promise.resolve(sql.unsafe(afterwards)).catch(() => {})
      return answer
    },
    // Its socket has no handle for that; the store ends it.
    keepAlive: () => {},
    end: () => sql.end({ timeout: 0.5 }).catch(() => {}),
  }
}

/** The first column of the last result. Several statements give several; those without rows may be missing among them. */
function valueOf(results: unknown): string | undefined {
  const result = results as Row[] | Row[][]
  const last = Array.isArray(result.at(-1)) ? (result.at(-1) as Row[]) : (result as Row[])
  return last[0] ? (Object.values(last[0])[0] as string | undefined) : undefined
}
