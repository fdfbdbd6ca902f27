import type { StoreEvent } from '../store.js'
import { onAbort } from './abort-fanout.js'
import type { PushedGrant } from './answer-log.js'
import type { Lock } from './lock.js'
import type { AcquireRequest } from './request.js'
import { Timed } from './timers.js'

/**
 * Where an acquisition stands:
 *
 * - `queued`: behind others of this process; nothing was sent yet.
 * - `asking`: a request is in flight.
 * - `subscribing`: refused; waits until notifications would arrive.
 * - `waiting`: until it is notified, or until asking again may help. Its queue entry is renewed by the queue heartbeat.
 * - `granted`, `failed`: settled.
 */
type State = 'queued' | 'asking' | 'subscribing' | 'waiting' | 'granted' | 'failed'

/** An acquisition, as the wait queue of its key sees it, and as its caller does, who has its promise. */
export abstract class Waiter extends Timed {
  readonly request: AcquireRequest
  /** When it began to wait. */
  readonly since: number
  readonly promise: Promise<Lock>
  /** Neighbours in the queue. */
  previous: Waiter | undefined = undefined
  next: Waiter | undefined = undefined
  protected state: State = 'queued'
  protected resolve!: (lock: Lock | Promise<Lock>) => void
  protected stopListening: (() => void) | undefined = undefined

  constructor(request: AcquireRequest, since: number) {
    super()
    this.request = request
    this.since = since
    this.promise = new Promise((resolve) => (this.resolve = resolve))
    const { signal } = request
    if (signal) this.stopListening = onAbort(signal, () => this.fail(signal.reason))
  }

  get key(): string {
    return this.request.key
  }

  /** Its turn has come: it has sent a request, or waits until asking may help. */
  get begun(): boolean {
    return this.state !== 'queued'
  }

  /** It was granted or has given up, and is about to leave. */
  get settled(): boolean {
    return this.state === 'granted' || this.state === 'failed'
  }

  get granted(): boolean {
    return this.state === 'granted'
  }

  /** Something happened to the key. Events are hints: all but a grant only make it ask sooner. */
  hear(event: StoreEvent): void {
    if (this.settled) return
    if (event.type === 'granted') {
      if (event.owner === this.owner) this.grantPushed(event)
    } else if (event.type === 'changed') {
      // An announced lease began, changed or ended. Only waiters that seek a record ask; the others wait for a grant.
      if (this.request.onRefusal) this.notify()
    } else if (!event.owner || event.owner === this.owner) this.notify()
  }

  /** Made when it is first read: most waiters of a crowd are passed a lease and never ask. */
  abstract get owner(): string
  /** The server may keep its request open. */
  abstract get hasOpenRequest(): boolean
  /** `ordered`: it must not overtake, nor be overtaken by, what this instance asked for before. */
  abstract begin(ordered: boolean): void
  /** Another one is behind it now. */
  abstract followed(): void
  /** Ask the store again. */
  abstract notify(): void
  /**
   * Ask again if it waits because its last request failed a while ago: another one has come behind it, which may have less time than is left
   * of that pause, and would be told of an outage that is over.
   */
  abstract retryForNewcomer(): void
  abstract fail(error: unknown): void
  protected abstract grantPushed(pushed: PushedGrant): void
}
