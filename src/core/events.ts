import type { LeaseholdError, LockLostError, LossFacts, LossReason } from '../errors.js'
import { Emitter } from './emitter.js'
import { eventChannels, isAnyEventPublished } from './channels.js'
import type { AcquireRequest } from './request.js'

/** What every event about a lock carries. */
export interface LockFacts {
  /** As the caller named it, without the namespace. */
  name: string
  /** Of the instance, if it has one. */
  namespace?: string | undefined
  /** `lock`, `semaphore`, `election`, … */
  kind: string
  holder: string
  mode: 'exclusive' | 'shared'
  fencingToken: bigint
  /** Until when the holder may trust it, unless renewed. */
  expiresAt: Date
  /** What the holder gave along. */
  metadata: unknown
}

/** What an event carries about a request that holds no lock, or whose call failed. */
export type RequestFacts = Pick<LockFacts, 'name' | 'namespace' | 'kind' | 'metadata'>

/** Kinds whose value is a record that leasehold writes, and no metadata of the caller: events do not show it. */
const RECORDING_KINDS = new Set(['run-once', 'schedule'])

export function requestFacts({ name, kind, value }: Pick<AcquireRequest, 'name' | 'kind' | 'value'>): RequestFacts {
  const metadata: unknown = value === undefined || RECORDING_KINDS.has(kind) ? undefined : JSON.parse(value)
  return { name, kind, metadata }
}

/** The events of `locks.on(…)`, each with its facts. */
export interface LockEvents {
  acquired: LockFacts & { waitedMs: number }
  released: LockFacts & { heldMs: number }
  renewed: LockFacts
  /** Renewals fail or are not answered, and it will be lost in `remainingMs` unless one succeeds: time to save what was done. */
  atRisk: LockFacts & { remainingMs: number; error?: LeaseholdError }
  lost: LockFacts & LossFacts & { heldMs: number; why: LossReason; error: LockLostError }
  /** Garbage-collected without release: nobody can release it any more, so it is no longer renewed. */
  abandoned: LockFacts
  timeout: RequestFacts & { waitedMs: number; heldBy: string | undefined }
  /** Something failed in the background, and will be tried again or runs out by itself. */
  error: RequestFacts & {
    doing: 'acquire' | 'renew' | 'release' | 'take'
    error: LeaseholdError | Error
  }
}

/** What a message of a channel carries besides: all instances of a process publish there. */
export interface PublishedFacts {
  /** The name of the store: `redis`, `memory`. */
  store: string
  namespace?: string | undefined
}

/** All there are: `on` refuses anything else. */
const EVENTS: Record<keyof LockEvents, true> = {
  acquired: true,
  released: true,
  renewed: true,
  atRisk: true,
  lost: true,
  abandoned: true,
  timeout: true,
  error: true,
}

/**
 * The events of one instance. All instances publish theirs on `node:diagnostics_channel` besides. An `error` without a
 * listener does nothing. For an event that nobody listens to, only flags are compared: its facts are not put together.
 */
export class Events extends Emitter<LockEvents> {
  /** Of the instance: part of the facts of every event. */
  namespace: string | undefined = undefined
  readonly #store: string

  constructor(store: string) {
    super(EVENTS, 'LeaseholdListenerWarning')
    this.#store = store
  }

  /** Whether anybody would learn of it, here or by a channel. */
  isHeard(event: keyof LockEvents): boolean {
    return this.has(event) || (isAnyEventPublished() && eventChannels[event].hasSubscribers)
  }

  /** Facts are only put together when somebody listens. */
  emit<E extends keyof LockEvents>(event: E, facts: () => LockEvents[E]): void {
    if (!this.isHeard(event)) return
    const said = this.namespace === undefined ? facts() : { namespace: this.namespace, ...facts() }
    this.notify(event, said)
    const channel = eventChannels[event]
    if (channel.hasSubscribers) channel.publish({ store: this.#store, ...said })
  }
}
