import { realWorld } from '../../kit/world.js'
import type { Database, Ear, Listening } from './database.js'

/** The few methods of a postgres.js `sql` that are called. */
export interface PostgresJsSql {
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
    const result = (await this.#sql.unsafe(text)) as Row[] | Row[][]
    // Several statements give several results; those without rows may be missing among them.
    const last = Array.isArray(result.at(-1)) ? (result.at(-1) as Row[]) : (result as Row[])
    return last[0] ? (Object.values(last[0])[0] as string | undefined) : undefined
  }

  /**
   * postgres.js keeps a connection of its own for listening and makes a new one by itself, but does not say that it
   * broke: that shows when nothing is heard.
   */
  listen(channels: readonly string[], ear: Ear): Listening {
    let open = true
    let listening = 0
    const asked = channels.map((channel) =>
      this.#sql.listen(
        channel,
        (payload) => {
          if (open) ear.heard(payload)
        },
        () => {
          // Once for every channel of a connection: all of them, and the server tells.
          if (open && ++listening % channels.length === 0) ear.up()
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
