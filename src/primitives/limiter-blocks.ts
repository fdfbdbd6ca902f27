import type { LimitState } from '../store.js'

/** So many refused keys are remembered. One more is not wrong, it only costs a question. */
const MOST_BLOCKS = 50_000

/** What the store refused, and until when it will: takes only make it later, and nothing gives anything back. */
export interface Block {
  /** Whatever costs as much or more is refused too; what costs less may pass. */
  cost: number
  /** By the local clock, counted from before the question: it may end early, never late. */
  until: number
  remaining: number
  /** When everything is available again, by the local clock. */
  whole: number
  /** When the store was asked, by the local clock, and what it told of each limit. */
  sentAt: number
  limits?: readonly LimitState[] | undefined
}

/** Keys that cannot pass for now, so that a caller who does not give up costs the store nothing. */
export class Blocks {
  readonly #blocks = new Map<string, Block>()

  /** The block in the way of this cost, if any. */
  find(key: string, cost: number, now: number): Block | undefined {
    const block = this.#blocks.get(key)
    if (block === undefined) return undefined
    if (block.until > now) return cost >= block.cost ? block : undefined
    this.#blocks.delete(key)
    return undefined
  }

  add(key: string, block: Block, now: number): void {
    const before = this.#blocks.get(key)
    // One that also stops smaller costs says more.
    if (before && before.until > now && before.cost < block.cost) return
    if (!before && this.#blocks.size >= MOST_BLOCKS) {
      // The oldest: a Map keeps the order in which they came.
      const oldest = this.#blocks.keys().next().value
      if (oldest !== undefined) this.#blocks.delete(oldest)
    }
    this.#blocks.set(key, block)
  }
}
