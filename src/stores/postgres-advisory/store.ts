import { ClosedError, UnsupportedError } from '../../errors.js'
import type { World } from '../../kit/world.js'
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
  type Watch,
} from '../../store.js'
import { Acquiring } from './acquiring.js'
import { each, GONE, unknown } from './answers.js'
import { Book, type Holding } from './book.js'
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

  readonly #world: World
  readonly #book: Book
  readonly #sessions: Sessions
  readonly #queue: Queue
  readonly #releasing: Releasing
  readonly #acquiring: Acquiring
  readonly #monitor: Monitor
  readonly #revokedListeners = new Set<(lease: Lease) => void>()
  #closed: Promise<void> | undefined

  constructor(pool: PgPool, options: AdvisoryOptions) {
    const { maxSessions, world, ...settings } = settingsOf(pool, options)
    this.timeoutMs = settings.timeoutMs
    this.#world = world
    const ids = new Ids(options.key)
    this.#book = new Book(world, (holding) => void this.#releasing.expire(holding))
    const sessions = {
      ...settings,
      open: clientsLike(pool, this.timeoutMs),
      world,
      onLost: (session: Session, error: SessionLost) => this.#lost(session, error),
      onIdle: () => {},
      onMessage: (channel: string, payload: string) => this.#monitor.hear(channel, payload),
    }
    this.#sessions = new Sessions(sessions, maxSessions)
    this.#queue = new Queue(world, this.#book, this.#sessions, this.timeoutMs)
    this.#releasing = new Releasing(world, ids, this.#book, this.#queue)
    this.#acquiring = new Acquiring(ids, this.#book, this.#sessions, this.#queue, this.#releasing)
    this.#monitor = new Monitor(world, ids, this.#book, this.#queue, this.#sessions, (id) =>
      this.#releasing.revoke(id, (cut) => this.#tellRevoked(cut)),
    )
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    if (!options?.atomic || claims.length < 2) return this.#askEach(claims)
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

  /** A session hears the other processes from its first moment, and nothing is held before there is one. */
  watchRevoked(listener: (lease: Lease) => void): Watch {
    const told = (lease: Lease): void => listener(lease)
    this.#revokedListeners.add(told)
    return { ready: true, live: () => !this.#closed, close: () => void this.#revokedListeners.delete(told) }
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

  /** All at once, except for a key that is stolen in the same batch: its claims are decided one after the other. */
  #askEach(claims: readonly Claim[]): Promise<Answer[]> {
    const stolen = new Map<string, Promise<unknown>>()
    for (const { key, steal } of claims) if (steal && claims.length > 1) stolen.set(key, Promise.resolve())
    return each(claims, (claim, answer) => {
      const before = stolen.get(claim.key)
      if (!before) return this.#ask(claim, answer)
      const asked = before.then(() => new Promise<Answer>((resolve) => this.#ask(claim, resolve)))
      stolen.set(claim.key, asked)
      void asked.then(answer)
    })
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

  /** Before the lock is free: whoever held it stops believing before anybody else can hold it. */
  #tellRevoked(cut: readonly Holding[]): void {
    for (const { key, owner, token } of cut) {
      for (const listener of [...this.#revokedListeners]) {
        try {
          listener({ key, owner, token })
        } catch {
          // A listener's mistake must not keep the lock from being unlocked.
        }
      }
    }
  }

  /** The connection is gone, and so is everything on it. */
  #lost(session: Session, error: SessionLost): void {
    const lost = [...session.holdings]
    for (const holding of lost) this.#book.remove(holding)
    // What had run out before is not lost by this: the server ends a session because nothing was renewed on it.
    const now = this.#world.now()
    for (const holding of lost) if (holding.deadline > now) holding.lost.abort(error)
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
