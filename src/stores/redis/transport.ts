/**
 * Sending scripts: only when they leave at once, by their hash, and with their text where a server does not know them.
 *
 * @module
 */
import { StoreUnavailableError } from '../../errors.js'
import { formatDuration } from '../../kit/duration.js'
import type { Adapter, Reply } from './adapter.js'
import type { Script } from './scripts.js'
import { isNoScript, unavailable } from './trouble.js'

export class Transport {
  readonly #adapter: Adapter
  readonly #timeoutMs: number

  constructor(adapter: Adapter, timeoutMs: number) {
    this.#adapter = adapter
    this.#timeoutMs = timeoutMs
  }

  /** Rejects with what is wrong, as a `StoreUnavailableError`. */
  run(script: Script, keys: string[], args: string[]): Promise<Reply> {
    return this.ask(script, keys, args, (reply) => reply)
  }

  /** `run`, and what is made of the reply: one promise, since every further one shows in the price of a lock. */
  ask<T>(script: Script, keys: string[], args: string[], read: (reply: Reply) => T | Promise<T>): Promise<T> {
    const adapter = this.#adapter
    if (!adapter.ready()) return this.whenReady().then(() => this.ask(script, keys, args, read))
    return adapter.evalsha(script.sha, keys, args).then(read, (error: unknown) => {
      // A server that restarted, took over or was told SCRIPT FLUSH. EVAL also makes it known there.
      if (isNoScript(error)) return adapter.eval(script.source, keys, args).then(read, fail)
      return fail(error)
    })
  }

  /**
   * A client that is not connected would put the question into a queue, and carry it out minutes later, when whoever asked
   * has long gone. So it is not given to the client before that is ready, and not at all if that takes too long.
   */
  whenReady(): Promise<void> {
    const adapter = this.#adapter
    if (adapter.ready()) return Promise.resolve()
    adapter.wake()
    return new Promise((resolve, reject) => {
      const settle = (error?: Error): void => {
        clearTimeout(timer)
        stop()
        if (error) reject(error)
        else resolve()
      }
      const look = (): void => {
        if (adapter.ready()) settle()
        else if (adapter.closed()) settle(unavailable(adapter.trouble()))
      }
      const timer = setTimeout(() => {
        const reason = unavailable(adapter.trouble()).message
        const waited = `not connected within ${formatDuration(this.#timeoutMs)}`
        settle(new StoreUnavailableError(`${reason}; ${waited}`, { cause: adapter.trouble() }))
      }, this.#timeoutMs)
      timer.unref()
      const stop = adapter.onTurn(look)
      look()
    })
  }
}

function fail(error: unknown): never {
  throw unavailable(error)
}
