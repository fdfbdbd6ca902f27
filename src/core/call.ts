import type { Courier } from './courier.js'
import { guarded } from './guarded.js'
import { Timed, type Timers } from './timers.js'

/** A question that is out. Settled once: by its answer, or as unknown when its time is up. */
export abstract class Call<T> extends Timed {
  readonly courier: Courier
  readonly #timers: Timers
  #over = false
  #limitMs = 0

  constructor(courier: Courier, inBackground: boolean) {
    super()
    this.courier = courier
    this.#timers = courier.limits(inBackground)
  }

  follow(answer: PromiseLike<T>, limitMs: number): void {
    this.#limitMs = limitMs
    this.#timers.set(this, this.courier.now + limitMs, limitMs)
    answer.then(
      (value) => {
        this.#timers.clear(this)
        guarded(() => (this.#over ? this.late(value) : this.settle(value)))
      },
      (error: unknown) => {
        this.#timers.clear(this)
        if (!this.#over) guarded(() => this.settle(this.unknown(this.courier.explain(error))))
      },
    )
  }

  override due(): void {
    this.#over = true
    this.settle(this.unknown(this.courier.silence(this.#limitMs)))
  }

  protected abstract settle(answer: T): void
  /** The answer to what was not answered. */
  protected abstract unknown(error: unknown): T
  /** An answer that came when nobody waited for it any more. */
  protected abstract late(answer: T): void
}

/** One that somebody else thought up. */
export class Errand<T> extends Call<T> {
  readonly #resolve: (answer: T) => void
  readonly #unknown: (error: unknown) => T
  readonly #late: ((answer: T) => void) | undefined

  constructor(
    courier: Courier,
    resolve: (answer: T) => void,
    unknown: (error: unknown) => T,
    late: ((answer: T) => void) | undefined,
  ) {
    super(courier, false)
    this.#resolve = resolve
    this.#unknown = unknown
    this.#late = late
  }

  protected override settle(answer: T): void {
    this.#resolve(answer)
  }

  protected override unknown(error: unknown): T {
    return this.#unknown(error)
  }

  protected override late(answer: T): void {
    this.#late?.(answer)
  }
}
