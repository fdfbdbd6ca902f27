import type { LimitState } from '../../store.js'

/** Bounds the refused keys that are remembered, and so the memory. A forgotten one is not wrong, it only costs a request. */
const MOST_KEYS = 50_000

/** What the store refused, and until when it will: takes only make that later, and a limiter never gives back. */
export interface Denial {
  /** Takes that cost as much or more are refused too; those that cost less may pass. */
  cost: number
  /** By the local clock, counted from before the request: it may end early, never late. */
  until: number
  remaining: number
  /** When everything is available again, by the local clock. */
  whole: number
  /** When the store was asked, by the local clock, and its answer about each limit. */
  sentAt: number
  limits?: readonly LimitState[] | undefined
}

/** Keys whose takes are refused for now, so that a caller that does not give up costs the store nothing. */
export class DenyCache {
  readonly #denials = new Map<string, Denial>()

  /** The refusal that holds for this cost, if any. */
  find(key: string, cost: number, now: number): Denial | undefined {
    const denial = this.#denials.get(key)
    if (denial === undefined) return undefined
    if (denial.until > now) return cost >= denial.cost ? denial : undefined
    this.#denials.delete(key)
    return undefined
  }

  add(key: string, denial: Denial, now: number): void {
    const before = this.#denials.get(key)
    // A refusal of a smaller cost also refuses this one, and more.
    if (before && before.until > now && before.cost < denial.cost) return
    if (!before && this.#denials.size >= MOST_KEYS) {
      // The oldest comes first: a Map keeps the order of insertion.
      const oldest = this.#denials.keys().next().value
      if (oldest !== undefined) this.#denials.delete(oldest)
    }
    this.#denials.set(key, denial)
  }
}
