import type { Answer, Claim } from '../store.js'
import { batchSize } from './batch-size.js'
import type { Batcher } from './batcher.js'

interface Pending {
  claim: Claim
  /** Asked before it is sent. False: it is given up. The request is not sent, and `answered` gets `undefined`. */
  isWanted: () => boolean
  answered: (answer: Answer | undefined, sentAt: number) => void
  /** Receives an answer that comes after this request was answered as unknown. */
  late: (answer: Answer) => void
}

/**
 * Requests that must reach the store in the order in which they were made, across names: Web Locks. Two calls may travel by
 * different connections and the later one arrive first, so there is one call at a time, with everything that has been
 * asked for meanwhile in the next.
 */
export class OrderedRequests {
  readonly #batcher: Batcher
  #pending: Pending[] = []
  #state: 'idle' | 'scheduled' | 'sending' = 'idle'
  /** Callers of `answered`, each with the last request that was pending at its call. */
  #listeners: { last: Pending | undefined; resolve: () => void }[] = []
  /** Why the last call was not answered, if it was not and more are to follow. */
  failure: unknown = undefined

  constructor(batcher: Batcher) {
    this.#batcher = batcher
  }

  send(request: Pending): void {
    this.#pending.push(request)
    if (this.#state !== 'idle') return
    this.#state = 'scheduled'
    // After the microtasks of this turn: requests that were made in it travel together.
    queueMicrotask(() => process.nextTick(() => this.#flush()))
  }

  /** Settles when everything asked for so far has been answered, or the store has not answered a call. Later requests are not waited for. */
  async answered(): Promise<void> {
    if (this.#state === 'idle') return
    await new Promise<void>((resolve) => this.#listeners.push({ last: this.#pending.at(-1), resolve }))
  }

  #flush(): void {
    const batch = this.#nextBatch()
    if (batch.length === 0) {
      this.#state = 'idle'
      this.failure = undefined
      this.#notify()
      return
    }
    this.#state = 'sending'
    const sentAt = this.#batcher.now
    const late = (answers: Answer[]): void => {
      for (const [i, each] of batch.entries()) each.late(answers[i] as Answer)
    }
    const claims = batch.map(({ claim }) => claim)
    void Promise.resolve(this.#batcher.acquireInOrder(claims, late)).then((answers) => {
      // Each in turn: a callback that was granted first is called first.
      for (const [i, { answered }] of batch.entries()) answered(answers[i] as Answer, sentAt)
      this.failure = failureOf(answers)
      this.#notify()
      this.#flush()
    })
  }

  /** A silent store would keep them waiting for its time limit once per call, so that they wait for no further call of it. */
  #notify(): void {
    if (this.#listeners.length === 0) return
    const pending = new Set(this.#pending)
    const isDue = (last: Pending | undefined): boolean => !last || this.failure !== undefined || !pending.has(last)
    const due = this.#listeners.filter(({ last }) => isDue(last))
    this.#listeners = this.#listeners.filter(({ last }) => !isDue(last))
    for (const { resolve } of due) resolve()
  }

  /** As many as one call can carry: a later one must not overtake those that another partition has to answer. */
  #nextBatch(): Pending[] {
    const { store } = this.#batcher
    const waiting = this.#pending.filter((each) => each.isWanted() || void each.answered(undefined, 0))
    this.#pending = []
    const [first] = waiting
    if (!first) return []
    const partition = store.partition?.(first.claim.key)
    const most = batchSize(store, 'acquire')
    let count = 0
    while (count < most && count < waiting.length) {
      if (store.partition?.((waiting[count] as Pending).claim.key) !== partition) break
      count++
    }
    this.#pending = waiting.slice(count)
    return waiting.slice(0, count)
  }
}

/** Undefined if the store has answered any of them. */
function failureOf(answers: readonly Answer[]): unknown {
  const failures = answers.filter((answer) => answer.granted === 'unknown')
  return failures.length === answers.length ? failures[0]?.error : undefined
}
