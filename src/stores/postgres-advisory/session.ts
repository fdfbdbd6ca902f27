import type { World } from '../../kit/world.js'
import type { Holding } from './book.js'
import { end, type PgClient, query, type Row } from './client.js'
import { idOfRow, type LockId } from './ids.js'
import { prepare, type SetupOptions } from './setup.js'
import { type How, howTo, type SessionStatements } from './statements.js'
import { codeOf, explain, isFatal, pooled, SessionLost } from './trouble.js'

/** Without a token it was busy. `sentAt`: what is granted counts from there at least. */
export interface Outcome {
  token: bigint | undefined
  sentAt: number
}

export interface Granted extends Outcome {
  token: bigint
}

/** What happens around a statement that may take long. */
export interface WaitHooks {
  /** Asked at the last moment. From then on it takes a cancellation to end the wait. */
  begins(): boolean
  /** Answered. What this promises has to happen before the next statement: a late cancellation would hit that one. */
  ended(): Promise<void>
}

/** One lock to try. `settle` is called before anything else is sent here: the books are right when the next one goes. */
export interface Attempt {
  id: LockId
  how: How
  ttlMs: number
  settle(outcome: Outcome | { error: unknown }): void
}

interface Question<T> {
  resolve(answer: T): void
  reject(error: unknown): void
}

interface Unlocking {
  id: LockId
  how: 1 | 2 | 3 | 4
  /** Whether it was held, or why nobody knows. */
  settle(outcome: boolean | { error: unknown }): void
}

type Done = (error: unknown, rows: Row[]) => void

interface Errand extends Question<Row[]> {
  text: string
  values: readonly unknown[]
}

export interface SessionOptions extends SetupOptions {
  world: World
  /** A statement that takes longer is not going to be answered, unless it waits for a lock. */
  timeoutMs: number
  onLost(session: Session, error: SessionLost): void
  /** Holds nothing and has had nothing to do for a while. */
  onIdle(session: Session): void
  onMessage(channel: string, payload: string): void
}

/** Items of one statement at most. */
const MOST = 500

/** A session without locks is kept this long for the next wait. */
const IDLE_MS = 30_000

/** The largest value of `idle_session_timeout`. */
export const LONGEST_IDLE_MS: number = 2 ** 31 - 1

/** The server frees what a silent session holds after the ttl; we stop believing in it a little earlier. */
const EARLIER = 0.98

/**
 * One connection of our own, with one statement at a time. What is asked meanwhile travels together in the next
 * statement, which is what makes many locks on one connection fast.
 */
export class Session {
  readonly pid: number
  readonly startedAt: string
  readonly holdings: Set<Holding> = new Set()
  /** Blocked in the queue of a lock, or set apart for that. Such a session holds nothing: it could not be pinged. */
  waiting = false
  /** How many expect messages to arrive here: it must not begin to wait. */
  awaited = 0
  lost: SessionLost | undefined = undefined

  readonly #options: SessionOptions
  readonly #client: PgClient
  readonly #statements: SessionStatements
  readonly #unlocks: Unlocking[] = []
  readonly #tries: Attempt[] = []
  readonly #groups: Attempt[][] = []
  readonly #pings: Question<number>[] = []
  readonly #errands: Errand[] = []
  #draining = false
  #errandNext = false
  /** When the statement in flight was sent. */
  #sentAt: number | undefined
  #patienceMs = 0
  #inFlight: Done | undefined
  /** When the last statement that was answered had been sent. */
  #provenAt: number
  /** What the server was told as `idle_session_timeout`. 0: none. */
  #idleMs = 0
  #watched = false
  #resting = false
  #usedAt: number

  static async open(options: SessionOptions): Promise<Session> {
    const client = options.open()
    // Until there is a session to tell: without a listener an error would end the process.
    client.on('error', () => {})
    try {
      await client.connect()
      const { pid, startedAt } = await prepare(client, options)
      return new Session(client, pid, startedAt, options)
    } catch (error) {
      void end(client)
      throw explain(error)
    }
  }

  private constructor(client: PgClient, pid: number, startedAt: string, options: SessionOptions) {
    this.pid = pid
    this.startedAt = startedAt
    this.#client = client
    this.#options = options
    this.#statements = options.statements.for(pid)
    this.#provenAt = this.#usedAt = options.world.now()
    client.on('error', (error) => this.die(error))
    client.on('end', () => this.die(new Error('the connection was closed')))
    client.on('notification', ({ channel, payload }) => options.onMessage(channel, payload ?? ''))
    client.unref?.()
  }

  /** Nothing is asked of it and nothing is held. */
  get free(): boolean {
    return !this.lost && !this.waiting && !this.#draining && this.awaited === 0 && this.holdings.size === 0
  }

  /** It should have answered by now. */
  get stalled(): boolean {
    return this.#sentAt !== undefined && this.#options.world.now() - this.#sentAt > this.#options.timeoutMs
  }

  try(attempt: Attempt): void {
    if (this.lost) return attempt.settle({ error: this.lost })
    this.#tries.push(attempt)
    this.#start()
  }

  /** All or none, in a statement of their own. */
  tryTogether(attempts: Attempt[]): void {
    if (this.lost) return failAll(attempts, this.lost)
    this.#groups.push(attempts)
    this.#start()
  }

  unlock(id: LockId, shared: boolean, settle: Unlocking['settle']): void {
    if (this.lost) return settle({ error: this.lost })
    this.#unlocks.push({ id, how: howTo(id, shared), settle })
    this.#start()
  }

  /** Proves that the session lives, and tells the server the largest ttl of what is held on it. When it was sent. */
  ping(): Promise<number> {
    return this.#enqueue((question) => this.#pings.push(question))
  }

  /** Any other statement. */
  ask(text: string, values: readonly unknown[] = []): Promise<Row[]> {
    return this.#enqueue((question) => this.#errands.push({ ...question, text, values }))
  }

  /** Stays in the server's queue. Undefined: cancelled, or waited for as long as one statement may. */
  async wait(id: LockId, shared: boolean, ttlMs: number, hooks: WaitHooks): Promise<Granted | undefined> {
    const how = howTo(id, shared)
    await this.#tellIdle(ttlMs)
    if (!hooks.begins()) return undefined
    const sentAt = this.#options.world.now()
    try {
      const statement = this.#statements.wait[how - 1] as string
      const answer = await this.#run(statement, [id.bits], `wait${how}`, this.#options.queueMs).finally(
        () => void hooks.ended(),
      )
      if (!this.#isOurs(answer)) throw this.lost
      return { token: tokenOf(answer[0]?.[0]) as bigint, sentAt }
    } catch (error) {
      const granted = await this.#isHeldAfterAll(id)
      if (granted) return { token: await this.#drawToken(), sentAt }
      if (codeOf(error) === '55P03' || codeOf(error) === '57014') return undefined
      throw explain(error)
    }
  }

  /** A timeout or a cancellation may come at the moment of the grant: the statement fails, but the session has the lock. */
  async #isHeldAfterAll(id: LockId): Promise<boolean> {
    try {
      return (await this.#held()).some((held) => held.id.text === id.text)
    } catch (error) {
      this.die(error)
      throw this.lost
    }
  }

  /** Its wait is over, and it holds nothing. */
  standDown(): void {
    this.waiting = false
    this.#rest()
  }

  /** From here on nothing on it can be trusted, and everything that was asked of it fails. */
  die(cause: unknown): void {
    if (this.lost) return
    const lost = cause instanceof SessionLost ? cause : new SessionLost(cause)
    this.lost = lost
    void end(this.#client)
    // First of all those who hold something on it.
    this.#options.onLost(this, lost)
    const inFlight = this.#inFlight
    this.#inFlight = undefined
    inFlight?.(lost, [])
    for (const question of [...this.#pings, ...this.#errands]) question.reject(lost)
    failAll([...this.#unlocks, ...this.#tries, ...this.#groups.flat()], lost)
  }

  /** An orderly end: the server frees everything before it hangs up. */
  async close(): Promise<void> {
    if (this.lost) return
    this.lost = new SessionLost(new Error('the store was closed'))
    await end(this.#client)
  }

  #enqueue<T>(add: (question: Question<T>) => void): Promise<T> {
    return new Promise((resolve, reject) => {
      if (this.lost) return reject(this.lost)
      add({ resolve, reject })
      this.#start()
    })
  }

  #start(): void {
    if (this.#draining || this.lost) return
    this.#draining = true
    // Whatever else is asked in this turn gets aboard.
    queueMicrotask(this.#next)
  }

  /** The next statement, as soon as the one before is answered. */
  readonly #next = (): void => {
    if (this.lost) return
    if (this.#pings.length > 0) return void this.#pingOnce(this.#pings.splice(0)).finally(this.#next)
    if (this.#errands.length > 0 && this.#errandNext) return void this.#runErrand().finally(this.#next)
    this.#errandNext = true
    if (this.#unlocks.length > 0) return this.#unlockMany(this.#unlocks.splice(0, MOST))
    if (this.#tries.length > 0) return this.#tryMany(this.#tries.splice(0, MOST), false, this.#next)
    if (this.#groups.length > 0) return this.#tryMany(this.#groups.shift() as Attempt[], true, this.#next)
    if (this.#errands.length > 0) return void this.#runErrand().finally(this.#next)
    this.#draining = false
    this.#rest()
  }

  #unlockMany(unlocks: Unlocking[]): void {
    const { unlockOne, unlockMany } = this.#statements
    const [only] = unlocks
    const alone = unlocks.length === 1 && only
    const done: Done = (error, rows) => {
      if (error) failAll(unlocks, explain(error))
      else if (alone) alone.settle(rows[0]?.[0] === 't')
      else for (const [n, held] of rows) unlocks[Number(n) - 1]?.settle(held === 't')
      this.#next()
    }
    if (alone) this.#send(unlockOne[alone.how - 1] as string, [alone.id.bits], `unlock${alone.how}`, done)
    else this.#send(unlockMany, arrays(unlocks), 'unlocks', done)
  }

  #tryMany(attempts: Attempt[], together: boolean, next: () => void): void {
    let ttlMs = 0
    for (const attempt of attempts) ttlMs = Math.max(ttlMs, attempt.ttlMs)
    if (this.#idleMs >= ttlMs) return this.#tryNow(attempts, together, next)
    this.#tellIdle(ttlMs).then(
      () => this.#tryNow(attempts, together, next),
      (error: unknown) => void this.#undo(attempts, together, error).finally(next),
    )
  }

  #tryNow(attempts: Attempt[], together: boolean, next: () => void): void {
    const [only] = attempts
    const alone = attempts.length === 1 && only && only.how < 5 && only
    const sentAt = this.#options.world.now()
    const done: Done = (error, rows) => {
      if (error || !this.#isOurs(rows)) return void this.#undo(attempts, together, error).finally(next)
      if (alone) alone.settle({ token: tokenOf(rows[0]?.[0]), sentAt })
      else for (const [n, token] of rows) attempts[Number(n) - 1]?.settle({ token: tokenOf(token), sentAt })
      next()
    }
    if (alone) this.#send(this.#statements.tryOne[alone.how - 1] as string, [alone.id.bits], `try${alone.how}`, done)
    else this.#send(this.#statements.tryMany, [...arrays(attempts), together], 'tries', done)
  }

  /** A statement that fails keeps what it had already locked. One item must not fail the others either. */
  async #undo(attempts: Attempt[], together: boolean, error: unknown): Promise<void> {
    if (this.lost) return failAll(attempts, this.lost)
    try {
      await this.#unlockAgain(attempts)
    } catch {
      this.die(error)
      return failAll(attempts, this.lost)
    }
    if (attempts.length === 1 || together) failAll(attempts, explain(error))
    else for (const each of attempts) await new Promise<void>((resolve) => this.#tryMany([each], false, resolve))
    // What else it may be (a sequence that was dropped), a new session finds out or mends.
    if (!['53200', '57014', '55P03'].includes(codeOf(error) ?? '') && this.holdings.size === 0) this.die(error)
  }

  /** Whatever of this may have been locked. Without a look at pg_locks: a server out of memory could not show it. */
  async #unlockAgain(attempts: Attempt[]): Promise<void> {
    const known = new Set([...this.holdings].map((holding) => holding.id.text))
    const unknown = attempts.filter(({ id, how }) => how < 5 && !known.has(id.text))
    if (unknown.length > 0) await this.#run(this.#statements.unlockMany, arrays(unknown), 'unlocks')
  }

  async #held(): Promise<{ id: LockId; how: How }[]> {
    const rows = await this.#run(this.#statements.held, [], 'held')
    return rows.map(([how, bits]) => ({ id: idOfRow(bits, Number(how) > 2), how: Number(how) as How }))
  }

  async #drawToken(): Promise<bigint> {
    return BigInt((await this.#run(this.#statements.token, [], 'token'))[0]?.[0] as string)
  }

  async #pingOnce(pings: Question<number>[]): Promise<void> {
    try {
      const sentAt = this.#options.world.now()
      await this.#sendIdle(this.#longestLeft())
      for (const ping of pings) ping.resolve(sentAt)
    } catch (error) {
      for (const ping of pings) ping.reject(explain(error))
    }
  }

  async #runErrand(): Promise<void> {
    this.#errandNext = false
    const { text, values, resolve, reject } = this.#errands.shift() as Errand
    try {
      resolve(await this.#run(text, values))
    } catch (error) {
      reject(error)
    }
  }

  /** How long the server must let us be silent for the sake of what is held. */
  #longestLeft(): number {
    const now = this.#options.world.now()
    let longest = 0
    for (const { deadline } of this.holdings) longest = Math.max(longest, deadline - now, 1)
    return Math.min(Math.ceil(longest), LONGEST_IDLE_MS)
  }

  /** The server must know the ttl before it grants: if we freeze with the grant on its way, nobody else could tell it. */
  async #tellIdle(ttlMs: number): Promise<void> {
    if (this.#idleMs < ttlMs) await this.#sendIdle(Math.max(Math.ceil(ttlMs), this.#longestLeft()))
  }

  async #sendIdle(idleMs: number): Promise<void> {
    const [row] = await this.#run(this.#statements.ping, [String(idleMs)], 'ping')
    if (Number(row?.[1]) !== this.pid) {
      this.die(pooled())
      throw this.lost
    }
    this.#idleMs = idleMs
  }

  /** Whether it was our backend that answered. */
  #isOurs(rows: readonly Row[]): boolean {
    const row = rows[0]
    if (row?.[row.length - 1] === '-1') this.die(pooled())
    return !this.lost
  }

  #run(text: string, values: readonly unknown[], name?: string, waitMs = 0): Promise<Row[]> {
    return new Promise((resolve, reject) => {
      this.#send(text, values, name, (error, rows) => (error ? reject(error) : resolve(rows)), waitMs)
    })
  }

  #send(text: string, values: readonly unknown[], name: string | undefined, done: Done, waitMs = 0): void {
    if (this.lost) return done(this.lost, [])
    const sentAt = this.#options.world.now()
    this.#sentAt = sentAt
    this.#patienceMs = this.#options.timeoutMs + waitMs
    this.#inFlight = done
    this.#watch()
    this.#client.ref?.()
    query(this.#client, text, values, name, (error, rows) => {
      // Given up already.
      if (this.#inFlight !== done) return
      this.#inFlight = undefined
      this.#answered()
      if (error && isFatal(error)) this.die(error)
      if (!error) this.#provenAt = sentAt
      done(this.lost ?? error, rows)
    })
  }

  #answered(): void {
    this.#sentAt = undefined
    this.#usedAt = this.#options.world.now()
    this.#client.unref?.()
  }

  /** One timer for all statements: it looks whether the one in flight is overdue. */
  #watch(): void {
    if (this.#watched) return
    this.#watched = true
    const { world } = this.#options
    const look = (): void => {
      this.#watched = false
      if (this.lost || this.#sentAt === undefined) return
      // What is held is not given up before its time: the network may heal, and then nothing was lost.
      const trusted = this.holdings.size > 0 ? this.#provenAt + this.#idleMs * EARLIER : 0
      const left = Math.max(this.#sentAt + this.#patienceMs, trusted) - world.now()
      if (left <= 0) return this.die(new Error('the server does not answer'))
      this.#watched = true
      world.after(left, look)
    }
    world.after(this.#patienceMs, look)
  }

  /** A session that holds nothing needs no ttl: nobody pings it, and the server would end it. */
  #rest(): void {
    if (this.#resting || this.holdings.size > 0 || this.lost) return
    this.#resting = true
    const { world } = this.#options
    const look = (): void => {
      this.#resting = false
      if (!this.free) return
      const idleFor = world.now() - this.#usedAt
      if (this.#idleMs > 0 && idleFor >= this.#idleMs / 4) this.ping().catch(() => {})
      else if (this.#idleMs === 0 && idleFor >= IDLE_MS) this.#options.onIdle(this)
      else this.#rest()
    }
    world.after(this.#idleMs > 0 ? this.#idleMs / 3 : IDLE_MS, look)
  }
}

function arrays(items: readonly { id: LockId; how: How }[]): [number[], string[]] {
  return [items.map((item) => item.how), items.map((item) => item.id.bits)]
}

function failAll(items: readonly { settle(outcome: { error: unknown }): void }[], error: unknown): void {
  for (const item of items) item.settle({ error })
}

function tokenOf(text: string | null | undefined): bigint | undefined {
  return text === null || text === undefined ? undefined : BigInt(text)
}
