import type { Lock } from '../core/lock.js'
import { LockLostError } from '../errors.js'
import { type CapturedResponse, type RecordedResponse, recordOf } from './recorded-response.js'

/** A status that a time-out in front of a handler answers with, while the handler may still run. */
const TIME_OUTS = new Set([408, 503, 504])

/** Ends a run without a record. */
export class Unrecorded extends Error {
  constructor() {
    super('the response was not recorded')
  }
}

/** How a run settles the record that `runRecorded` waits for. */
interface Settle {
  record: (record: RecordedResponse) => void
  drop: (error: Error) => void
}

/** What the rules know about one run. */
export interface RunFacts {
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
  readonly #facts: RunFacts
  readonly #settle: Settle
  readonly #ttlMs: number
  readonly #limit: NodeJS.Timeout
  #handler: Promise<unknown> | undefined
  #handlerRuns = false
  #linger: NodeJS.Timeout | undefined
  #over = false
  /** Settles when the store has recorded the response or the key is released. */
  #outcome: Promise<unknown> = Promise.resolve()

  constructor(facts: RunFacts, settle: Settle) {
    this.#facts = facts
    this.#settle = settle
    this.#ttlMs = Math.max(facts.lock.remainingMs, 1)
    this.#limit = setTimeout(() => this.#drop(), facts.maxHoldMs)
    this.#limit.unref()
  }

  /** What `runRecorded` returned. */
  watch(outcome: Promise<unknown>): void {
    this.#outcome = outcome
    // Runs that are dropped reject on purpose; whoever waits in `record` hears of other errors.
    outcome.catch(() => {})
  }

  get over(): boolean {
    return this.#over
  }

  recordable(status: number): boolean {
    return this.#facts.recordable(status)
  }

  /** The promise of the handler: its key stays in progress at least until this settles. */
  follow(handler: Promise<unknown>): void {
    this.#handler = handler
    this.#handlerRuns = true
    const abandoned = this.#linger !== undefined
    clearTimeout(this.#linger)
    this.#linger = undefined
    const ended = (): void => {
      this.#handlerRuns = false
    }
    handler.then(ended, ended)
    // The client left before the handler began, and it runs all the same.
    if (abandoned) this.abandon()
  }

  /** Resolves when the response is recorded. Rejects if it could not be, and must then not be sent as if it had been. */
  async record(response: CapturedResponse): Promise<void> {
    if (this.#over) throw new LockLostError(this.#facts.lock.name, 'max-hold')
    this.#end()
    this.#settle.record(recordOf(response, this.#facts.fingerprint))
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

  /** Nothing was recorded: the next request with this key runs. */
  async release(): Promise<void> {
    this.#drop()
    await this.#outcome.catch(() => {})
  }

  /** The response broke off or its client is gone. A handler that ends within the ttl can still be recorded. */
  abandon(): void {
    if (this.#over || this.#linger) return
    const linger = (): void => {
      if (this.#over || this.#linger) return
      this.#linger = setTimeout(() => this.#drop(), this.#ttlMs)
      this.#linger.unref()
    }
    if (this.#handlerRuns) void this.#handler?.then(linger, linger)
    else linger()
  }

  /** A handler that is about to return is waited for, so that a client that tries again at once finds its key free. */
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
    clearTimeout(this.#limit)
    clearTimeout(this.#linger)
  }
}
