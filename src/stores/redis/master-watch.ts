import type { Adapter } from '../../clients/redis/adapter.js'
import type { Keys } from './keys.js'

/**
 * CHECK_MS: how often a cluster is asked whether its masters are still who they were, while something is held. A replica that
 * took over by force may have missed the last grants, and the old master stays connected: nothing else tells before the next
 * heartbeat.
 */
const CHECK_MS = 2_000

export class MasterWatch {
  readonly #adapter: Adapter
  readonly #keys: Keys
  /** Asks the server of this key for something, so that a client that went to the wrong one is redirected. */
  readonly #ask: (key: string) => Promise<unknown>
  #users = 0
  #timer: NodeJS.Timeout | undefined

  constructor(adapter: Adapter, keys: Keys, ask: (key: string) => Promise<unknown>) {
    this.#adapter = adapter
    this.#keys = keys
    this.#ask = ask
  }

  begin(): () => void {
    let begun = true
    this.#users++
    if (this.#users === 1) this.#later()
    return () => {
      if (!begun) return
      begun = false
      this.#users--
      if (this.#users === 0) this.close()
    }
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  #later(): void {
    this.#timer = setTimeout(() => void this.#check(), CHECK_MS)
    this.#timer.unref()
  }

  async #check(): Promise<void> {
    const { timer } = { timer: this.#timer }
    const asked = new Map<string, string>()
    for (const { name, slot } of this.#keys.indexes) {
      const address = this.#adapter.addressOf(slot)
      if (address !== undefined && !asked.has(address)) asked.set(address, name)
    }
    await Promise.allSettled([...asked.values()].map((key) => this.#ask(key)))
    this.#adapter.compareMasters()
    if (this.#timer === timer && timer) this.#later()
  }
}
