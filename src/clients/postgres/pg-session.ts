import { isConnectionLost } from './errors.js'
import type { PgClient, PgConnection, RawQuery } from './types.js'
import { realWorld } from '../../util/world.js'
import type { OwnSession } from './own-connection.js'

/**
 * One simple-protocol message, through the interface that `pg` has for cursors. `texts` are written at once: the server
 * begins the second when it has answered the first. pg counts one query for each answer, so the second gets a query that
 * sends nothing, made by `submitted`.
 */
class SimpleQuery implements RawQuery {
  readonly #texts: readonly string[]
  readonly #done: (error: unknown, value: string | undefined) => void
  readonly #submitted: () => void
  #value: string | undefined
  #error: unknown

  constructor(
    texts: readonly string[],
    done: (error: unknown, value: string | undefined) => void,
    submitted: () => void = () => {},
  ) {
    this.#texts = texts
    this.#done = done
    this.#submitted = submitted
  }

  submit(connection: PgConnection): void {
    connection.stream.cork()
    for (const text of this.#texts) connection.query(text)
    connection.stream.uncork()
    this.#submitted()
  }

  handleDataRow({ fields }: { fields: (string | null)[] }): void {
    this.#value = fields[0] ?? undefined
  }

  /** The server's errors, which are followed by "ready for query", and those of the connection, which are not. */
  handleError(error: unknown): void {
    this.#error = error
    this.#done(error, undefined)
  }

  handleReadyForQuery(): void {
    if (this.#error === undefined) this.#done(undefined, this.#value)
  }

  handleRowDescription(): void {}
  handleCommandComplete(): void {}
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
        return await (afterwards === undefined ? sendOne(client, sql) : sendTwo(client, sql, afterwards))
      } catch (error) {
        if (isConnectionLost(error)) lost()
        throw error
      }
    },
    keepAlive: (on) => (on ? client.ref?.() : client.unref?.()),
    end: () => endSoon(client),
  }
}

function sendOne(client: PgClient, sql: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    client.query(new SimpleQuery([sql], (error, value) => (error ? reject(error) : resolve(value))))
  })
}

/** Settles with the first. A failure settles only when pg is done with both: it warns of a client that is given too many queries. */
function sendTwo(client: PgClient, sql: string, afterwards: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    let failure: unknown
    let behind = false
    const fail = (): void => {
      if (failure !== undefined) reject(failure)
    }
    const second = new SimpleQuery([], fail, fail)
    const first = new SimpleQuery(
      [sql, afterwards],
      (error, value) => {
        failure = error
        if (error === undefined) resolve(value)
        else if (!behind) fail()
      },
      () => {
        behind = true
        client.query(second)
      },
    )
    client.query(first)
  })
}

/** Without the time limit, a server that accepts the connection and says nothing would keep the caller waiting for ever. */
function connectWithin(client: PgClient, timeoutMs: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const cancel = realWorld.after(timeoutMs, () => {
      void endSoon(client)
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

/** Ends the client in order, which may wait for a server that is gone: for half a second at most. */
export function endSoon(client: { end(): Promise<void> }): Promise<void> {
  return new Promise((resolve) => {
    // The connection does not keep the process alive, so the timer does: the caller awaits `close()`.
    const cancel = realWorld.after(500, resolve, true)
    const done = (): void => {
      cancel()
      resolve()
    }
    client.end().then(done, done)
  })
}
