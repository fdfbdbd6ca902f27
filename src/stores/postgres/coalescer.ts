/** Callers who came while a call was out, and whose items travel together in the next one. */
interface Caller<Item, Answer> {
  items: readonly Item[]
  resolve: (answers: Answer[]) => void
  reject: (error: unknown) => void
}

/**
 * One call at a time; what arrives meanwhile goes out together in the next, at most `most` items. On a single connection
 * calls would otherwise queue up one by one, each with a wait for the disk of its own.
 */
export class Coalescer<Item, Answer> {
  readonly #call: (items: readonly Item[]) => Promise<Answer[]>
  readonly #most: number
  #waiting: Caller<Item, Answer>[] = []
  #busy = false

  constructor(call: (items: readonly Item[]) => Promise<Answer[]>, most: number) {
    this.#call = call
    this.#most = most
  }

  ask(items: readonly Item[]): Promise<Answer[]> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ items, resolve, reject })
      if (!this.#busy) void this.#work()
    })
  }

  async #work(): Promise<void> {
    this.#busy = true
    while (this.#waiting.length > 0) {
      const aboard = this.#board()
      try {
        const answers = await this.#call(
          aboard.length === 1 ? (aboard[0]?.items ?? []) : aboard.flatMap(({ items }) => items),
        )
        let next = 0
        for (const { items, resolve } of aboard) resolve(answers.slice(next, (next += items.length)))
      } catch (error) {
        for (const { reject } of aboard) reject(error)
      }
    }
    this.#busy = false
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
