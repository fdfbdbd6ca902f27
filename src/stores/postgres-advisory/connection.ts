import { endClient } from '../../clients/postgres/end-client.js'
import { isConnectionLost } from '../../clients/postgres/errors.js'
import type { PgClient, PgConnection, RawQuery, TextRow } from '../../clients/postgres/types.js'
import type { World } from '../../util/world.js'
import type { NamedStatement } from './statements.js'

/** Called once: with an error and no rows, or with undefined and the rows. */
export type StatementCallback = (error: unknown, rows: TextRow[]) => void

export interface AdvisoryConnectionOptions {
  world: World
  /** A statement that takes longer is not going to be answered, unless it waits for a lock. */
  timeoutMs: number
  /**
   * The connection is not given up before this time although the server is silent: what is held on it stays held until
   * its ttl ends, since the network may heal.
   */
  keepUntil(): number
  /** The connection is of no use any more. */
  onBroken(cause: unknown): void
}

/** One connection with one statement at a time, which is answered in the end or breaks the connection. */
export class AdvisoryConnection {
  readonly #client: PgClient
  readonly #options: AdvisoryConnectionOptions
  readonly #world: World
  #broken: Error | undefined
  #inFlight: StatementCallback | undefined
  /** When the statement in flight was sent. */
  #sentAt: number | undefined
  #limitMs = 0
  #checkAt = Number.POSITIVE_INFINITY
  #cancelCheck: (() => void) | undefined
  #provenAt: number
  #usedAt: number

  constructor(client: PgClient, options: AdvisoryConnectionOptions) {
    this.#client = client
    this.#options = options
    this.#world = options.world
    this.#provenAt = this.#usedAt = this.#world.now()
    client.on('error', (error) => options.onBroken(error))
    client.on('end', () => options.onBroken(new Error('the connection was closed')))
    client.unref?.()
  }

  /** When the last statement that was answered had been sent: the server has heard of us since. */
  get provenAt(): number {
    return this.#provenAt
  }

  /** When the last answer came. */
  get usedAt(): number {
    return this.#usedAt
  }

  /** The statement in flight should have been answered by now. */
  get stalled(): boolean {
    return this.#sentAt !== undefined && this.#world.now() - this.#sentAt > this.#options.timeoutMs
  }

  /** `waitMs`: how much longer than the timeout the statement may take because it waits for a lock. */
  send(statement: NamedStatement, values: readonly (string | null)[], done: StatementCallback, waitMs = 0): void {
    if (this.#broken) return done(this.#broken, [])
    const sentAt = this.#world.now()
    this.#sentAt = sentAt
    this.#limitMs = this.#options.timeoutMs + waitMs
    this.#inFlight = done
    this.#scheduleCheck(sentAt + this.#limitMs)
    this.#client.ref?.()
    this.#client.query(
      new PreparedQuery(statement, values, (error, rows) => {
        // `failInFlight` has called `done` already.
        if (this.#inFlight !== done) return
        this.#inFlight = undefined
        this.#sentAt = undefined
        this.#usedAt = this.#world.now()
        this.#client.unref?.()
        if (!error) this.#provenAt = sentAt
        else if (isConnectionLost(error)) this.#options.onBroken(error)
        done(this.#broken ?? error, rows)
      }),
    )
  }

  run(statement: NamedStatement, values: readonly (string | null)[] = [], waitMs = 0): Promise<TextRow[]> {
    return new Promise((resolve, reject) => {
      this.send(statement, values, (error, rows) => (error ? reject(error) : resolve(rows)), waitMs)
    })
  }

  /** From here on every statement fails. The statement in flight fails with `failInFlight`. */
  close(error: Error): Promise<void> {
    this.#broken ??= error
    this.#cancelCheck?.()
    return endClient(this.#client, this.#world)
  }

  failInFlight(error: Error): void {
    const inFlight = this.#inFlight
    this.#inFlight = undefined
    inFlight?.(error, [])
  }

  /** One timer for all statements, which checks whether the one in flight is overdue: a timer per statement costs more. */
  #scheduleCheck(deadline: number): void {
    if (deadline >= this.#checkAt) return
    this.#cancelCheck?.()
    this.#checkAt = deadline
    this.#cancelCheck = this.#world.after(deadline - this.#world.now(), () => this.#check())
  }

  #check(): void {
    this.#checkAt = Number.POSITIVE_INFINITY
    if (this.#broken || this.#sentAt === undefined) return
    const deadline = Math.max(this.#sentAt + this.#limitMs, this.#options.keepUntil())
    if (deadline <= this.#world.now()) this.#options.onBroken(new Error('the server does not answer'))
    else this.#scheduleCheck(deadline)
  }
}

/** An empty portal means all rows at once. */
const ALL_ROWS: object = {}

/**
 * One statement in the extended protocol. pg's own query asks the server to describe the result and reads the description
 * every time, which is a tenth of what it takes to lock; the columns of our statements are known.
 */
class PreparedQuery implements RawQuery {
  readonly name: string
  readonly text: string
  readonly #values: readonly (string | null)[]
  readonly #done: StatementCallback
  readonly #rows: TextRow[] = []

  constructor({ name, text }: NamedStatement, values: readonly (string | null)[], done: StatementCallback) {
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
    connection.execute(ALL_ROWS)
    connection.sync()
    stream.uncork()
  }

  handleDataRow({ fields }: { fields: TextRow }): void {
    this.#rows.push(fields)
  }

  handleReadyForQuery(): void {
    this.#done(undefined, this.#rows)
  }

  /** Also called with the error of a connection that broke. pg calls nothing else after it. */
  handleError(error: unknown): void {
    this.#done(error, [])
  }

  handleRowDescription(): void {}
  handleCommandComplete(): void {}
  handleEmptyQuery(): void {}
  handlePortalSuspended(): void {}
}
