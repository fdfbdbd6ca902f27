import type { Lock } from '../core/lock.js'
import { LockLostError } from '../errors.js'
import type { Cancel, World } from '../util/world.js'
import { timersOf } from './internals.js'
import { type CapturedResponse, type RecordedResponse, recordOf } from './recorded-response.js'

/** Statuses with which a time-out in front of a handler answers, while the handler may still run. */
const TIME_OUTS = new Set([408, 503, 504])

/** Ends a run without a record. */
export class Unrecorded extends Error {
  constructor() {
    super('the response was not recorded')
  }
}

/** Settles the promise that `runRecorded` waits for. */
interface RecordPromise {
  record: (record: RecordedResponse) => void
  drop: (error: Error) => void
}

/** What one run is about: its lease, its request and its limits. */
export interface IdempotentRunFacts {
  lock: Lock
  fingerprint: string
  maxHoldMs: number
  recordable: (status: number) => boolean
}

/**
 * One handler at work under its key. The lease is renewed until the run ends, and every way of ending it is one of these
 * methods: `record`, `unrecorded`, `release` or `abandon`. A run that is never ended ends after `maxHold`.
 */
export class IdempotentRun {
  readonly #facts: IdempotentRunFacts
  readonly #settle: RecordPromise
  readonly #ttlMs: number
  readonly #after: World['after']
  readonly #cancelMaxHold: Cancel
  #handler: Promise<unknown> | undefined
  #handlerRuns = false
  #cancelDrop: Cancel | undefined
  #over = false
  /** Settles when the store has recorded the response or the key is released. */
  #outcome: Promise<unknown> = Promise.resolve()

  constructor(facts: IdempotentRunFacts, settle: RecordPromise) {
    this.#facts = facts
    this.#settle = settle
    this.#ttlMs = Math.max(facts.lock.remainingMs, 1)
    this.#after = timersOf(facts.lock)
    this.#cancelMaxHold = this.#after(facts.maxHoldMs, () => this.#drop())
  }

  /** Takes the promise that `runRecorded` returned. */
  watch(outcome: Promise<unknown>): void {
    this.#outcome = outcome
    // Dropped runs reject on purpose; `record` awaits the same promise and reports other errors.
    outcome.catch(() => {})
  }

  get over(): boolean {
    return this.#over
  }

  /** Whether a response with this status is for the record. Throws if the user's own `record` throws. */
  recordable(status: number): boolean {
    return this.#facts.recordable(status)
  }

  /** The promise of the handler: its key stays in progress at least until this settles. */
  follow(handler: Promise<unknown>): void {
    this.#handler = handler
    this.#handlerRuns = true
    const abandoned = this.#cancelDrop !== undefined
    this.#cancelDrop?.()
    this.#cancelDrop = undefined
    const ended = (): void => {
      this.#handlerRuns = false
    }
    handler.then(ended, ended)
    // The client left before the handler began, which runs all the same: the time to drop the key starts when it ends.
    if (abandoned) this.abandon()
  }

  /** The response ended: as `record` if it is for the record, otherwise as `unrecorded`. */
  async finish(response: CapturedResponse, foreign = false): Promise<void> {
    let final: boolean
    try {
      final = this.recordable(response.status)
    } catch (error) {
      // The handler has run. Without an answer of `record` its key ends by the ttl, and is not renewed for ever.
      this.abandon()
      throw error
    }
    await (final ? this.record(response) : this.unrecorded(response.status, foreign))
  }

  /** Resolves when the response is recorded. Rejects if it could not be, and must then not be sent as if it had been. */
  async record(response: CapturedResponse): Promise<void> {
    if (this.#over) throw new LockLostError(this.#facts.lock.name, 'max-hold')
    const record = recordOf(response, this.#facts.fingerprint)
    this.#end()
    this.#settle.record(record)
    await this.#outcome
  }

  /**
   * The response ended and is not for the record. If it may be the answer of a time-out (`foreign`, or by its status), the
   * handler may still run: its key stays in progress until its promise settles or, without one, until the ttl.
   */
  async unrecorded(status: number, foreign = false): Promise<void> {
    if (this.#handlerRuns) await this.#dropAfterHandler()
    else if (this.#handler === undefined && (foreign || TIME_OUTS.has(status))) this.abandon()
    else await this.release()
  }

  /** Ends the run without a record: the next request with this key runs. */
  async release(): Promise<void> {
    this.#drop()
    await this.#outcome.catch(() => {})
  }

  /** The response broke off or its client is gone. A handler that ends within the ttl can still be recorded. */
  abandon(): void {
    if (this.#over || this.#cancelDrop) return
    const linger = (): void => {
      if (this.#over || this.#cancelDrop) return
      this.#cancelDrop = this.#after(this.#ttlMs, () => this.#drop())
    }
    if (this.#handlerRuns) void this.#handler?.then(linger, linger)
    else linger()
  }

  /** Waits for a handler that is about to return, so that a client that tries again at once finds its key free. */
  async #dropAfterHandler(): Promise<void> {
    const drop = (): void => this.#drop()
    void this.#handler?.then(drop, drop)
    await new Promise((resolve) => setImmediate(resolve))
    if (this.#over) await this.#outcome.catch(() => {})
  }

  #drop(): void {
    if (this.#over) return
    this.#end()
    this.#settle.drop(new Unrecorded())
  }

  #end(): void {
    this.#over = true
    this.#cancelMaxHold()
    this.#cancelDrop?.()
  }
}
