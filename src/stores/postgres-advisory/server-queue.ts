import type { Answer, Blocker, Claim, LeaseId } from '../../store.js'
import type { World } from '../../util/world.js'
import { toLeaseholdError } from './errors.js'
import { blockerOf, grantOf, type HeldLocks, identOf, isShared } from './held-locks.js'
import type { LockId } from './keys.js'
import { ttlClassOf, type WaitHooks } from './locking.js'
import type { AdvisorySession } from './session.js'
import type { AdvisorySessions } from './sessions.js'

/** CANCEL_AGAIN_MS: pause before a wait is cancelled again: a cancellation may overtake the statement it means. */
const CANCEL_AGAIN_MS = 50

/**
 * ANSWER_MS: a claim is refused at most this long before its caller gives up. Longer than an answer takes on a busy machine:
 * with less, the caller would time out instead of learning that the lock is busy.
 */
const ANSWER_MS = 100

interface QueuedClaim {
  readonly claim: Claim
  askedAt: number
  /** Absent after a refusal, until its owner asks again: the queue entry is kept for a while. */
  answer: ((answer: Answer) => void) | undefined
  cancelTimer: () => void
}

/** One entry in the server's queue, for all claims of this process for the same lock in the same mode and class of ttl. */
class ServerWait {
  readonly claims = new Map<string, QueuedClaim>()
  session: AdvisorySession | undefined = undefined
  /** The statement is in flight: only a cancellation ends it. */
  blocked = false
  statements = 0
  cancelling: Promise<unknown> | undefined = undefined
  /** The token of a lock that was granted while no claim was there to take it. */
  reserved: bigint | undefined = undefined

  constructor(
    readonly name: string,
    readonly id: LockId,
    readonly shared: boolean,
    readonly ttlClass: number,
    readonly since: number,
  ) {}

  get longestTtlMs(): number {
    let longest = 0
    for (const { claim } of this.claims.values()) longest = Math.max(longest, claim.ttlMs)
    return longest
  }
}

/** The claims of this process that wait inside the server, first come, first served. */
export class ServerQueue {
  readonly #world: World
  readonly #heldLocks: HeldLocks
  readonly #sessions: AdvisorySessions
  readonly #timeoutMs: number
  readonly #waits = new Map<string, ServerWait>()
  readonly #waitOfClaim = new Map<string, ServerWait>()

  constructor(world: World, heldLocks: HeldLocks, sessions: AdvisorySessions, timeoutMs: number) {
    this.#world = world
    this.#heldLocks = heldLocks
    this.#sessions = sessions
    this.#timeoutMs = timeoutMs
  }

  /** A claim that is queued already, or finds another one of this process queued, has nothing to try first. */
  resume(claim: Claim, id: LockId): Promise<Answer> | undefined {
    const others = claim.blockMs ? this.#waits.get(nameOf(id, claim)) : undefined
    const wait = this.#waitOfClaim.get(identOf(claim)) ?? others
    return wait && this.#attach(wait, claim)
  }

  join(claim: Claim, id: LockId): Promise<Answer> {
    const name = nameOf(id, claim)
    const others = this.#waits.get(name)
    if (others) return this.#attach(others, claim)
    const wait = new ServerWait(name, id, isShared(claim), ttlClassOf(claim.ttlMs), this.#world.now())
    this.#waits.set(name, wait)
    const answer = this.#attach(wait, claim)
    void this.#run(wait)
    return answer
  }

  /** Ends an open claim or a kept queue entry. False: there was none. */
  leave(lease: LeaseId): boolean {
    const wait = this.#waitOfClaim.get(identOf(lease))
    if (!wait) return false
    this.#drop(wait, identOf(lease)).answer?.({ granted: false })
    this.#endIfUnwanted(wait)
    return true
  }

  get waiting(): { id: LockId; claim: Claim; pid: number | undefined; since: number }[] {
    return [...this.#waitOfClaim].flatMap(([ident, wait]) => {
      const queued = wait.claims.get(ident)
      return queued ? [{ id: wait.id, claim: queued.claim, pid: wait.session?.pid, since: wait.since }] : []
    })
  }

  /** A reserved lock ended with its session. A wait that is blocked on it fails with its statement. */
  lost(session: AdvisorySession): void {
    for (const wait of this.#waits.values()) {
      if (wait.session === session && wait.reserved !== undefined) this.#fail(wait, session.lost)
    }
  }

  async close(error: unknown): Promise<void> {
    const waits = [...this.#waits.values()]
    for (const wait of waits) {
      this.#answerAll(wait, { granted: 'unknown', error })
      this.#endIfUnwanted(wait)
    }
    await Promise.all(waits.map((wait) => wait.cancelling))
  }

  #attach(wait: ServerWait, claim: Claim): Promise<Answer> {
    return new Promise((resolve) => {
      const ident = identOf(claim)
      const before = wait.claims.get(ident)
      before?.cancelTimer()
      before?.answer?.({ granted: false })
      const queued: QueuedClaim = { claim, askedAt: this.#world.now(), answer: resolve, cancelTimer: () => {} }
      wait.claims.set(ident, queued)
      this.#waitOfClaim.set(ident, wait)
      // What is granted counts from the claim, so one that stays open for longer than the ttl would be useless. And a
      // caller that waits no longer than that should learn that the lock was busy, and not that nobody answered.
      const blockMs = claim.blockMs ?? 0
      const patienceMs = Math.min(blockMs - Math.min(blockMs / 3, ANSWER_MS), claim.ttlMs / 2)
      queued.cancelTimer = this.#world.after(patienceMs, () => void this.#refuse(wait, queued))
      const { reserved, session } = wait
      if (reserved !== undefined) this.#grant(wait, session as AdvisorySession, reserved, Number.NEGATIVE_INFINITY)
    })
  }

  async #run(wait: ServerWait): Promise<void> {
    let session: AdvisorySession | undefined
    try {
      session = await this.#sessions.reserveForWait(wait.ttlClass)
      if (!session) {
        // Without a session to wait on, the core polls, which serves the claim just as well.
        this.#end(wait)
        return this.#answerAll(wait, { granted: false })
      }
      wait.session = session
      this.#sessions.keepOneListening()
      const hooks = this.#hooksOf(wait, session)
      while (wait.claims.size > 0) {
        if (await session.wait(wait.id, wait.shared, wait.longestTtlMs, hooks)) return
        await wait.cancelling
      }
      this.#end(wait)
      session.endWait()
    } catch (error) {
      this.#fail(wait, toLeaseholdError(error))
      if (session && !session.lost) this.#endWait(wait, session)
    }
  }

  #hooksOf(wait: ServerWait, session: AdvisorySession): WaitHooks {
    return {
      begins: () => {
        wait.statements++
        return (wait.blocked = wait.claims.size > 0)
      },
      ended: () => void (wait.blocked = false),
      granted: ({ token, sentAt }) => {
        // The lock has ended with its session, and nobody would tell a holder that comes after the loss was told.
        if (session.lost) throw session.lost
        this.#grant(wait, session, token, sentAt)
      },
    }
  }

  /** The lock is on this session from now on. The claim that was open first gets it; readers all get it. */
  #grant(wait: ServerWait, session: AdvisorySession, token: bigint, sentAt: number): void {
    wait.reserved = token
    const open = [...wait.claims].filter(([, queued]) => queued.answer)
    if (open.length === 0) return this.#endIfUnwanted(wait)
    // From here on the lock is a holder's, and `#endIfUnwanted` must not unlock it.
    wait.session = undefined
    this.#end(wait)
    for (const [ident, queued] of wait.shared ? open : open.slice(0, 1)) {
      this.#drop(wait, ident)
      this.#handOff(wait, session, token, sentAt, queued)
    }
    this.#endWait(wait, session)
    if (wait.claims.size > 0) this.#waitAgain(wait)
  }

  #handOff(wait: ServerWait, session: AdvisorySession, token: bigint, sentAt: number, queued: QueuedClaim): void {
    const { claim, answer, askedAt } = queued
    const holding = this.#heldLocks.add(claim, wait.id, session, token, this.#world.now())
    const grant = grantOf(holding, claim.ttlMs)
    // A grant counts from its claim. If the statement is older, the server may have granted before that and have been
    // counting our silence since: a ping starts that anew.
    if (askedAt <= sentAt) return answer?.(grant)
    session.ping().then(
      () => answer?.(grant),
      (error: unknown) => answer?.({ granted: 'unknown', error }),
    )
  }

  /** The claims that did not get the lock wait on, on another session. */
  #waitAgain(wait: ServerWait): void {
    const next = new ServerWait(wait.name, wait.id, wait.shared, wait.ttlClass, this.#world.now())
    this.#waits.set(next.name, next)
    for (const [ident, queued] of wait.claims) {
      next.claims.set(ident, queued)
      this.#waitOfClaim.set(ident, next)
    }
    wait.claims.clear()
    void this.#run(next)
  }

  async #refuse(wait: ServerWait, queued: QueuedClaim): Promise<void> {
    const blocker = await this.#findBlocker(wait)
    const { claim, answer } = queued
    const ident = identOf(claim)
    const current = this.#waitOfClaim.get(ident)
    // The claim was granted or left while the blocker was looked up.
    if (!answer || current?.claims.get(ident) !== queued) return
    if (claim.queueMs === undefined) {
      this.#drop(current, ident)
      this.#endIfUnwanted(current)
    } else {
      queued.answer = undefined
      queued.cancelTimer = this.#world.after(claim.queueMs, () => void this.leave(claim))
    }
    answer({ granted: false, blocker })
  }

  #fail(wait: ServerWait, error: unknown): void {
    this.#end(wait)
    this.#answerAll(wait, { granted: 'unknown', error })
  }

  #answerAll(wait: ServerWait, answer: Answer): void {
    for (const [ident] of wait.claims) this.#drop(wait, ident).answer?.(answer)
  }

  #drop(wait: ServerWait, ident: string): QueuedClaim {
    const queued = wait.claims.get(ident) as QueuedClaim
    queued.cancelTimer()
    wait.claims.delete(ident)
    if (this.#waitOfClaim.get(ident) === wait) this.#waitOfClaim.delete(ident)
    return queued
  }

  #end(wait: ServerWait): void {
    if (this.#waits.get(wait.name) === wait) this.#waits.delete(wait.name)
  }

  /** Without claims, unlocks what is reserved and cancels what is blocked: otherwise the lock would go to nobody. */
  #endIfUnwanted(wait: ServerWait): void {
    const { session } = wait
    if (wait.claims.size > 0 || !session) return
    if (wait.reserved !== undefined) {
      wait.session = undefined
      this.#end(wait)
      session.unlock(wait.id, wait.shared, (outcome) => {
        if (typeof outcome === 'boolean') this.#endWait(wait, session)
        else session.fail(outcome.error)
      })
    } else if (wait.blocked && !wait.cancelling) {
      wait.cancelling = this.#cancel(wait, session).finally(() => {
        wait.cancelling = undefined
      })
    }
  }

  /** Not before a cancellation that is still under way was answered: it would hit what the session is asked next, such as another wait. */
  #endWait({ cancelling }: ServerWait, session: AdvisorySession): void {
    if (cancelling) void cancelling.then(() => session.endWait())
    else session.endWait()
  }

  /** Repeats until the wait has ended or has claims again. Without a session to cancel from, its own session is ended. */
  async #cancel(wait: ServerWait, session: AdvisorySession): Promise<void> {
    try {
      await this.#sessions.cancelWait(session)
      this.#world.after(CANCEL_AGAIN_MS, () => this.#endIfUnwanted(wait))
    } catch (error) {
      // A wait that was answered meanwhile needs no cancellation, and others may hold locks on its session.
      if (wait.blocked) session.fail(error)
    }
  }

  async #findBlocker(wait: ServerWait): Promise<Blocker | undefined> {
    const local = this.#heldLocks.peek(wait.id)?.obstacle(wait.shared)
    if (local) return blockerOf(local)
    const { session } = wait
    if (!session || !wait.blocked) return undefined
    const seen = await this.#sessions.blockerOf(session)
    if (seen && !seen.waits && wait.blocked) this.#failUnlessAnswered(wait, session)
    return seen?.blocker
  }

  /** The server says that the session does not wait: either its answer is on its way, or it was lost. */
  #failUnlessAnswered(wait: ServerWait, session: AdvisorySession): void {
    const { statements } = wait
    this.#world.after(this.#timeoutMs, () => {
      if (wait.blocked && wait.statements === statements) session.fail(new Error('the server does not answer'))
    })
  }
}

/** Claims with the same name share one entry in the server's queue. */
function nameOf(id: LockId, claim: Claim): string {
  return `${id.text} ${isShared(claim) ? 'shared' : 'alone'} ${ttlClassOf(claim.ttlMs)}`
}
