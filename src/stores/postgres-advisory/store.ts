import { ClosedError, UnsupportedError } from '../../errors.js'
import { realWorld } from '../../kit/world.js'
import {
  ALL,
  type Answer,
  type Claim,
  type HolderView,
  type Lease,
  type Released,
  type Renewal,
  type Renewed,
  type Store,
  type WaiterView,
} from '../../store.js'
import { Acquiring } from './acquiring.js'
import { each, GONE, unknown } from './answers.js'
import { Book } from './book.js'
import { clientsLike, type PgPool } from './client.js'
import { LONGEST_IDLE_MS } from './idle-limit.js'
import { Ids } from './ids.js'
import { Monitor } from './monitor.js'
import { type AdvisoryOptions, settingsOf } from './options.js'
import { Queue } from './queue.js'
import { Releasing } from './releasing.js'
import type { Session } from './session.js'
import { Sessions } from './sessions.js'
import type { SessionLost } from './trouble.js'

/** So many times a stolen lock may go to somebody in line before us. */
const STEALS = 20

/** Locks of PostgreSQL sessions: what is held ends with the connection that holds it. */
export class AdvisoryStore implements Store {
  readonly name = 'postgres-advisory'
  readonly expiry = 'session'
  readonly features = { line: false, counting: false, atomic: true, values: false }
  readonly blocks = true
  readonly maxBatch = 500
  readonly maxTtlMs: number = LONGEST_IDLE_MS
  readonly timeoutMs: number

  readonly #book: Book
  readonly #sessions: Sessions
  readonly #queue: Queue
  readonly #releasing: Releasing
  readonly #acquiring: Acquiring
  readonly #monitor: Monitor
  readonly #doubters = new Set<() => void>()
  #closed: Promise<void> | undefined

  constructor(pool: PgPool, options: AdvisoryOptions) {
    const { maxSessions, ...settings } = settingsOf(pool, options)
    this.timeoutMs = settings.timeoutMs
    const ids = new Ids(options.key)
    this.#book = new Book(realWorld, (holding) => void this.#releasing.expire(holding))
    const sessions = {
      ...settings,
      open: clientsLike(pool, this.timeoutMs),
      world: realWorld,
      onLost: (session: Session, error: SessionLost) => this.#lost(session, error),
      onIdle: () => {},
      onMessage: (channel: string, payload: string) => this.#monitor.hear(channel, payload),
    }
    this.#sessions = new Sessions(sessions, maxSessions)
    this.#queue = new Queue(realWorld, this.#book, this.#sessions, this.timeoutMs)
    this.#releasing = new Releasing(ids, this.#book, this.#queue)
    this.#acquiring = new Acquiring(ids, this.#book, this.#sessions, this.#queue, this.#releasing)
    this.#monitor = new Monitor(realWorld, ids, this.#book, this.#queue, this.#sessions, (id) =>
      // Whoever holds them finds out before anybody else can: it is not renewed any more.
      this.#releasing.revoke(id, () => this.#doubt()),
    )
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    if (!options?.atomic || claims.length < 2) return each(claims, (claim, answer) => this.#ask(claim, answer))
    const impossible = claims.map((claim) => this.#impossible(claim)).find((error) => error)
    return impossible ? Promise.resolve(claims.map(() => unknown(impossible))) : this.#acquiring.together(claims)
  }

  async renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    const pings = new Map<Session, Promise<unknown>>()
    const answers = renewals.map((renewal): (() => Promise<Renewed>) => {
      const holding = this.#book.find(renewal)
      if (!holding) return () => this.#releasing.gone(renewal)
      if (!this.#book.extend(holding, renewal.ttlMs)) return () => this.#releasing.expire(holding).then(() => GONE)
      if (renewal.value !== undefined) holding.value = renewal.value
      const { session } = holding
      // One for all that is held on it.
      if (!pings.has(session))
        pings.set(
          session,
          session.ping().catch((error: unknown) => error),
        )
      return async () => {
        const error = await pings.get(session)
        if (this.#book.find(holding) !== holding) return GONE
        return error instanceof Error ? { outcome: 'unknown', error } : { outcome: 'ours', ttlMs: renewal.ttlMs }
      }
    })
    return Promise.all(answers.map((answer) => answer()))
  }

  release(leases: readonly Lease[]): Promise<Released[]> {
    return each(leases, (lease, answer) => this.#releasing.release(lease, answer))
  }

  holders(prefix: string): Promise<HolderView[]> {
    return this.#monitor.holders(prefix)
  }

  inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    return this.#monitor.inspect(key)
  }

  revoke(key: string): Promise<HolderView[]> {
    return this.#monitor.revoke(key)
  }

  onDoubt(listener: () => void): () => void {
    this.#doubters.add(listener)
    return () => this.#doubters.delete(listener)
  }

  async now(): Promise<number> {
    const [row] = await this.#sessions.use((session) =>
      session.ask('SELECT extract(epoch FROM clock_timestamp()) * 1000'),
    )
    return Number(row?.[0])
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    this.#acquiring.closed = true
    this.#book.stop()
    await this.#queue.close(new ClosedError('the store was closed'))
    await this.#sessions.close()
  }

  #ask(claim: Claim, answer: (answer: Answer) => void): void {
    const impossible = this.#impossible(claim)
    if (impossible) return answer(unknown(impossible))
    if (claim.steal) return void this.#steal(claim).catch(unknown).then(answer)
    this.#acquiring.ask(claim, answer)
  }

  /** Whoever stands in line gets it before us, and is cut off too. */
  async #steal(claim: Claim): Promise<Answer> {
    let answer: Answer = { granted: false }
    for (let tries = 0; tries < STEALS && !answer.granted; tries++) {
      await this.#monitor.revoke(claim.key)
      answer = await this.#acquiring.attempt(claim)
    }
    return answer
  }

  #doubt(): void {
    for (const listener of this.#doubters) listener()
  }

  /** The connection is gone, and so is everything on it. */
  #lost(session: Session, error: SessionLost): void {
    const lost = [...session.holdings]
    for (const holding of lost) this.#book.remove(holding)
    for (const holding of lost) holding.lost.abort(error)
    this.#queue.lost(session)
  }

  #impossible({ weight, capacity }: Claim): Error | undefined {
    if (this.#closed) return new ClosedError('the store was closed')
    if (capacity === ALL && (weight === ALL || weight === 1)) return undefined
    return new UnsupportedError(
      `postgres-advisory has locks and shared locks only; ${weight} of ${capacity} has to be made of slots`,
    )
  }
}
