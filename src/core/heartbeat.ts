import type { World } from '../util/world.js'
import type { Awaitable, Renewal, Renewed } from '../store.js'
import { StoreUnavailableError } from '../errors.js'
import { batchSize } from './batch-size.js'
import { guarded, warn } from './guarded.js'
import type { RequestHost } from './request-queue.js'
import { isThenable } from './thenable.js'
import { type CallName, TimedCall } from './timed-call.js'
import { isRenewed } from './well-formed.js'

/** A lease that is due, as the heartbeat sees it. */
export interface RenewedInBulk {
  /** What to send. The same object each time, and never changed. */
  readonly renewal: Renewal
  /** False if there is nothing to renew any more, or a renewal of its own has begun. `answered` settles behind `endRenewal`. */
  beginRenewal(answered: Promise<void>, now: number): boolean
  /** `now`: when the answer came. */
  endRenewal(answer: Renewed, sentAt: number, now: number): void
}

/**
 * Renews the leases of one instance: all that are due in one event-loop turn together, with one promise per call to the store.
 * A promise, a closure and a pending request for each of 10,000 leases cost more than everything else about them.
 */
export class Heartbeat {
  readonly #host: RequestHost
  readonly #world: World
  #due: RenewedInBulk[] = []

  constructor(host: RequestHost, world: World) {
    this.#host = host
    this.#world = world
  }

  add(lease: RenewedInBulk): void {
    if (this.#due.push(lease) === 1) process.nextTick(this.#flush)
  }

  /** A partition that cannot be told must not cost the leases that are due with it their renewal. */
  #partitionOf({ renewal }: RenewedInBulk): string | number {
    try {
      return this.#host.store.partition?.(renewal.key) ?? 0
    } catch (error) {
      warn(error)
      return 0
    }
  }

  readonly #flush = (): void =>
    guarded(() => {
      const due = this.#due
      const now = this.#world.now()
      this.#due = []
      const { store } = this.#host
      const most = batchSize(store, 'renew')
      // Never two partitions in one call, never more than the store takes.
      const calls = new Map<string | number, RenewalCall>()
      for (const lease of due) {
        const partition = this.#partitionOf(lease)
        let call = calls.get(partition)
        if (call && call.size === most) {
          call.send()
          call = undefined
        }
        if (!call) calls.set(partition, (call = new RenewalCall(this.#host, this.#world)))
        call.add(lease, now)
      }
      for (const call of calls.values()) call.send()
    })
}

/** The leases that are renewed in one call. */
class RenewalCall extends TimedCall<Renewed[]> {
  readonly #host: RequestHost
  readonly #world: World
  readonly #leases: RenewedInBulk[] = []
  readonly #renewals: Renewal[] = []
  readonly #answered: Promise<void>
  #resolve!: () => void
  #sentAt = 0

  constructor(host: RequestHost, world: World) {
    super(host, true)
    this.#host = host
    this.#world = world
    this.#answered = new Promise((resolve) => (this.#resolve = resolve))
  }

  get size(): number {
    return this.#leases.length
  }

  add(lease: RenewedInBulk, now: number): void {
    if (!lease.beginRenewal(this.#answered, now)) return
    this.#leases.push(lease)
    this.#renewals.push(lease.renewal)
  }

  send(): void {
    if (this.#leases.length === 0) return
    const { store } = this.#host
    // Ends are counted from here: a lease must not outlive in this process what the store gave it.
    this.#sentAt = this.#world.now()
    let answers: Awaitable<Renewed[]>
    try {
      answers = store.renew(this.#renewals)
    } catch (error) {
      return this.fail(error)
    }
    if (isThenable(answers)) this.follow(answers, store.timeoutMs)
    else this.answered(answers)
  }

  protected override get described(): { call: CallName; items: number } {
    return { call: 'renew', items: this.#leases.length }
  }

  protected override settle(answers: Renewed[]): void {
    const leases = this.#leases
    const host = this.#host
    if (!Array.isArray(answers) || answers.length !== leases.length) {
      const counts = `${Array.isArray(answers) ? answers.length : 'none'} of ${leases.length} requests`
      return this.settle(this.unknown(new StoreUnavailableError(`${host.store.name} answered ${counts}`)))
    }
    const now = this.#world.now(true)
    for (let i = 0; i < leases.length; i++) {
      const value = answers[i] as Renewed
      const answer: Renewed = isRenewed(value) ? value : { outcome: 'unknown', error: host.misunderstood(value) }
      // A listener that throws must not cost the other leases their answers.
      try {
        ;(leases[i] as RenewedInBulk).endRenewal(answer, this.#sentAt, now)
      } catch (error) {
        warn(error)
      }
    }
    this.#resolve()
  }

  protected override unknown(error: unknown): Renewed[] {
    return this.#leases.map(() => ({ outcome: 'unknown', error }))
  }

  /** A late answer is dropped: its leases were answered `unknown`, and have been renewed since or have ended. */
  protected override late(): void {}
}
