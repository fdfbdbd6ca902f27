import type { LeaseId, Released } from '../../store.js'
import type { World } from '../../util/world.js'
import type { HeldLock, HeldLocks, Holding } from './held-locks.js'
import type { AdvisoryKeys, LockId } from './keys.js'
import type { ServerQueue } from './server-queue.js'

export const GONE: { outcome: 'gone' } = { outcome: 'gone' }
const RELEASED: { outcome: 'released' } = { outcome: 'released' }

/** How locks end while their session lives: released, run out, or taken away by force. */
export class Releasing {
  readonly #world: World
  readonly #keys: AdvisoryKeys
  readonly #heldLocks: HeldLocks
  readonly #queue: ServerQueue

  constructor(world: World, keys: AdvisoryKeys, heldLocks: HeldLocks, queue: ServerQueue) {
    this.#world = world
    this.#keys = keys
    this.#heldLocks = heldLocks
    this.#queue = queue
  }

  /** Ends a lock, a queue entry or an open claim; with a token a lock only. */
  release(lease: LeaseId, answer: (answer: Released) => void): void {
    if (this.#leavesQueue(lease)) return answer(RELEASED)
    const lock = this.#heldLocks.lock(this.#keys.idOf(lease.key))
    const turn = lock.enter()
    if (!turn) return this.#releaseEntered(lock, lease, answer)
    void turn.then(() => {
      // The claim may have joined the queue while the release waited for its turn.
      if (this.#leavesQueue(lease)) {
        lock.leave()
        answer(RELEASED)
      } else this.#releaseEntered(lock, lease, answer)
    })
  }

  /** Unlocks what was just granted. The caller has entered the lock. */
  async undoGrant(lock: HeldLock, lease: LeaseId): Promise<void> {
    const holding = this.#heldLocks.find(lease)
    if (!holding || !this.#heldLocks.remove(holding)) return
    await new Promise<unknown>((resolve) => this.#unlock(lock, holding, resolve))
  }

  /** Unlocks a holding whose time has passed without a renewal. `entered`: the caller has entered the lock. */
  async expire(holding: Holding, entered = false): Promise<void> {
    const lock = this.#heldLocks.lock(holding.id)
    if (!entered) await lock.enter()
    // It may have been renewed while we waited for our turn. If its session has ended, the lock has too.
    if (holding.deadline <= this.#world.now() && this.#heldLocks.remove(holding)) {
      await new Promise<unknown>((resolve) => this.#unlock(lock, holding, resolve))
    }
    if (!entered) lock.leave()
  }

  /** `onRemoved` is called before the unlock, so that holders stop believing before anybody else can hold the lock. */
  async revoke(id: LockId, onRemoved: (removed: readonly Holding[]) => void): Promise<Holding[]> {
    const lock = this.#heldLocks.lock(id)
    await lock.enter()
    try {
      const removed = [...lock.holders.values()].filter((holding) => this.#heldLocks.remove(holding))
      if (removed.length > 0) onRemoved(removed)
      const perSession = [...new Map(removed.map((holding) => [holding.session, holding])).values()]
      await answerEach(perSession, ({ session, shared }, settle) => session.unlock(id, shared, settle))
      return removed
    } finally {
      lock.leave()
    }
  }

  /** Waits for an unlock that may be under way: a caller that is told "gone" may rely on the lock being free. */
  async confirmGone(lease: LeaseId): Promise<{ outcome: 'gone' }> {
    const lock = this.#heldLocks.peek(this.#keys.idOf(lease.key))
    await lock?.enter()
    lock?.leave()
    return GONE
  }

  /** A token names a grant: a queue entry or an open claim belongs to another request of that owner, and stays. */
  #leavesQueue(lease: LeaseId): boolean {
    return lease.token === undefined && this.#queue.leave(lease)
  }

  #releaseEntered(lock: HeldLock, lease: LeaseId, answer: (answer: Released) => void): void {
    const holding = this.#heldLocks.find(lease)
    if (!holding) {
      lock.leave()
      return answer(GONE)
    }
    const late = holding.deadline <= this.#world.now()
    this.#heldLocks.remove(holding)
    this.#unlock(lock, holding, (outcome) => {
      lock.leave()
      if (typeof outcome === 'object') answer({ outcome: 'unknown', error: outcome.error })
      else answer(outcome && !late ? RELEASED : GONE)
    })
  }

  /** The server holds a lock once for all readers of a session, so only the last one unlocks. */
  #unlock(
    lock: HeldLock,
    { session, shared, id }: Holding,
    settle: (outcome: boolean | { error: unknown }) => void,
  ): void {
    if (lock.isHeldOn(session)) settle(true)
    else session.unlock(id, shared, settle)
  }
}

/** All answers in one promise, in the order of the items. A promise per item would cost a turn for each. */
export function answerEach<I, O>(
  items: readonly I[],
  ask: (item: I, answer: (answer: O) => void) => void,
): Promise<O[]> {
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
