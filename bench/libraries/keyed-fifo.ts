/** The least that could be called a keyed lock: a queue of waiters per name. No ttl, no token, no owner, no loss. */
export class KeyedFifo {
  readonly #queues = new Map<string, (() => void)[]>()

  acquire(key: string): Promise<() => void> {
    const queue = this.#queues.get(key)
    const release = (): void => this.#release(key)
    if (queue) return new Promise((resolve) => queue.push(() => resolve(release)))
    this.#queues.set(key, [])
    return Promise.resolve(release)
  }

  #release(key: string): void {
    const next = this.#queues.get(key)?.shift()
    if (next) next()
    else this.#queues.delete(key)
  }
}
