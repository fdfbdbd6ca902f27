import type { Answer, Claim } from '../../store.js'
import { SessionLost } from './errors.js'
import { grantOf, type HeldLock, type HeldLocks, isShared, refusalOf, unknown } from './held-locks.js'
import type { AdvisoryKeys, LockId } from './keys.js'
import { type LockAttempt, ttlClassOf, type TryResult } from './locking.js'
import type { Releasing } from './releasing.js'
import type { ServerQueue } from './server-queue.js'
import type { AdvisorySession } from './session.js'
import type { AdvisorySessions } from './sessions.js'
import { lockMode, type TryMode } from './statements.js'

/** One of several claims that are granted all or none. */
interface ClaimPart {
  claim: Claim
  lock: HeldLock
}

/** Tries for locks, and queues the claims that may wait. */
export class Acquiring {
  readonly #keys: AdvisoryKeys
  readonly #heldLocks: HeldLocks
  readonly #sessions: AdvisorySessions
  readonly #queue: ServerQueue
  readonly #releasing: Releasing
  closed = false

  constructor(
    keys: AdvisoryKeys,
    heldLocks: HeldLocks,
    sessions: AdvisorySessions,
    queue: ServerQueue,
    releasing: Releasing,
  ) {
    this.#keys = keys
    this.#heldLocks = heldLocks
    this.#sessions = sessions
    this.#queue = queue
    this.#releasing = releasing
  }

  acquire(claim: Claim, answer: (answer: Answer) => void): void {
    const id = this.#keys.idOf(claim.key)
    const resumed = this.#queue.resume(claim, id)
    if (resumed) return void resumed.then(answer)
    const decided = (decision: Answer): void => {
      if (decision.granted || !claim.blockMs) answer(decision)
      else void this.#queue.join(claim, id).then(answer)
    }
    const lock = this.#heldLocks.lock(id)
    const turn = lock.enter()
    const session = turn || lock.holders.size > 0 ? undefined : this.#sessions.ready(ttlClassOf(claim.ttlMs))
    if (!session) return void this.#tryInTurn(lock, turn, claim, decided)
    // The usual case: no other holder or caller in this process, so the one statement is all there is to wait for.
    session.try(
      attemptOf(id, claim, false, (outcome) => {
        const failure = 'error' in outcome && outcome
        if (failure && failure.error instanceof SessionLost) {
          return void this.#tryInTurn(lock, undefined, claim, decided)
        }
        const decision = failure ? unknown(failure.error) : this.#record(session, lock, claim, outcome as TryResult)
        lock.leave()
        decided(decision)
      }),
    )
  }

  /** One attempt, without waiting in the queue. */
  tryOnce(claim: Claim): Promise<Answer> {
    const lock = this.#heldLocks.lock(this.#keys.idOf(claim.key))
    return new Promise((resolve) => void this.#tryInTurn(lock, lock.enter(), claim, resolve))
  }

  /** All or none. */
  async acquireAll(claims: readonly Claim[]): Promise<Answer[]> {
    const entered: HeldLock[] = []
    try {
      const ids = claims.map((claim) => this.#keys.idOf(claim.key))
      if (clash(claims, ids)) return claims.map(() => ({ granted: false }))
      // Locks are entered in one order by all callers: in different orders, two of them could wait for each other.
      for (const id of distinct(ids)) {
        const lock = this.#heldLocks.lock(id)
        await lock.enter()
        entered.push(lock)
      }
      const parts = claims.map((claim, i) => ({ claim, lock: this.#heldLocks.lock(ids[i] as LockId) }))
      return await this.#retryIfSessionLost(() => this.#tryAll(parts))
    } catch (error) {
      return claims.map(() => unknown(error))
    } finally {
      for (const lock of entered) lock.leave()
    }
  }

  async #tryInTurn(
    lock: HeldLock,
    turn: Promise<void> | undefined,
    claim: Claim,
    decided: (answer: Answer) => void,
  ): Promise<void> {
    await turn
    let decision: Answer
    try {
      decision = (await this.#regrant(claim)) ?? (await this.#retryIfSessionLost(() => this.#tryOnSession(lock, claim)))
    } catch (error) {
      decision = unknown(error)
    }
    lock.leave()
    // In the same step: a release that waited for its turn has to find the claim in the queue, which would else stay there.
    decided(decision)
  }

  /** An owner that already holds the lock gets its own grant again, with the ttl counted from now. */
  async #regrant(claim: Claim): Promise<Answer | undefined> {
    const holding = this.#heldLocks.find(claim)
    if (!holding) return undefined
    if (!this.#heldLocks.extend(holding, claim.ttlMs)) return void (await this.#releasing.expire(holding, true))
    await holding.session.ping()
    return this.#heldLocks.find(claim) === holding ? grantOf(holding, claim.ttlMs) : undefined
  }

  /** What a lost session was granted ended with it, so the claim may be tried once more on another session. */
  async #retryIfSessionLost<T>(ask: () => Promise<T>): Promise<T> {
    try {
      return await ask()
    } catch (error) {
      if (!(error instanceof SessionLost) || this.closed) throw error
      return ask()
    }
  }

  #tryOnSession(lock: HeldLock, claim: Claim): Promise<Answer> {
    const tryOn = (session: AdvisorySession): Answer | Promise<Answer> => {
      // Checked after the session is there: meanwhile the lock may have come to it, and a session can take its own lock again.
      if (lock.obstacle(isShared(claim))) return refusalOf(lock, claim)
      return new Promise((resolve, reject) => {
        const target = sessionFor(lock, claim, session)
        const joins = lock.isHeldOn(target)
        target.try(
          attemptOf(lock.id, claim, joins, (outcome) => {
            if ('error' in outcome) reject(outcome.error)
            else resolve(this.#record(target, lock, claim, outcome))
          }),
        )
      })
    }
    return this.#sessions.use(tryOn, ttlClassOf(claim.ttlMs))
  }

  #record(session: AdvisorySession, lock: HeldLock, claim: Claim, outcome: TryResult): Answer {
    if (outcome.token === undefined) return { granted: false }
    return grantOf(this.#heldLocks.add(claim, lock.id, session, outcome.token, outcome.sentAt), claim.ttlMs)
  }

  async #tryAll(parts: readonly ClaimPart[]): Promise<Answer[]> {
    const answers = new Map<Claim, Answer>()
    for (const { claim } of parts) {
      const answer = await this.#regrant(claim)
      if (answer) answers.set(claim, answer)
    }
    const taken: ClaimPart[] = []
    for (const group of byClass(parts.filter(({ claim }) => !answers.has(claim)))) {
      const ttlClass = ttlClassOf((group[0] as ClaimPart).claim.ttlMs)
      const said = await this.#sessions.use((session) => this.#tryClass(session, group), ttlClass)
      if (said.some((answer) => !answer.granted)) {
        // Each class of ttl is tried by a statement of its own: what the earlier ones were granted is unlocked again.
        for (const { claim, lock } of taken) await this.#releasing.undoGrant(lock, claim)
        return parts.map(({ lock, claim }) => refusalOf(lock, claim))
      }
      for (const [i, part] of group.entries()) answers.set(part.claim, said[i] as Answer)
      taken.push(...group)
    }
    return parts.map(({ claim }) => answers.get(claim) as Answer)
  }

  #tryClass(session: AdvisorySession, parts: readonly ClaimPart[]): Answer[] | Promise<Answer[]> {
    const refused = parts.some(({ claim, lock }) => lock.obstacle(isShared(claim)))
    if (refused) return parts.map(() => ({ granted: false }))
    return new Promise((resolve, reject) => {
      const answers: Answer[] = []
      let settled = 0
      const attempts = parts.map(({ claim, lock }, i) => {
        // A reader that joins others locks nothing, so any session can try it.
        const target = sessionFor(lock, claim, session)
        const joins = lock.isHeldOn(target) || parts.findIndex((part) => part.lock === lock) < i
        return attemptOf(lock.id, claim, joins, (outcome) => {
          if ('error' in outcome) return reject(outcome.error)
          // The reader that this one joins may have lost its session while this statement was under way, and the lock with it.
          if (target.lost) return reject(target.lost)
          answers[i] = this.#record(target, lock, claim, outcome)
          if (++settled === parts.length) resolve(answers)
        })
      })
      session.tryAtomically(attempts)
    })
  }
}

/** One more reader goes to the session where others of its class of ttl are. */
function sessionFor(lock: HeldLock, claim: Claim, session: AdvisorySession): AdvisorySession {
  const ttlClass = ttlClassOf(claim.ttlMs)
  for (const holder of lock.holders.values()) if (holder.session.ttlClass === ttlClass) return holder.session
  return session
}

/** The server holds a lock once for all readers of a session: later ones only join. */
function attemptOf(id: LockId, claim: Claim, joins: boolean, settle: LockAttempt['settle']): LockAttempt {
  const mode: TryMode = joins ? (id.pair ? 6 : 5) : lockMode(id, isShared(claim))
  return { id, mode, ttlMs: claim.ttlMs, settle }
}

function byClass(parts: readonly ClaimPart[]): ClaimPart[][] {
  const groups = new Map<number, ClaimPart[]>()
  for (const part of parts) {
    const ttlClass = ttlClassOf(part.claim.ttlMs)
    groups.set(ttlClass, [...(groups.get(ttlClass) ?? []), part])
  }
  return [...groups.values()]
}

/** Whether some of the claims exclude each other. */
function clash(claims: readonly Claim[], ids: readonly LockId[]): boolean {
  return claims.some((claim, i) =>
    claims.some((other, j) => j < i && ids[i]?.text === ids[j]?.text && !(isShared(claim) && isShared(other))),
  )
}

function distinct(ids: readonly LockId[]): LockId[] {
  return [...new Map(ids.map((id) => [id.text, id])).values()].sort((a, b) => (a.text < b.text ? -1 : 1))
}
