import type { PostgresJsSql } from './types.js'
import { realWorld } from '../../util/world.js'
import type { PostgresDriver, NotificationListener, NotificationHandler } from './driver.js'
import { inTwoTransactions, type OwnConnection, ownConnectionOf, type OwnSession } from './own-connection.js'

export function isPostgresJs(client: unknown): client is PostgresJsSql {
  const sql = client as Partial<PostgresJsSql> | null
  return typeof client === 'function' && typeof sql?.unsafe === 'function' && typeof sql.listen === 'function'
}

/** Idle seconds after which the own connection is closed. Longer than the 10 s between heartbeats of the default ttl of 30 s, which keep it open. */
const IDLE_SECONDS = 15

type PostgresJsRow = Record<string, unknown>

export class PostgresJsDriver implements PostgresDriver {
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

  /** A client with the user's options and one connection. */
  ownConnection(): OwnConnection {
    return ownConnectionOf(this.#sql, async (broken) => {
      if (!this.#sql.options) throw new Error('this version of postgres.js does not tell how it connects')
      const { idle_timeout } = this.#sql.options as { idle_timeout?: number | null }
      const idleMs = (idle_timeout ?? IDLE_SECONDS) * 1_000
      return openSession(await this.#another(broken), idleMs > 0 ? idleMs : undefined)
    })
  }

  async #another(broken: () => void): Promise<OwnSql> {
    const { default: postgres } = (await import('postgres')) as unknown as { default: (options: object) => OwnSql }
    const sql = postgres({
      ...this.#sql.options,
      max: 1,
      // postgres.js would also close it under a message that is just being sent.
      idle_timeout: null,
      max_lifetime: null,
      fetch_types: false,
      // The default pause grows to 20 s, in which locks run out.
      backoff: () => 0.1,
      onnotice: () => {},
      // postgres.js connects again by itself, but queries that were under way meanwhile may never be answered.
      onclose: broken,
      // The count of failed attempts must not be shared with the user's client.
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
   * postgres.js keeps a connection of its own for listening and opens a new one by itself, but does not say that it
   * broke: that shows when a probe does not arrive.
   */
  listen(channels: readonly string[], handler: NotificationHandler): NotificationListener {
    let open = true
    let listening = 0
    const asked = channels.map((channel) =>
      this.#sql.listen(
        channel,
        (payload) => {
          if (open) handler.onNotification(payload, channel)
        },
        () => {
          // Called once for every channel of a connection: after the last, the server notifies.
          if (open && ++listening % channels.length === 0) handler.onListening()
        },
      ),
    )
    // postgres.js goes on trying, whatever became of the first attempt.
    for (const promise of asked) promise.catch(() => {})
    return {
      reportSilence: () => {},
      close: async () => {
        open = false
        const unlisten = asked.map((promise) => promise.then((subscription) => subscription.unlisten()).catch(() => {}))
        await Promise.race([Promise.all(unlisten), new Promise<void>((resolve) => realWorld.after(500, resolve))])
      },
    }
  }

  /** postgres.js does not report it: a broken connection shows in the next call. */
  onConnectionLost(): () => void {
    return () => {}
  }
}

interface OwnSql {
  unsafe(text: string): PromiseLike<unknown> & {
    /** Calls back for each row as it arrives. `command`: of the last complete statement before the next one with rows. */
    forEach(onRow: (row: PostgresJsRow, result: { command?: string }) => void): PromiseLike<unknown>
  }
  end(options: { timeout: number }): Promise<void>
}

function openSession(sql: OwnSql, idleMs: number | undefined): OwnSession {
  return {
    // The socket, which postgres.js does not expose, would keep the process alive for ever.
    idleMs,
    send: async (text, afterwards) =>
      afterwards === undefined ? valueOf(await sql.unsafe(text)) : sendBoth(sql, inTwoTransactions(text, afterwards)),
    // postgres.js does not expose the socket; the store ends the connection.
    keepAlive: () => {},
    end: () => sql.end({ timeout: 0.5 }).catch(() => {}),
  }
}

/** Settles with the value of the first transaction, also if the second fails: the last command behind that value was COMMIT. */
async function sendBoth(sql: OwnSql, text: string): Promise<string | undefined> {
  let first: { row: PostgresJsRow; result: { command?: string } } | undefined
  try {
    await sql.unsafe(text).forEach((row, result) => {
      first ??= { row, result }
    })
  } catch (error) {
    if (first?.result.command !== 'COMMIT') throw error
  }
  return first && (Object.values(first.row)[0] as string | undefined)
}

/** The first column of the last result. Several statements give several; those without rows may be missing among them. */
function valueOf(results: unknown): string | undefined {
  const result = results as PostgresJsRow[] | PostgresJsRow[][]
  const last = Array.isArray(result.at(-1)) ? (result.at(-1) as PostgresJsRow[]) : (result as PostgresJsRow[])
  return last[0] ? (Object.values(last[0])[0] as string | undefined) : undefined
}
