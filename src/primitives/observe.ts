import { onAbort } from '../core/cancel.js'
import type { Engine } from '../core/engine.js'
import type { Subscription } from '../core/subscriptions.js'
import type { LeaderInfo } from './election.js'

/** Looks again this often where a bell may have been missed. */
const LOOK_AGAIN_MS = 1_000
/** Where the store rings no bells at all. */
const POLL_MS = 250

const DONE: IteratorReturnResult<undefined> = { done: true, value: undefined }

/** Yields each new leader or value, as soon as it can be seen, until one of `ends` aborts. */
export function observe(
  engine: Engine,
  key: string,
  look: () => Promise<LeaderInfo | null>,
  ends: readonly AbortSignal[],
): AsyncIterableIterator<LeaderInfo> {
  return new Observer(engine, key, look, ends)
}

/** By hand and not as a generator: `return()` of a generator waits for the `next()` that is pending, perhaps for ever. */
class Observer implements AsyncIterableIterator<LeaderInfo> {
  readonly #engine: Engine
  readonly #key: string
  readonly #look: () => Promise<LeaderInfo | null>
  readonly #ends: readonly AbortSignal[]
  #stopListening: (() => void)[] | undefined
  #subscription: Subscription | undefined
  #last: LeaderInfo | undefined
  #rung = false
  #wake: (() => void) | undefined
  #over = false
  /** Ends what is being waited for. */
  #interrupt: (() => void) | undefined
  /** One answer after the other, in the order of the questions. */
  #turn: Promise<unknown> = Promise.resolve()

  constructor(engine: Engine, key: string, look: () => Promise<LeaderInfo | null>, ends: readonly AbortSignal[]) {
    this.#engine = engine
    this.#key = key
    this.#look = look
    this.#ends = ends
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  next(): Promise<IteratorResult<LeaderInfo>> {
    const turn = this.#turn.then(() => this.#next())
    this.#turn = turn.catch(() => {})
    return turn
  }

  async return(): Promise<IteratorResult<LeaderInfo>> {
    this.#end()
    return DONE
  }

  async #next(): Promise<IteratorResult<LeaderInfo>> {
    await this.#start()
    while (!this.#over) {
      // Before looking: what happens while we look must make us look again.
      this.#rung = false
      const now = await this.#unlessOver(this.#look().catch(() => null))
      if (this.#over) break
      if (now && isNews(now, this.#last)) {
        this.#last = now
        return { done: false, value: now }
      }
      if (!this.#rung) await this.#pause()
    }
    return DONE
  }

  /** Nothing is listened to before somebody asks, so an iterator that is never used costs nothing. */
  async #start(): Promise<void> {
    if (this.#stopListening || this.#over) return
    this.#stopListening = this.#ends.map((signal) => onAbort(signal, () => this.#end()))
    if (this.#ends.some((signal) => signal.aborted)) return this.#end()
    this.#subscription = this.#engine.subscriptions.open(this.#key, this.#ring)
    const ready = this.#subscription?.ready ?? false
    if (typeof ready === 'boolean') return
    // A server that cannot be reached notifies nobody for now: the observer polls meanwhile.
    await this.#unlessOver(
      this.#engine.courier.within(
        () => ready,
        () => false,
      ),
    )
  }

  readonly #ring = (): void => {
    this.#rung = true
    this.#wake?.()
  }

  /** Not a race against one promise for all: it would remember every look for as long as somebody observes. */
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
        this.#subscription?.live() ? LOOK_AGAIN_MS : POLL_MS,
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

/** An answer that was overtaken on its way tells of an older term: terms are seen in order. */
function isNews(now: LeaderInfo, last: LeaderInfo | undefined): boolean {
  if (!last || now.term > last.term) return true
  return now.term === last.term && JSON.stringify(now.value) !== JSON.stringify(last.value)
}
