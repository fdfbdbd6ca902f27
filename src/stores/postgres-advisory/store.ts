import { ClosedError, InvalidOptionError, UnsupportedError } from '../../errors.js'
import { type Duration, milliseconds } from '../../kit/duration.js'
import { realWorld } from '../../kit/world.js'
import {
  ALL,
  type Answer,
  type Blocker,
  type Claim,
  type HolderView,
  type Lease,
  type Refusal,
  type Released,
  type Renewal,
  type Renewed,
  type Store,
  type WaiterView,
} from '../../store.js'
import { Book, type Entry, grantOf, type Holding, isShared } from './book.js'
import { clientsLike, type PgPool } from './client.js'
import { type AdvisoryId, Ids, type LockId } from './ids.js'
import { Monitor } from './monitor.js'
import { Queue } from './queue.js'
import { type Attempt, LONGEST_IDLE_MS, type Outcome, type Session } from './session.js'
import { Sessions } from './sessions.js'
import { MARK } from './setup.js'
import { type How, howTo, Statements } from './statements.js'
import { explain, SessionLost } from './trouble.js'

export interface AdvisoryOptions {
  /**
   * Connections of its own that the store opens at most; one is enough as long as nobody waits. Who waits while all are
   * taken asks again and again instead of standing in the server's queue.
   */
  maxSessions?: number
  /** Where the sequence of fencing tokens is. All who share locks must name the same one. */
  schema?: string
  /** Your own numbers for some names, to share locks with others who use them. Undefined: the hash of the name. */
  key?: (name: string) => AdvisoryId | undefined
  /** How long to wait for an answer of the server before it counts as unavailable. */
  timeout?: Duration
  /**
   * Leave the server's queue after this long, and enter it again at its end. A statement that waits keeps PostgreSQL
   * from cleaning up what has been deleted since it began.
   */
  queueFor?: Duration
}

/** So many times a stolen lock may go to somebody in line before us. */
const STEALS = 20

const GONE: { outcome: 'gone' } = { outcome: 'gone' }
const RELEASED: { outcome: 'released' } = { outcome: 'released' }

/** Locks of PostgreSQL sessions: what is held ends with the connection that holds it. */
export class AdvisoryStore implements Store {
  readonly name = 'postgres-advisory'
  readonly expiry = 'session'
  readonly features = { line: false, counting: false, atomic: true, values: false }
  readonly blocks = true
  readonly maxBatch = 500
  readonly maxTtlMs: number = LONGEST_IDLE_MS
  readonly timeoutMs: number

  readonly #ids: Ids
  readonly #book: Book
  readonly #sessions: Sessions
  readonly #queue: Queue
  readonly #monitor: Monitor
  readonly #doubters = new Set<() => void>()
  #closed: Promise<void> | undefined

  constructor(pool: PgPool, options: AdvisoryOptions) {
    const { maxSessions = 4, schema = 'public', key, timeout = '5s', queueFor = '1m' } = options
    if (!Number.isInteger(maxSessions) || maxSessions < 1) {
      throw new InvalidOptionError('maxSessions', maxSessions, 'a whole number of at least 1')
    }
    this.timeoutMs = milliseconds('timeout', timeout, { min: 10 })
    this.#ids = new Ids(key)
    this.#book = new Book(realWorld, (holding) => void this.#expire(holding))
    this.#sessions = new Sessions(
      {
        open: clientsLike(pool, this.timeoutMs),
        statements: new Statements(schema),
        queueMs: milliseconds('queueFor', queueFor, { min: 10, max: LONGEST_IDLE_MS }),
        applicationName: markedName(pool),
        world: realWorld,
        timeoutMs: this.timeoutMs,
        onLost: (session, error) => this.#lost(session, error),
        onIdle: () => {},
        onMessage: (channel, payload) => this.#monitor.hear(channel, payload),
      },
      maxSessions,
    )
    this.#queue = new Queue(realWorld, this.#book, this.#sessions, this.timeoutMs)
    this.#monitor = new Monitor(realWorld, this.#ids, this.#book, this.#queue, this.#sessions, (id) =>
      this.#revokeHere(id),
    )
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    if (options?.atomic && claims.length > 1) return this.#askTogether(claims)
    return each(claims, (claim, answer) => this.#ask(claim, answer))
  }

  async renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    const pings = new Map<Session, Promise<unknown>>()
    const answers = renewals.map((renewal): (() => Promise<Renewed>) => {
      const holding = this.#book.find(renewal)
      if (!holding) return () => this.#gone(renewal)
      if (!this.#book.extend(holding, renewal.ttlMs)) return () => this.#expire(holding).then(() => GONE)
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
    return each(leases, (lease, answer) => this.#release(lease, answer))
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
    this.#book.stop()
    await this.#queue.close(new ClosedError('the store was closed'))
    await this.#sessions.close()
  }

  #ask(claim: Claim, answer: (answer: Answer) => void): void {
    const impossible = this.#impossible(claim)
    if (impossible) return answer(unknown(impossible))
    if (claim.steal) return void this.#steal(claim).catch(unknown).then(answer)
    const id = this.#ids.of(claim.key)
    const resumed = this.#queue.resume(claim, id)
    if (resumed) return void resumed.then(answer)
    const decided = (decision: Answer): void => {
      if (decision.granted || !claim.blockMs) answer(decision)
      else void this.#queue.join(claim, id).then(answer)
    }
    const entry = this.#book.entry(id)
    const turn = entry.enter()
    const session = turn || entry.holders.size > 0 ? undefined : this.#sessions.ready()
    if (!session) return void this.#askInTurn(entry, turn, claim).then(decided)
    // Mostly nobody is in the way, and nothing has to be waited for but the one statement.
    session.try(
      attemptOf(id, claim, false, (outcome) => {
        const failure = 'error' in outcome && outcome
        if (failure && failure.error instanceof SessionLost) {
          return void this.#askInTurn(entry, undefined, claim).then(decided)
        }
        const decision = failure ? unknown(failure.error) : this.#settle(session, entry, claim, outcome as Outcome)
        entry.leave()
        decided(decision)
      }),
    )
  }

  async #askInTurn(entry: Entry, turn: Promise<void> | undefined, claim: Claim): Promise<Answer> {
    await turn
    try {
      return (await this.#again(claim)) ?? (await this.#twice(() => this.#attempt(entry, claim)))
    } catch (error) {
      return unknown(error)
    } finally {
      entry.leave()
    }
  }

  /** Whoever stands in line gets it before us, and is cut off too. */
  async #steal(claim: Claim): Promise<Answer> {
    let answer: Answer = { granted: false }
    for (let tries = 0; tries < STEALS && !answer.granted; tries++) {
      await this.#monitor.revoke(claim.key)
      const entry = this.#book.entry(this.#ids.of(claim.key))
      answer = await this.#askInTurn(entry, entry.enter(), claim)
    }
    return answer
  }

  /** Somebody may just be about to unlock it: whoever is told that it is gone may rely on that. */
  async #gone(lease: Lease): Promise<{ outcome: 'gone' }> {
    const entry = this.#book.peek(this.#ids.of(lease.key))
    await entry?.enter()
    entry?.leave()
    return GONE
  }

  /** The same owner gets its own grant, which lives on from now. */
  async #again(claim: Claim): Promise<Answer | undefined> {
    const holding = this.#book.find(claim)
    if (!holding) return undefined
    if (!this.#book.extend(holding, claim.ttlMs)) return void (await this.#expire(holding, true))
    await holding.session.ping()
    return this.#book.find(claim) === holding ? grantOf(holding, claim.ttlMs) : undefined
  }

  /** Whatever a lost session was granted ended with it, so the question may simply be asked again. */
  async #twice<T>(ask: () => Promise<T>): Promise<T> {
    try {
      return await ask()
    } catch (error) {
      if (!(error instanceof SessionLost) || this.#closed) throw error
      return ask()
    }
  }

  #attempt(entry: Entry, claim: Claim): Promise<Answer> {
    const tryOn = (session: Session): Answer | Promise<Answer> => {
      // Looked at only now: the lock may have come to this very session, which could take it again.
      const obstacle = entry.obstacle(isShared(claim))
      if (obstacle) return refusalBy(obstacle)
      return new Promise((resolve, reject) => {
        const home = this.#homeOf(entry, session)
        const joins = entry.isHeldOn(home)
        home.try(
          attemptOf(entry.id, claim, joins, (outcome) => {
            if ('error' in outcome) reject(outcome.error)
            else resolve(this.#settle(home, entry, claim, outcome))
          }),
        )
      })
    }
    return this.#sessions.use(tryOn)
  }

  /** One more reader goes where the others are. */
  #homeOf(entry: Entry, session: Session): Session {
    const [holder] = entry.holders.values()
    return holder?.session ?? session
  }

  #settle(home: Session, entry: Entry, claim: Claim, outcome: Outcome): Answer {
    if (outcome.token === undefined) return { granted: false }
    return grantOf(this.#book.add(claim, entry.id, home, outcome.token, outcome.sentAt), claim.ttlMs)
  }

  async #askTogether(claims: readonly Claim[]): Promise<Answer[]> {
    const entered: Entry[] = []
    try {
      for (const claim of claims) {
        const impossible = this.#impossible(claim)
        if (impossible) throw impossible
      }
      const ids = claims.map((claim) => this.#ids.of(claim.key))
      if (clash(claims, ids)) return claims.map(() => ({ granted: false }))
      // In one order for all, or two who need the same entries could wait for each other.
      for (const id of distinct(ids)) {
        const entry = this.#book.entry(id)
        await entry.enter()
        entered.push(entry)
      }
      const parts = claims.map((claim, i) => ({ claim, entry: this.#book.entry(ids[i] as LockId) }))
      return await this.#twice(() => this.#attemptTogether(parts))
    } catch (error) {
      return claims.map(() => unknown(error))
    } finally {
      for (const entry of entered) entry.leave()
    }
  }

  async #attemptTogether(parts: readonly { claim: Claim; entry: Entry }[]): Promise<Answer[]> {
    const mine = new Map<Claim, Answer>()
    for (const { claim } of parts) {
      const answer = await this.#again(claim)
      if (answer) mine.set(claim, answer)
    }
    const missing = parts.filter(({ claim }) => !mine.has(claim))
    const answers =
      missing.length === 0 ? [] : await this.#sessions.use((session) => this.#tryTogether(session, missing))
    if (answers.some((answer) => !answer.granted)) return parts.map(({ entry, claim }) => refusalIn(entry, claim))
    return parts.map(({ claim }) => mine.get(claim) ?? (answers.shift() as Answer))
  }

  #tryTogether(session: Session, parts: readonly { claim: Claim; entry: Entry }[]): Answer[] | Promise<Answer[]> {
    const refused = parts.some(({ claim, entry }) => entry.obstacle(isShared(claim)))
    if (refused) return parts.map(() => ({ granted: false }))
    return new Promise((resolve, reject) => {
      const answers: Answer[] = []
      let settled = 0
      const attempts = parts.map(({ claim, entry }, i) => {
        // A reader who joins others locks nothing, so it may be asked on any session.
        const home = this.#homeOf(entry, session)
        const joins = entry.isHeldOn(home) || parts.findIndex((part) => part.entry === entry) < i
        return attemptOf(entry.id, claim, joins, (outcome) => {
          if ('error' in outcome) return reject(outcome.error)
          answers[i] = this.#settle(home, entry, claim, outcome)
          if (++settled === parts.length) resolve(answers)
        })
      })
      session.tryTogether(attempts)
    })
  }

  #release(lease: Lease, answer: (answer: Released) => void): void {
    if (this.#queue.leave(lease)) return answer(RELEASED)
    const entry = this.#book.entry(this.#ids.of(lease.key))
    const turn = entry.enter()
    if (!turn) return this.#releaseNow(entry, lease, answer)
    void turn.then(() => {
      // It may have come to stand in line while we waited for our turn.
      if (this.#queue.leave(lease)) {
        entry.leave()
        answer(RELEASED)
      } else this.#releaseNow(entry, lease, answer)
    })
  }

  #releaseNow(entry: Entry, lease: Lease, answer: (answer: Released) => void): void {
    const holding = this.#book.find(lease)
    if (!holding) {
      entry.leave()
      return answer(GONE)
    }
    const late = holding.deadline <= realWorld.now()
    this.#book.remove(holding)
    this.#unlock(entry, holding, (outcome) => {
      entry.leave()
      if (typeof outcome === 'object') answer({ outcome: 'unknown', error: outcome.error })
      else answer(outcome && !late ? RELEASED : GONE)
    })
  }

  /** The server holds it once for all readers of a session: the last one out unlocks. */
  #unlock(
    entry: Entry,
    { session, shared, id }: Holding,
    settle: (outcome: boolean | { error: unknown }) => void,
  ): void {
    if (entry.isHeldOn(session)) settle(true)
    else session.unlock(id, shared, settle)
  }

  async #expire(holding: Holding, entered = false): Promise<void> {
    const entry = this.#book.entry(holding.id)
    if (!entered) await entry.enter()
    // Unless it was renewed while we waited for our turn. If its session has ended, the lock has too.
    if (holding.deadline <= realWorld.now() && this.#book.remove(holding)) {
      await new Promise<unknown>((resolve) => this.#unlock(entry, holding, resolve))
    }
    if (!entered) entry.leave()
  }

  async #revokeHere(id: LockId): Promise<Holding[]> {
    const entry = this.#book.entry(id)
    await entry.enter()
    try {
      const cut = [...entry.holders.values()].filter((holding) => this.#book.remove(holding))
      // Whoever holds them finds out before anybody else can: it is not renewed any more.
      if (cut.length > 0) for (const listener of this.#doubters) listener()
      const lasts = [...new Map(cut.map((holding) => [holding.session, holding])).values()]
      await each(lasts, ({ session, shared }, settle) => session.unlock(id, shared, settle))
      return cut
    } finally {
      entry.leave()
    }
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

/** The server holds it once for all readers of a session: those who come later only join. */
function attemptOf(id: LockId, claim: Claim, joins: boolean, settle: Attempt['settle']): Attempt {
  const how: How = joins ? (id.pair ? 6 : 5) : howTo(id, isShared(claim))
  return { id, how, ttlMs: claim.ttlMs, settle }
}

function refusalBy({ owner, token, value }: Holding): Refusal {
  const blocker: Blocker = { owner, token, value }
  return { granted: false, blocker }
}

function refusalIn(entry: Entry, claim: Claim): Refusal {
  const obstacle = entry.obstacle(isShared(claim))
  return obstacle ? refusalBy(obstacle) : { granted: false }
}

function unknown(error: unknown): Answer {
  return { granted: 'unknown', error: explain(error) }
}

/** All answers in one promise, in the order of the questions. */
function each<I, O>(items: readonly I[], ask: (item: I, answer: (answer: O) => void) => void): Promise<O[]> {
  return new Promise((resolve) => {
    const answers: O[] = []
    let missing = items.length
    if (missing === 0) resolve(answers)
    for (const [i, item] of items.entries()) {
      ask(item, (answer) => {
        answers[i] = answer
        if (--missing === 0) resolve(answers)
      })
    }
  })
}

/** Whether some of them exclude each other. */
function clash(claims: readonly Claim[], ids: readonly LockId[]): boolean {
  return claims.some((claim, i) =>
    claims.some((other, j) => j < i && ids[i]?.text === ids[j]?.text && !(isShared(claim) && isShared(other))),
  )
}

function distinct(ids: readonly LockId[]): LockId[] {
  return [...new Map(ids.map((id) => [id.text, id])).values()].sort((a, b) => (a.text < b.text ? -1 : 1))
}

/** What monitoring shows, so that everybody sees whose session it is and that it is one of ours. */
function markedName(pool: PgPool): string {
  const { application_name: own } = (pool?.options ?? {}) as { application_name?: unknown }
  const name = typeof own === 'string' && own !== '' ? own : (process.env['PGAPPNAME'] ?? '')
  return `${Buffer.from(name)
    .subarray(0, 50)
    .toString()
    .replace(/\uFFFD+$/, '')} ${MARK}`.trim()
}
