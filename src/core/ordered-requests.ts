import type { Answer, Claim } from '../store.js'
import type { Courier } from './courier.js'

interface Pending {
  claim: Claim
  /** False: the caller has given up meanwhile. The request is not sent, and `answered` is told so by `undefined`. */
  isWanted: () => boolean
  answered: (answer: Answer | undefined, sentAt: number) => void
}

/**
 * Requests that must reach the store in the order in which they were made, across names: Web Locks. Two calls may travel by
 * different connections and the later one arrive first, so there is one call at a time, with everything that has been
 * asked for meanwhile in the next.
 */
export class OrderedRequests {
  readonly #courier: Courier
  #pending: Pending[] = []
  #state: 'idle' | 'scheduled' | 'sending' = 'idle'
  #onDrained: (() => void)[] = []

  constructor(courier: Courier) {
    this.#courier = courier
  }

  send(claim: Claim, isWanted: Pending['isWanted'], answered: Pending['answered']): void {
    this.#pending.push({ claim, isWanted, answered })
    if (this.#state !== 'idle') return
    this.#state = 'scheduled'
    // After the microtasks of this turn: requests that were made in it travel together.
    queueMicrotask(() => process.nextTick(() => this.#flush()))
  }

  /** Settles when everything asked for so far has been answered. */
  async drained(): Promise<void> {
    if (this.#state !== 'idle') await new Promise<void>((resolve) => this.#onDrained.push(resolve))
  }

  #flush(): void {
    const batch = this.#nextBatch()
    if (batch.length === 0) {
      this.#state = 'idle'
      for (const drained of this.#onDrained.splice(0)) drained()
      return
    }
    this.#state = 'sending'
    const sentAt = this.#courier.now
    void Promise.resolve(this.#courier.acquireInOrder(batch.map(({ claim }) => claim))).then((answers) => {
      // Each in turn: a callback that was granted first is called first.
      for (const [i, { answered }] of batch.entries()) answered(answers[i] as Answer, sentAt)
      this.#flush()
    })
  }

  /** As many as one call can carry: a later one must not overtake those that another partition has to answer. */
  #nextBatch(): Pending[] {
    const { store } = this.#courier
    const waiting = this.#pending.filter((each) => each.isWanted() || void each.answered(undefined, 0))
    this.#pending = []
    const [first] = waiting
    if (!first) return []
    const partition = store.partition?.(first.claim.key)
    const most = store.maxBatch ?? Number.POSITIVE_INFINITY
    let count = 0
    while (count < most && count < waiting.length) {
      if (store.partition?.((waiting[count] as Pending).claim.key) !== partition) break
      count++
    }
    this.#pending = waiting.slice(count)
    return waiting.slice(0, count)
  }
}
