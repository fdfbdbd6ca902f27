import { realWorld } from '../../kit/world.js'

/** Callers who came while a call was out, and whose items travel together in the next one. */
interface Caller<Item, Answer> {
  items: readonly Item[]
  resolve: (answers: Answer[]) => void
  reject: (error: unknown) => void
}

/**
 * At most `lanes` calls at a time; what arrives meanwhile goes out together in the next, at most `most` items. Calls would
 * otherwise queue up one by one for a connection, each with a transaction and a wait for the disk of its own. A call that
 * takes longer than `slowMs` no longer counts: it may wait for a key that somebody is deciding about, and others need not.
 */
export class Coalescer<Item, Answer> {
  readonly #call: (items: readonly Item[]) => Promise<Answer[]>
  readonly #most: number
  readonly #lanes: number
  readonly #slowMs: number
  #waiting: Caller<Item, Answer>[] = []
  #busy = 0

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
      if (this.#busy < this.#lanes) void this.#work()
    })
  }

  async #work(): Promise<void> {
    this.#busy++
    let slow = false
    while (this.#waiting.length > 0 && !slow) {
      const aboard = this.#board()
      const cancel = this.#afterSlow(() => {
        slow = true
        this.#busy--
        if (this.#waiting.length > 0) void this.#work()
      })
      try {
        const answers = await this.#call(
          aboard.length === 1 ? (aboard[0]?.items ?? []) : aboard.flatMap(({ items }) => items),
        )
        let next = 0
        for (const { items, resolve } of aboard) resolve(answers.slice(next, (next += items.length)))
      } catch (error) {
        for (const { reject } of aboard) reject(error)
      } finally {
        cancel()
      }
    }
    if (!slow) this.#busy--
  }

  #afterSlow(run: () => void): () => void {
    return this.#slowMs === Number.POSITIVE_INFINITY ? () => {} : realWorld.after(this.#slowMs, run)
  }

  #board(): Caller<Item, Answer>[] {
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
