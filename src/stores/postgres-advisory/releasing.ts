import type { World } from '../../kit/world.js'
import type { Lease, Released } from '../../store.js'
import { each, GONE, RELEASED } from './answers.js'
import type { Book, Entry, Holding } from './book.js'
import type { Ids, LockId } from './ids.js'
import type { Queue } from './queue.js'

/** How locks end while their session lives: released, run out, or taken away by force. */
export class Releasing {
  readonly #world: World
  readonly #ids: Ids
  readonly #book: Book
  readonly #queue: Queue

  constructor(world: World, ids: Ids, book: Book, queue: Queue) {
    this.#world = world
    this.#ids = ids
    this.#book = book
    this.#queue = queue
  }

  /** Ends a lock, a place in line or a question; with a token a lock only. */
  release(lease: Lease, answer: (answer: Released) => void): void {
    if (this.#leavesQueue(lease)) return answer(RELEASED)
    const entry = this.#book.entry(this.#ids.of(lease.key))
    const turn = entry.enter()
    if (!turn) return this.#releaseNow(entry, lease, answer)
    void turn.then(() => {
      // It may have come to stand in line while we waited for our turn.
      if (this.#leavesQueue(lease)) {
        entry.leave()
        answer(RELEASED)
      } else this.#releaseNow(entry, lease, answer)
    })
  }

  /** Lets go of what was just granted. Whoever asks is the one who may change the entry. */
  async giveBack(entry: Entry, lease: Lease): Promise<void> {
    const holding = this.#book.find(lease)
    if (!holding || !this.#book.remove(holding)) return
    await new Promise<unknown>((resolve) => this.#unlock(entry, holding, resolve))
  }

  /** Its time has passed and nobody renewed it. `entered`: whoever asks is the one who may change the entry. */
  async expire(holding: Holding, entered = false): Promise<void> {
    const entry = this.#book.entry(holding.id)
    if (!entered) await entry.enter()
    // Unless it was renewed while we waited for our turn. If its session has ended, the lock has too.
    if (holding.deadline <= this.#world.now() && this.#book.remove(holding)) {
      await new Promise<unknown>((resolve) => this.#unlock(entry, holding, resolve))
    }
    if (!entered) entry.leave()
  }

  /** `onCut`: before anybody else can hold it. */
  async revoke(id: LockId, onCut: (cut: readonly Holding[]) => void): Promise<Holding[]> {
    const entry = this.#book.entry(id)
    await entry.enter()
    try {
      const cut = [...entry.holders.values()].filter((holding) => this.#book.remove(holding))
      if (cut.length > 0) onCut(cut)
      const lasts = [...new Map(cut.map((holding) => [holding.session, holding])).values()]
      await each(lasts, ({ session, shared }, settle) => session.unlock(id, shared, settle))
      return cut
    } finally {
      entry.leave()
    }
  }

  /** Somebody may just be about to unlock it: whoever is told that it is gone may rely on that. */
  async gone(lease: Lease): Promise<{ outcome: 'gone' }> {
    const entry = this.#book.peek(this.#ids.of(lease.key))
    await entry?.enter()
    entry?.leave()
    return GONE
  }

  /** A token names a grant: a place in line or an open question is of another request of that owner, and stays. */
  #leavesQueue(lease: Lease): boolean {
    return lease.token === undefined && this.#queue.leave(lease)
  }

  #releaseNow(entry: Entry, lease: Lease, answer: (answer: Released) => void): void {
    const holding = this.#book.find(lease)
    if (!holding) {
      entry.leave()
      return answer(GONE)
    }
    const late = holding.deadline <= this.#world.now()
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
}
