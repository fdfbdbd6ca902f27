import { ClosedError, LockLostError } from '../errors.js'
import type { World } from '../util/world.js'
import type { Cleanup } from './cleanup.js'
import type { Lease } from './lease.js'
import type { LeaseList } from './lease-list.js'

/** What closing needs from the instance. */
export interface ClosingHost {
  readonly world: World
  readonly cleanup: Cleanup
  readonly held: LeaseList<Lease>
  /** Set from the moment on at which the instance closes: nothing is granted any more. */
  closingReason: ClosedError | undefined
  /** The acquisitions that wait. */
  waiting(): Iterable<{ fail(error: Error): void }>
  release(lease: Lease): Promise<boolean>
  /** Ends subscriptions and timers. */
  stop(): void
}

/** The end of one instance: no new grants; signals abort, and work may finish while its leases are renewed; then everything is released. */
export class Closing {
  readonly #host: ClosingHost
  #closed: Promise<void> | undefined
  /** Ends the time that work was given to finish. Set while it lasts. */
  #hurry: (() => void) | undefined = undefined
  /** The timers that would end it: each call of `close()` has one, and each keeps the process alive. */
  readonly #limits: (() => void)[] = []

  constructor(host: ClosingHost) {
    this.#host = host
  }

  close(graceMs: number): Promise<void> {
    // A second call may shorten the time that the first one gave, and never prolongs it.
    if (this.#closed && this.#hurry) this.#limits.push(this.#host.world.after(graceMs, this.#hurry, true))
    this.#closed ??= this.#close(graceMs)
    return this.#closed
  }

  async releaseAll(): Promise<void> {
    await Promise.all(
      this.#host.held.all().map((lease) => {
        // The work under it did not release it: its signal aborts before another process can hold the lock.
        if (!lease.staysInStore) lease.takeBack(new LockLostError(lease.request.name, 'released'))
        return this.#host.release(lease)
      }),
    )
  }

  /** A lease has ended: it may have been the last that closing waited for. */
  leaseEnded(): void {
    if (this.#hurry && this.#host.held.size === 0) this.#hurry()
  }

  async #close(graceMs: number): Promise<void> {
    const host = this.#host
    const reason = new ClosedError('closing: locks.close() was called')
    host.closingReason = reason
    // A copy: each leaves its queue.
    for (const each of [...host.waiting()]) each.fail(reason)
    for (const lease of host.held.all()) lease.announceClosing(reason)
    await this.#idle(graceMs)
    await this.releaseAll()
    // Requests from before may be granted only now, and have to be released.
    await host.cleanup.finish()
    host.stop()
  }

  async #idle(graceMs: number): Promise<void> {
    const { held, world } = this.#host
    if (held.size === 0 || graceMs === 0) return
    await new Promise<void>((resolve) => {
      this.#hurry = resolve
      this.#limits.push(world.after(graceMs, resolve, true))
    })
    this.#hurry = undefined
    for (const cancel of this.#limits.splice(0)) cancel()
  }
}
