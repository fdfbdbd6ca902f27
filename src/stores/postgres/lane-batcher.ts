import { realWorld } from '../../util/world.js'

/**
 * After this many calls in a row with items of one caller, the next one leaves at once. Fewer would take a pause between two bursts
 * for callers that come one after the other, and split the burst.
 */
const SOLO_STREAK = 8

/** A caller whose items wait for the next call. */
interface LaneCaller<Item, Answer> {
  items: readonly Item[]
  resolve: (answers: Answer[]) => void
  reject: (error: unknown) => void
}

/**
 * Sends at most `lanes` calls at a time; items that arrive meanwhile go out together in the next, at most `most` per call.
 * Calls would otherwise queue up one by one for a connection, each with a transaction and a wait for the disk of its own. A
 * call that takes longer than `slowMs` no longer counts: it may wait for a key that another transaction is deciding about, and
 * the items behind it need not.
 */
export class LaneBatcher<Item, Answer> {
  readonly #call: (items: readonly Item[]) => Promise<Answer[]>
  readonly #most: number
  readonly #lanes: number
  readonly #slowMs: number
  #waiting: LaneCaller<Item, Answer>[] = []
  #busy = 0
  #starting = false
  /** How many calls in a row carried the items of one caller. */
  #soloStreak = 0

  constructor(
    call: (items: readonly Item[]) => Promise<Answer[]>,
    most: number,
    lanes = 1,
    slowMs: number = Number.POSITIVE_INFINITY,
  ) {
    this.#call = call
    this.#most = most
    this.#lanes = lanes
    this.#slowMs = slowMs
  }

  ask(items: readonly Item[]): Promise<Answer[]> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ items, resolve, reject })
      if (this.#busy < this.#lanes && !this.#starting) this.#start()
    })
  }

  /** Starts after this turn of the event loop: callers that one packet has woken or answered call one after the other in it. */
  #start(): void {
    if (this.#busy === 0 && this.#soloStreak >= SOLO_STREAK) return void this.#work()
    this.#starting = true
    setImmediate(() => {
      this.#starting = false
      void this.#work()
    })
  }

  async #work(): Promise<void> {
    this.#busy++
    let slow = false
    while (this.#waiting.length > 0 && !slow) {
      const batch = this.#takeBatch()
      this.#soloStreak = batch.length === 1 ? this.#soloStreak + 1 : 0
      const cancel = this.#afterSlow(() => {
        slow = true
        this.#busy--
        if (this.#waiting.length > 0) void this.#work()
      })
      try {
        const answers = await this.#call(
          batch.length === 1 ? (batch[0]?.items ?? []) : batch.flatMap(({ items }) => items),
        )
        let next = 0
        for (const { items, resolve } of batch) resolve(answers.slice(next, (next += items.length)))
      } catch (error) {
        for (const { reject } of batch) reject(error)
      } finally {
        cancel()
      }
    }
    if (!slow) this.#busy--
  }

  #afterSlow(run: () => void): () => void {
    return this.#slowMs === Number.POSITIVE_INFINITY ? () => {} : realWorld.after(this.#slowMs, run)
  }

  #takeBatch(): LaneCaller<Item, Answer>[] {
    let count = 0
    let size = 0
    for (const { items } of this.#waiting) {
      if (count > 0 && size + items.length > this.#most) break
      size += items.length
      count++
    }
    return this.#waiting.splice(0, count)
  }
}
