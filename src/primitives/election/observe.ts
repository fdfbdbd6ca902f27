import { onAbort } from '../../core/abort-fanout.js'
import type { Engine } from '../../core/engine.js'
import type { Subscription } from '../../core/subscriptions.js'
import type { LeaderInfo } from './leader.js'

/** How often the leader is read although notifications arrive: one may have been missed. */
const RECHECK_MS = 1_000
/** How often the leader is read on a store without notifications. */
const POLL_MS = 250

const DONE: IteratorReturnResult<undefined> = { done: true, value: undefined }

/** Yields each new leader or value, as soon as it can be seen, until one of `ends` aborts. */
export function observe(
  engine: Engine,
  key: string,
  readLeader: () => Promise<LeaderInfo | null>,
  ends: readonly AbortSignal[],
): AsyncIterableIterator<LeaderInfo> {
  return new Observer(engine, key, readLeader, ends)
}

/** By hand and not as a generator: `return()` of a generator waits for the `next()` that is pending, perhaps for ever. */
class Observer implements AsyncIterableIterator<LeaderInfo> {
  readonly #engine: Engine
  readonly #key: string
  readonly #readLeader: () => Promise<LeaderInfo | null>
  readonly #ends: readonly AbortSignal[]
  #stopListening: (() => void)[] | undefined
  #subscription: Subscription | undefined
  #last: LeaderInfo | undefined
  #notified = false
  #wake: (() => void) | undefined
  #over = false
  /** Ends what is being waited for. */
  #interrupt: (() => void) | undefined
  /** One answer after the other, in the order of the requests. */
  #lastAnswer: Promise<unknown> = Promise.resolve()

  constructor(engine: Engine, key: string, readLeader: () => Promise<LeaderInfo | null>, ends: readonly AbortSignal[]) {
    this.#engine = engine
    this.#key = key
    this.#readLeader = readLeader
    this.#ends = ends
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  next(): Promise<IteratorResult<LeaderInfo>> {
    const answer = this.#lastAnswer.then(() => this.#next())
    this.#lastAnswer = answer.catch(() => {})
    return answer
  }

  async return(): Promise<IteratorResult<LeaderInfo>> {
    this.#end()
    return DONE
  }

  async #next(): Promise<IteratorResult<LeaderInfo>> {
    await this.#start()
    while (!this.#over) {
      // Reset before reading: a notification that arrives during the read must cause another one.
      this.#notified = false
      const now = await this.#unlessOver(this.#readLeader().catch(() => null))
      if (this.#over) break
      if (now && isNews(now, this.#last)) {
        this.#last = now
        return { done: false, value: now }
      }
      if (!this.#notified) await this.#pause()
    }
    return DONE
  }

  /** The subscription opens with the first `next()`, so an iterator that is never used costs nothing. */
  async #start(): Promise<void> {
    if (this.#stopListening || this.#over) return
    this.#stopListening = this.#ends.map((signal) => onAbort(signal, () => this.#end()))
    if (this.#ends.some((signal) => signal.aborted)) return this.#end()
    this.#subscription = this.#engine.subscriptions.open(this.#key, this.#notify)
    const ready = this.#subscription?.ready ?? false
    if (typeof ready === 'boolean') return
    // A server that cannot be reached sends no notifications for now: the observer polls meanwhile.
    await this.#unlessOver(
      this.#engine.batcher.within(
        { call: 'watch', items: 1 },
        () => ready,
        () => false,
      ),
    )
  }

  readonly #notify = (): void => {
    this.#notified = true
    this.#wake?.()
  }

  /** Not a race against one long-lived promise: it would keep every round's promise for as long as the iterator lives. */
  #unlessOver<T>(answer: T | Promise<T>): Promise<T | null> {
    return new Promise((resolve) => {
      this.#interrupt = () => resolve(null)
      void Promise.resolve(answer).then((value) => {
        this.#interrupt = undefined
        resolve(value)
      })
    })
  }

  #pause(): Promise<void> {
    return new Promise((resolve) => {
      const cancel = this.#engine.world.after(
        this.#subscription?.live() ? RECHECK_MS : POLL_MS,
        () => this.#wake?.(),
        true,
      )
      this.#wake = () => {
        this.#wake = undefined
        cancel()
        resolve()
      }
    })
  }

  #end(): void {
    if (this.#over) return
    this.#over = true
    for (const stop of this.#stopListening ?? []) stop()
    this.#subscription?.close(this.#engine.world.now())
    this.#interrupt?.()
    this.#wake?.()
  }
}

/** An answer that was overtaken by a later one shows an older term, which must not be yielded: terms are seen in order. */
function isNews(now: LeaderInfo, last: LeaderInfo | undefined): boolean {
  if (!last || now.term > last.term) return true
  return now.term === last.term && JSON.stringify(now.value) !== JSON.stringify(last.value)
}
