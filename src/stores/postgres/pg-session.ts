import { realWorld } from '../../kit/world.js'
import type { Session } from './dedicated.js'

/** The few methods of a `pg` Client that are called. */
export interface PgClient {
  connect(): Promise<unknown>
  query(text: string): Promise<unknown>
  query(query: RawQuery): unknown
  on(event: string, listener: (message: { channel?: string; payload?: string }) => void): unknown
  ref?(): void
  unref?(): void
  end(): Promise<void>
}

/** What a query that sends its own messages sees of `pg`. */
interface PgConnection {
  readonly stream: { cork(): void; uncork(): void }
  query(text: string): void
}

/**
 * One simple-protocol message, through the interface that `pg` has for cursors. `texts` are written at once: the server
 * begins the second when it has answered the first. pg counts one query for each answer, so the second gets a query that
 * sends nothing, made by `submitted`.
 */
class RawQuery {
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

/** How to open a connection like those of the pool. pg hides the password from copies. */
export function clientsLike(pool: object): () => PgClient {
  const { Client, options } = pool as {
    Client: new (options: object) => PgClient
    options: { password?: unknown }
  }
  // Our calls carry their own time limits, and query_timeout would reject without ending the call.
  const own = { password: options.password, keepAlive: true, query_timeout: undefined, pipeline: false }
  return () => new Client({ ...options, ...own })
}

export async function openSession(client: PgClient, broken: () => void, timeoutMs: number): Promise<Session> {
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
        if (!isVerdict(error)) lost()
        throw error
      }
    },
    keepAlive: (on) => (on ? client.ref?.() : client.unref?.()),
    end: () => endSoon(client),
  }
}

function sendOne(client: PgClient, sql: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    client.query(new RawQuery([sql], (error, value) => (error ? reject(error) : resolve(value))))
  })
}

/** Settles with the first. If that failed, not before pg is done with it: it warns of a client that is given too many queries. */
function sendTwo(client: PgClient, sql: string, afterwards: string): Promise<string | undefined> {
  return new Promise((resolve, reject) => {
    let failure: unknown
    let behind = false
    const fail = (): void => {
      if (failure !== undefined) reject(failure)
    }
    const second = new RawQuery([], fail, fail)
    const first = new RawQuery(
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

/** The server answered, and keeps the connection. After class 08 and 57P it does not. */
export function isVerdict(error: unknown): boolean {
  const { code, severity } = error as { code?: unknown; severity?: unknown }
  return typeof code === 'string' && severity === 'ERROR' && !/^(08|57P)/.test(code)
}

/** A server that accepts the connection and says nothing would otherwise keep the caller waiting for ever. */
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

/** An orderly end may wait for a server that is gone: not longer than a moment. */
export function endSoon(client: { end(): Promise<void> }): Promise<void> {
  return new Promise((resolve) => {
    // The connection does not keep the process alive, so the timer does: somebody awaits `close()`.
    const cancel = realWorld.after(500, resolve, true)
    const done = (): void => {
      cancel()
      resolve()
    }
    client.end().then(done, done)
  })
}
