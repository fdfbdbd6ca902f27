import { type LeaseholdError, StoreUnavailableError } from '../errors.js'
import type { Awaitable, BatchSizes, Store } from '../store.js'
import { batchSize } from './batch-size.js'
import { warn } from './guarded.js'
import { isThenable } from './thenable.js'
import { type CallHost, type CallName, TimedCall } from './timed-call.js'

/** What a request queue needs from the batcher. */
export interface RequestHost extends CallHost {
  readonly store: Store
  /** The error to report for a request whose answer is missing or means nothing. */
  misunderstood(answer: unknown): LeaseholdError
}

/** How requests of one kind (acquire, renew, release, take) are sent. */
interface RequestKind<I, O> {
  name: keyof BatchSizes
  call: (items: I[]) => Awaitable<O[]>
  /** The answer to report for a request that the store did not answer. */
  unknown: (error: unknown) => O
  /** Whether a value may be taken for an answer: a store may be wrong. */
  isAnswer: (value: unknown) => boolean
  /** Nobody awaits the answer, so it does not keep the process alive. */
  inBackground?: boolean
}

/**
 * After this many requests in a row with nothing else in flight, the batching delay is skipped. Sequential callers get
 * minimal latency; a burst is split at most once.
 */
const SOLO_STREAK = 8

/** The requests between one instance and its store, of all kinds. */
export class InFlight {
  /** Requests that were made and not answered yet. */
  count = 0
  /** How many in a row were alone. */
  soloStreak = 0
}

/** The requests of one kind that were made and not answered yet. */
class Unanswered {
  readonly #all: InFlight
  #count = 0
  #onNone: (() => void) | undefined = undefined

  constructor(all: InFlight) {
    this.#all = all
  }

  /** Returns how many requests of all kinds were in flight before it. */
  begin(): number {
    this.#count++
    return this.#all.count++
  }

  end(count: number): void {
    this.#all.count -= count
    this.#count -= count
    if (this.#count === 0) this.#onNone?.()
  }

  /** Settles when there is none, those that begin meanwhile included. */
  async none(): Promise<void> {
    while (this.#count > 0) await new Promise<void>((resolve) => (this.#onNone = resolve))
    this.#onNone = undefined
  }
}

interface PendingRequest<I, O> {
  item: I
  resolve: (answer: O) => void
  /** Receives an answer that came after the request was answered as unknown. */
  late: ((answer: O) => void) | undefined
}

/** Requests of one kind that travel in one call. */
class Batch<I, O> extends TimedCall<O[]> {
  readonly #host: RequestHost
  readonly #kind: RequestKind<I, O>
  readonly #requests: readonly PendingRequest<I, O>[]
  readonly #items: I[]
  readonly #unanswered: Unanswered

  constructor(
    host: RequestHost,
    kind: RequestKind<I, O>,
    requests: readonly PendingRequest<I, O>[],
    { items, unanswered }: { items: I[]; unanswered: Unanswered },
  ) {
    super(host, kind.inBackground === true)
    this.#host = host
    this.#kind = kind
    this.#requests = requests
    this.#unanswered = unanswered
    this.#items = items
  }

  protected override get described(): { call: CallName; items: number } {
    return { call: this.#kind.name, items: this.#items.length }
  }

  await(answers: Awaitable<O[]>, limitMs: number): void {
    if (isThenable(answers)) this.follow(answers, limitMs)
    else this.answered(answers)
  }

  protected override settle(answers: O[]): void {
    const requests = this.#requests
    if (answers?.length !== requests.length) {
      const counts = `${answers?.length ?? 'none'} of ${requests.length} requests`
      return this.settle(this.unknown(new StoreUnavailableError(`${this.#host.store.name} answered ${counts}`)))
    }
    this.#unanswered.end(requests.length)
    for (let i = 0; i < requests.length; i++) {
      const value = answers[i] as O
      const answer = this.#kind.isAnswer(value) ? value : this.#kind.unknown(this.#host.misunderstood(value))
      const { resolve } = requests[i] as PendingRequest<I, O>
      // A callback that throws must not cost the other requests their answers. No closure here: this runs once per lock.
      try {
        resolve(answer)
      } catch (error) {
        warn(error)
      }
    }
  }

  protected override unknown(error: unknown): O[] {
    return this.#items.map(() => this.#kind.unknown(error))
  }

  protected override late(answers: O[]): void {
    if (!Array.isArray(answers) || answers.length !== this.#items.length) return
    for (const [i, answer] of answers.entries()) {
      if (this.#kind.isAnswer(answer)) this.#requests[i]?.late?.(answer)
    }
  }
}

/** Collects the requests of one kind, and sends those of one event-loop turn together. */
export class RequestQueue<I extends { key: string }, O> {
  readonly #host: RequestHost
  readonly #kind: RequestKind<I, O>
  readonly #inFlight: InFlight
  readonly #unanswered: Unanswered
  #pending: PendingRequest<I, O>[] = []

  constructor(host: RequestHost, inFlight: InFlight, kind: RequestKind<I, O>) {
    this.#host = host
    this.#inFlight = inFlight
    this.#unanswered = new Unanswered(inFlight)
    this.#kind = kind
  }

  /** Settles when all of them have been answered, if only as unknown. */
  answered(): Promise<void> {
    return this.#unanswered.none()
  }

  send(item: I, late?: (answer: O) => void): Promise<O> {
    return new Promise((resolve) => this.post(item, resolve, late))
  }

  post(item: I, resolve: (answer: O) => void, late?: (answer: O) => void): void {
    // With nothing else in flight there is also nothing that this request could overtake.
    const isAlone = this.#unanswered.begin() === 0 && this.#inFlight.soloStreak >= SOLO_STREAK
    if (isAlone && !this.#kind.inBackground) return this.#dispatch([{ item, resolve, late }])
    this.#pending.push({ item, resolve, late })
    // Flush after this turn's microtasks, so that callers resolved in it can join the batch.
    if (this.#pending.length === 1) queueMicrotask(this.#flushNextTick)
  }

  /** Sends it in a call of its own, at once: its answer may take `extraMs` longer, and other requests must not wait for it. */
  sendAlone(item: I, extraMs: number, late?: (answer: O) => void): Promise<O> {
    this.#unanswered.begin()
    return new Promise((resolve) => this.#dispatch([{ item, resolve, late }], extraMs))
  }

  readonly #flushNextTick = (): void => process.nextTick(this.#flush)

  readonly #flush = (): void => {
    const requests = this.#pending
    this.#pending = []
    this.#inFlight.soloStreak = this.#inFlight.count === 1 ? this.#inFlight.soloStreak + 1 : 0
    if (requests.length === 1) this.#dispatch(requests)
    else for (const batch of this.#batches(requests)) this.#dispatch(batch)
  }

  #dispatch(batch: readonly PendingRequest<I, O>[], extraMs = 0): void {
    const host = this.#host
    const items = batch.length === 1 ? [(batch[0] as PendingRequest<I, O>).item] : batch.map(({ item }) => item)
    let answers: Awaitable<O[]> | undefined
    let failure: unknown
    // The call leaves before anything is allocated that only its answer needs.
    try {
      answers = this.#kind.call(items)
    } catch (error) {
      failure = error ?? new Error('the store threw nothing')
    }
    const sent = new Batch(host, this.#kind, batch, { items, unanswered: this.#unanswered })
    if (failure === undefined) sent.await(answers as Awaitable<O[]>, host.store.timeoutMs + extraMs)
    else sent.fail(failure)
  }

  /** Never two partitions in one call, never more requests than the store takes. */
  #batches(requests: PendingRequest<I, O>[]): PendingRequest<I, O>[][] {
    const { store } = this.#host
    const byPartition = new Map<string | number, PendingRequest<I, O>[]>()
    for (const request of requests) {
      const partition = store.partition?.(request.item.key) ?? 0
      const group = byPartition.get(partition)
      if (group) group.push(request)
      else byPartition.set(partition, [request])
    }
    const most = batchSize(store, this.#kind.name)
    const batches: PendingRequest<I, O>[][] = []
    for (const group of byPartition.values()) {
      if (group.length <= most) batches.push(group)
      else for (let i = 0; i < group.length; i += most) batches.push(group.slice(i, i + most))
    }
    return batches
  }
}
