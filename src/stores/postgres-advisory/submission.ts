/** A prepared statement of a session, or one to be used once, which has no name. */
export interface Statement {
  readonly name: string
  readonly text: string
}

/** Everything arrives as PostgreSQL writes it. */
export type Row = (string | null)[]

/** The few methods of `client.connection` that are called. */
export interface PgConnection {
  /** Texts of the statements that this session has prepared, by name. Kept by pg. */
  readonly parsedStatements: Record<string, string>
  readonly stream: { cork(): void; uncork(): void; destroy(error?: Error): void }
  parse(statement: { name: string; text: string; types: never[] }): void
  bind(values: { statement: string; values: readonly (string | null)[] }): void
  execute(portal: object): void
  sync(): void
}

/**
 * One statement on its way, through the door that pg keeps open for cursors. pg's own query asks for a description of the
 * result and reads it, every time: a tenth of what it takes to lock. What the columns are, we know.
 */
export class Submission {
  readonly name: string
  readonly text: string
  readonly #values: readonly (string | null)[]
  readonly #done: (error: unknown, rows: Row[]) => void
  readonly #rows: Row[] = []

  constructor(
    { name, text }: Statement,
    values: readonly (string | null)[],
    done: (error: unknown, rows: Row[]) => void,
  ) {
    this.name = name
    this.text = text
    this.#values = values
    this.#done = done
  }

  submit(connection: PgConnection): void {
    const { name, text } = this
    const { stream } = connection
    stream.cork()
    if (name === '' || connection.parsedStatements[name] === undefined) connection.parse({ name, text, types: [] })
    connection.bind({ statement: name, values: this.#values })
    connection.execute(WHOLE)
    connection.sync()
    stream.uncork()
  }

  handleDataRow({ fields }: { fields: Row }): void {
    this.#rows.push(fields)
  }

  handleReadyForQuery(): void {
    this.#done(undefined, this.#rows)
  }

  /** Also of a connection that broke. Nothing else is heard after it. */
  handleError(error: unknown): void {
    this.#done(error, [])
  }

  handleRowDescription(): void {}
  handleCommandComplete(): void {}
  handleEmptyQuery(): void {}
  handlePortalSuspended(): void {}
}

/** All rows at once. */
const WHOLE: object = {}
