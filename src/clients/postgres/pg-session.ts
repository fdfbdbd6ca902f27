import { endClient } from './end-client.js'
import { isConnectionLost } from './errors.js'
import type { PgClient, PgConnection, RawQuery } from './types.js'
import { realWorld } from '../../util/world.js'
import { inTwoTransactions, type OwnSession } from './own-connection.js'

/**
 * One simple-protocol message, through the interface that `pg` has for cursors. Settles with the last value before COMMIT, or of
 * all; an error after COMMIT leaves that value known.
 */
class SimpleQuery implements RawQuery {
  readonly #text: string
  readonly #done: (error: unknown, value: string | undefined) => void
  #value: string | undefined
  #error: unknown
  #committed = false

  constructor(text: string, done: (error: unknown, value: string | undefined) => void) {
    this.#text = text
    this.#done = done
  }

  submit(connection: PgConnection): void {
    connection.query(this.#text)
  }

  handleDataRow({ fields }: { fields: (string | null)[] }): void {
    if (!this.#committed) this.#value = fields[0] ?? undefined
  }

  handleCommandComplete({ text }: { text: string }): void {
    this.#committed ||= text === 'COMMIT'
  }

  /** The server's errors, which are followed by "ready for query", and those of the connection, which are not. */
  handleError(error: unknown): void {
    this.#error = error
    this.#done(this.#committed ? undefined : error, this.#value)
  }

  handleReadyForQuery(): void {
    if (this.#error === undefined) this.#done(undefined, this.#value)
  }

  handleRowDescription(): void {}
  handleEmptyQuery(): void {}
  handlePortalSuspended(): void {}
  handleCopyInResponse(): void {}
  handleCopyData(): void {}
}

/** Makes clients with the options of the pool. pg hides the password from copies, so it is copied by name. */
export function clientsLike(pool: object): () => PgClient {
  const { Client, options } = pool as {
    Client: new (options: object) => PgClient
    options: { password?: unknown }
  }
  // Calls carry their own time limits, and query_timeout would reject without ending the call.
  const own = { password: options.password, keepAlive: true, query_timeout: undefined, pipeline: false }
  return () => new Client({ ...options, ...own })
}

export async function openSession(client: PgClient, broken: () => void, timeoutMs: number): Promise<OwnSession> {
  let over = false
  const lost = (): void => {
    over = true
    broken()
  }
  client.on('error', lost)
  client.on('end', lost)
  await connectWithin(client, timeoutMs)
  return {
    send: async (sql, afterwards) => {
      if (over) throw new Error('the connection was closed')
      try {
        return await sendOne(client, afterwards === undefined ? sql : inTwoTransactions(sql, afterwards))
      } catch (error) {
        if (isConnectionLost(error)) lost()
        throw error
      }
    },
    keepAlive: (on) => (on ? client.ref?.() : client.unref?.()),
    end: () => endClient(client),
  }
}

function sendOne(client: PgClient, sql: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    client.query(new SimpleQuery(sql, (error, value) => (error ? reject(error) : resolve(value))))
  })
}

/** Without the time limit, a server that accepts the connection and says nothing would keep the caller waiting for ever. */
function connectWithin(client: PgClient, timeoutMs: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const cancel = realWorld.after(timeoutMs, () => {
      void endClient(client)
      reject(new Error('the server did not answer'))
    })
    client.connect().then(
      () => {
        cancel()
        resolve()
      },
      (error: unknown) => {
        cancel()
        reject(error as Error)
      },
    )
  })
}
