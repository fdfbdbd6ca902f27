import type { World } from '../../kit/world.js'
import { end, type PgClient } from './client.js'
import { type Row, type Statement, Submission } from './submission.js'
import { isFatal } from './trouble.js'

export type Done = (error: unknown, rows: Row[]) => void

export interface WireOptions {
  world: World
  /** A statement that takes longer is not going to be answered, unless it waits for a lock. */
  timeoutMs: number
  /** Until then silence is borne: what is held is not given up before its time, since the network may heal. */
  patientUntil(): number
  /** The connection is of no use any more. */
  onBroken(cause: unknown): void
}

/** One connection with one statement at a time, which is answered in the end or breaks the connection. */
export class Wire {
  readonly #client: PgClient
  readonly #options: WireOptions
  readonly #world: World
  #broken: Error | undefined
  #inFlight: Done | undefined
  /** When the statement in flight was sent. */
  #sentAt: number | undefined
  #patienceMs = 0
  #lookAt = Number.POSITIVE_INFINITY
  #cancelLook: (() => void) | undefined
  #provenAt: number
  #usedAt: number

  constructor(client: PgClient, options: WireOptions) {
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

  /** It should have answered by now. */
  get stalled(): boolean {
    return this.#sentAt !== undefined && this.#world.now() - this.#sentAt > this.#options.timeoutMs
  }

  /** `waitMs`: how much longer it may take because it waits for a lock. */
  send(statement: Statement, values: readonly (string | null)[], done: Done, waitMs = 0): void {
    if (this.#broken) return done(this.#broken, [])
    const sentAt = this.#world.now()
    this.#sentAt = sentAt
    this.#patienceMs = this.#options.timeoutMs + waitMs
    this.#inFlight = done
    this.#watch(sentAt + this.#patienceMs)
    this.#client.ref?.()
    this.#client.query(
      new Submission(statement, values, (error, rows) => {
        // Given up already.
        if (this.#inFlight !== done) return
        this.#inFlight = undefined
        this.#sentAt = undefined
        this.#usedAt = this.#world.now()
        this.#client.unref?.()
        if (!error) this.#provenAt = sentAt
        else if (isFatal(error)) this.#options.onBroken(error)
        done(this.#broken ?? error, rows)
      }),
    )
  }

  run(statement: Statement, values: readonly (string | null)[] = [], waitMs = 0): Promise<Row[]> {
    return new Promise((resolve, reject) => {
      this.send(statement, values, (error, rows) => (error ? reject(error) : resolve(rows)), waitMs)
    })
  }

  /** From here on everything fails. Whoever waits for an answer is told by `failInFlight`. */
  cut(error: Error): Promise<void> {
    this.#broken ??= error
    this.#cancelLook?.()
    return end(this.#client, this.#world)
  }

  failInFlight(error: Error): void {
    const inFlight = this.#inFlight
    this.#inFlight = undefined
    inFlight?.(error, [])
  }

  /** One timer for all statements: it looks whether the one in flight is overdue. */
  #watch(deadline: number): void {
    if (deadline >= this.#lookAt) return
    this.#cancelLook?.()
    this.#lookAt = deadline
    this.#cancelLook = this.#world.after(deadline - this.#world.now(), () => this.#look())
  }

  #look(): void {
    this.#lookAt = Number.POSITIVE_INFINITY
    if (this.#broken || this.#sentAt === undefined) return
    const deadline = Math.max(this.#sentAt + this.#patienceMs, this.#options.patientUntil())
    if (deadline <= this.#world.now()) this.#options.onBroken(new Error('the server does not answer'))
    else this.#watch(deadline)
  }
}
