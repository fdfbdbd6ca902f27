import { ClosedError, UnsupportedError } from '../../errors.js'
import type { World } from '../../util/world.js'
import {
  ALL,
  type Answer,
  type Claim,
  type HolderView,
  type LeaseId,
  type Released,
  type Renewal,
  type Renewed,
  type Store,
  type WaiterView,
  type Watch,
} from '../../store.js'
import { Acquiring } from './acquiring.js'
import type { SessionLost } from './errors.js'
import { HeldLocks, type Holding, unknown } from './held-locks.js'
import { AdvisoryInspector } from './inspect.js'
import type { AdvisoryKeys } from './keys.js'
import { LONGEST_IDLE_MS } from './locking.js'
import { answerEach, GONE, Releasing } from './releasing.js'
import { ServerQueue } from './server-queue.js'
import type { AdvisorySession } from './session.js'
import { AdvisorySessions } from './sessions.js'
import type { SetupOptions } from './setup.js'

/**
 * MAX_STEALS: how often a steal revokes the lock before it gives up. Each time, a waiter in the server's queue may get the
 * lock before the stealing claim does.
 */
const MAX_STEALS = 20

export interface AdvisorySettings extends SetupOptions {
  maxSessions: number
  timeoutMs: number
  keys: AdvisoryKeys
}

/** Locks of PostgreSQL sessions: what is held ends with the connection that holds it. */
export class AdvisoryStore implements Store {
  readonly name = 'postgres-advisory'
  readonly expiry = 'session'
  readonly features = { queue: false, counting: false, atomic: true, values: false }
  readonly blocks = true
  readonly maxBatch = 500
  readonly maxTtlMs: number = LONGEST_IDLE_MS
  readonly timeoutMs: number

  readonly #world: World
  readonly #heldLocks: HeldLocks
  readonly #sessions: AdvisorySessions
  readonly #queue: ServerQueue
  readonly #releasing: Releasing
  readonly #acquiring: Acquiring
  readonly #inspector: AdvisoryInspector
  readonly #revokedListeners = new Set<(lease: LeaseId, broken?: unknown) => void>()
  /** Calls with several claims that are not answered yet. */
  #openBatches = 0
  /** By its token, what a session had been granted that broke while such a call was open, or in this turn of the event loop. */
  readonly #lostMeanwhile = new Map<bigint, SessionLost>()
  #closed: Promise<void> | undefined

  constructor(settings: AdvisorySettings) {
    const { world, keys, timeoutMs, maxSessions } = settings
    this.timeoutMs = timeoutMs
    this.#world = world
    const heldLocks = new HeldLocks(world, (holding) => void this.#releasing.expire(holding))
    const sessionOptions = {
      ...settings,
      onLost: (session: AdvisorySession, error: SessionLost) => this.#lost(session, error),
      onIdle: () => {},
      onMessage: (channel: string, payload: string) => this.#inspector.receive(channel, payload),
    }
    const sessions = new AdvisorySessions(sessionOptions, maxSessions)
    const queue = new ServerQueue(world, heldLocks, sessions, timeoutMs)
    this.#heldLocks = heldLocks
    this.#sessions = sessions
    this.#queue = queue
    this.#releasing = new Releasing(world, keys, heldLocks, queue)
    this.#acquiring = new Acquiring(keys, heldLocks, sessions, queue, this.#releasing)
    this.#inspector = new AdvisoryInspector(world, keys, heldLocks, queue, sessions, {
      timeoutMs,
      revokeHere: (id) => this.#releasing.revoke(id, (removed) => this.#announceEnded(removed)),
    })
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    this.#sessions.attend()
    if (claims.length < 2) return this.#acquireEach(claims).then((answers) => this.#againIfLost(claims, answers))
    if (!options?.atomic) return this.#withLosses(() => this.#acquireEach(claims))
    const impossible = claims.map((claim) => this.#impossible(claim)).find((error) => error)
    if (impossible) return Promise.resolve(claims.map(() => unknown(impossible)))
    return this.#withLosses(() => this.#acquiring.acquireAll(claims))
  }

  async renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    const pings = new Map<AdvisorySession, Promise<unknown>>()
    const answers = renewals.map((renewal): (() => Promise<Renewed>) => {
      const holding = this.#heldLocks.find(renewal)
      if (!holding) return () => this.#releasing.confirmGone(renewal)
      if (!this.#heldLocks.extend(holding, renewal.ttlMs)) return () => this.#releasing.expire(holding).then(() => GONE)
      if (renewal.value !== undefined) holding.value = renewal.value
      const { session } = holding
      // One ping per session renews everything that is held on it.
      if (!pings.has(session))
        pings.set(
          session,
          session.ping().catch((error: unknown) => error),
        )
      return async () => {
        const error = await pings.get(session)
        if (this.#heldLocks.find(holding) !== holding) return GONE
        return error instanceof Error ? { outcome: 'unknown', error } : { outcome: 'ours', ttlMs: renewal.ttlMs }
      }
    })
    return Promise.all(answers.map((answer) => answer()))
  }

  release(leases: readonly LeaseId[]): Promise<Released[]> {
    return answerEach(leases, (lease, answer) => this.#releasing.release(lease, answer))
  }

  holders(prefix: string): Promise<HolderView[]> {
    this.#sessions.attend()
    return this.#inspector.holders(prefix)
  }

  inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    this.#sessions.attend()
    return this.#inspector.inspect(key)
  }

  revoke(key: string): Promise<HolderView[]> {
    this.#sessions.attend()
    return this.#inspector.revoke(key)
  }

  /** Ready at once: a session listens to the other processes before anything can be held on it. */
  watchRevoked(listener: (lease: LeaseId, broken?: unknown) => void): Watch {
    // A function of its own per watch: closing one must not remove another with the same listener.
    const watcher = (lease: LeaseId, broken?: unknown): void => listener(lease, broken)
    this.#revokedListeners.add(watcher)
    return { ready: true, live: () => !this.#closed, close: () => void this.#revokedListeners.delete(watcher) }
  }

  async now(): Promise<number> {
    this.#sessions.attend()
    const [row] = await this.#sessions.use((session) =>
      session.query('SELECT extract(epoch FROM clock_timestamp()) * 1000'),
    )
    return Number(row?.[0])
  }

  outage(): unknown {
    return this.#sessions.outage
  }

  idle(): void {
    this.#sessions.rest()
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    this.#acquiring.closed = true
    this.#heldLocks.stop()
    await this.#queue.close(new ClosedError('the store was closed'))
    await this.#sessions.close()
  }

  /**
   * A session may break while other claims of the same call are decided, or with the very packet that brings the grant. What was granted
   * on it is answered as unknown then: the caller may subscribe to losses only once it has the answer.
   */
  async #withLosses(decide: () => Promise<Answer[]>): Promise<Answer[]> {
    this.#openBatches++
    try {
      return (await decide()).map((answer) => this.#unlessLost(answer))
    } finally {
      this.#openBatches--
      this.#forgetLost()
    }
  }

  /** What a lost session was granted ended with it: a lone claim that does not wait is tried once more, on another session. */
  #againIfLost(claims: readonly Claim[], answers: Answer[]): Answer[] | Promise<Answer[]> {
    const [answer] = answers
    if (this.#lostMeanwhile.size === 0 || !answer) return answers
    const sure = this.#unlessLost(answer)
    if (sure === answer || claims[0]?.blockMs) return [sure]
    return this.#acquireEach(claims).then((again) => again.map((each) => this.#unlessLost(each)))
  }

  #unlessLost(answer: Answer): Answer {
    const error = answer.granted === true ? this.#lostMeanwhile.get(answer.token) : undefined
    return error ? unknown(error) : answer
  }

  #forgetLost(): void {
    if (this.#openBatches === 0) this.#lostMeanwhile.clear()
  }

  /** All at once, except for a key that is stolen in the same batch: its claims are decided one after the other. */
  #acquireEach(claims: readonly Claim[]): Promise<Answer[]> {
    const stolen = new Map<string, Promise<unknown>>()
    for (const { key, steal } of claims) if (steal && claims.length > 1) stolen.set(key, Promise.resolve())
    return answerEach(claims, (claim, answer) => {
      const before = stolen.get(claim.key)
      if (!before) return this.#acquireOne(claim, answer)
      const decided = before.then(() => new Promise<Answer>((resolve) => this.#acquireOne(claim, resolve)))
      stolen.set(claim.key, decided)
      void decided.then(answer)
    })
  }

  #acquireOne(claim: Claim, answer: (answer: Answer) => void): void {
    const impossible = this.#impossible(claim)
    if (impossible) return answer(unknown(impossible))
    if (claim.steal) return void this.#steal(claim).catch(unknown).then(answer)
    this.#acquiring.acquire(claim, answer)
  }

  /** A waiter in the server's queue gets the revoked lock before the stealing claim does, and is revoked too. */
  async #steal(claim: Claim): Promise<Answer> {
    let answer: Answer = { granted: false }
    for (let tries = 0; tries < MAX_STEALS && !answer.granted; tries++) {
      await this.#inspector.revoke(claim.key)
      answer = await this.#acquiring.tryOnce(claim)
    }
    return answer
  }

  /** Called before the unlock: the holder stops believing before anybody else can hold the lock. */
  #announceEnded(removed: readonly Holding[], broken?: SessionLost): void {
    for (const { key, owner, token } of removed) {
      for (const listener of [...this.#revokedListeners]) {
        try {
          listener({ key, owner, token }, broken)
        } catch {
          // A listener that throws must not keep the lock from being unlocked.
        }
      }
    }
  }

  /** The connection is gone, and so is everything on it. */
  #lost(session: AdvisorySession, error: SessionLost): void {
    const lost = this.#heldLocks.removeAllOn(session)
    for (const { token } of lost) this.#lostMeanwhile.set(token, error)
    // A lone call that is granted in this turn is answered in it.
    if (lost.length > 0) setImmediate(() => this.#forgetLost())
    // What had run out before is not lost by this: the server ends a session because nothing was renewed on it.
    const now = this.#world.now()
    this.#announceEnded(
      lost.filter(({ deadline }) => deadline > now),
      error,
    )
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
