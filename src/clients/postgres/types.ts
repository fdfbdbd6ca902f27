/**
 * The parts of `pg` and postgres.js that the PostgreSQL stores call, as structural types: neither package is needed to
 * compile against leasehold, and only the one that is used has to be installed.
 *
 * @module
 */

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

/** The few methods of a `pg` Client that are called. */
export interface PgClient {
  /** The backend's process ID as the peer named it when the session began. A pooler in between makes up its own. */
  readonly processID?: number | null
  /** Absent in pg-native. */
  readonly connection?: PgConnection
  connect(): Promise<unknown>
  query(text: string): Promise<unknown>
  query(
    query: PgArrayQuery,
    callback: (error: PgError | null | undefined, result: PgArrayResult | PgArrayResult[]) => void,
  ): unknown
  query(query: RawQuery): unknown
  on(event: 'error' | 'end', listener: (error?: Error) => void): unknown
  on(event: 'notification', listener: (message: { channel: string; payload?: string }) => void): unknown
  ref?(): void
  unref?(): void
  end(): Promise<void>
}

/** A query whose rows arrive as arrays. */
export interface PgArrayQuery {
  text: string
  values?: readonly string[]
  rowMode: 'array'
}

export interface PgArrayResult {
  rows: TextRow[]
}

/** The columns of a row as PostgreSQL writes them, before any parser. */
export type TextRow = (string | null)[]

/** The few methods of `client.connection` that are called. */
export interface PgConnection {
  /** Texts of the statements that this session has prepared, by name. Kept by pg. */
  readonly parsedStatements: Record<string, string>
  readonly stream: { cork(): void; uncork(): void; destroy(error?: Error): void }
  /** One message of the simple protocol. */
  query(text: string): void
  parse(statement: { name: string; text: string; types: never[] }): void
  bind(values: { statement: string; values: readonly (string | null)[] }): void
  execute(portal: object): void
  sync(): void
}

/**
 * A query that writes its own protocol messages and reads the answers, through the interface that `pg` has for cursors.
 * pg calls every handler without checking that it exists, so a class that implements this has them all.
 */
export interface RawQuery {
  submit(connection: PgConnection): void
  handleRowDescription(): void
  handleDataRow(message: { fields: TextRow }): void
  /** `text`: the command's tag. COMMIT of a failed transaction answers ROLLBACK. */
  handleCommandComplete(message: { text: string }): void
  handleEmptyQuery(): void
  handlePortalSuspended(): void
  /** The server's errors, which "ready for query" follows, and those of the connection, which nothing follows. */
  handleError(error: unknown): void
  handleReadyForQuery(): void
}

/** An error of the server has both; one of the socket has at most a code. */
export interface PgError extends Error {
  code?: string
  severity?: string
}

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
