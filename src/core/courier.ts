import { LeaseholdError, StoreUnavailableError } from '../errors.js'
import { formatDuration } from '../kit/duration.js'
import type { World } from '../kit/world.js'
import type {
  Answer,
  Awaitable,
  Claim,
  Failure,
  Grant,
  Lease,
  Released,
  Renewal,
  Renewed,
  Store,
  TakeAnswer,
  TakeRequest,
} from '../store.js'
import { Timed, Timers } from './timers.js'

/**
 * Carries questions to the store: everything of one event-loop turn together, each item answered on its own, a lone
 * question without added delay, and every question answered in the end, if only with `unknown`.
 */
export class Courier {
  readonly store: Store
  readonly #world: World
  readonly #onStray: (claim: Claim, grant: Grant) => void
  readonly #immediate: boolean
  readonly #urgency: Timers
  readonly #patience: Timers
  readonly #acquiring: Channel<Claim, Answer>
  readonly #renewing: Channel<Renewal, Renewed>
  readonly #releasing: Channel<Lease, Released>
  readonly #taking: Channel<TakeRequest, TakeAnswer | Failure>

  /** `onStray` is told of grants whose asker was already told «unknown». */
  constructor(store: Store, world: World, onStray: (claim: Claim, grant: Grant) => void) {
    this.store = store
    this.#world = world
    this.#onStray = onStray
    this.#urgency = new Timers(world, true)
    this.#patience = new Timers(world)
    this.#immediate = store.immediate === true
    const failed = (error: unknown): Failure => ({ granted: 'unknown', error })
    const unsure = (error: unknown): { outcome: 'unknown'; error: unknown } => ({ outcome: 'unknown', error })
    this.#releasing = new Channel(this, { call: (leases) => store.release(leases), unknown: unsure })
    this.#renewing = new Channel(this, {
      call: (renewals) => store.renew(renewals),
      unknown: unsure,
      inBackground: true,
    })
    this.#acquiring = new Channel(this, {
      call: (claims) => store.acquire(claims),
      unknown: failed,
      late: (claim, answer) => {
        if (answer.granted === true) this.#onStray(claim, answer)
      },
    })
    this.#taking = new Channel(this, {
      call: (requests) => (store.take as NonNullable<Store['take']>)(requests),
      unknown: failed,
    })
  }

  acquire(claim: Claim): Awaitable<Answer> {
    if (this.#immediate) {
      try {
        return (this.store.acquire([claim]) as Answer[])[0] as Answer
      } catch (error) {
        return { granted: 'unknown', error: this.explain(error) }
      }
    }
    return claim.blockMs ? this.#acquiring.sendAlone(claim, claim.blockMs) : this.#acquiring.send(claim)
  }

  /** As `acquire`, on a store that answers later and keeps no question open. By callback: a promise shows in the price of a lock. */
  ask(claim: Claim, answered: (answer: Answer) => void): void {
    this.#acquiring.post(claim, answered)
  }

  /** All or none, in one call of their own. */
  async acquireTogether(claims: Claim[]): Promise<Answer[]> {
    const failed = (error: unknown): Answer[] => claims.map(() => ({ granted: 'unknown', error }))
    return this.within(
      () => this.store.acquire(claims, { atomic: true }),
      failed,
      (answers) => {
        for (const [i, answer] of answers.entries()) {
          if (answer.granted === true) this.#onStray(claims[i] as Claim, answer)
        }
      },
    )
  }

  renew(renewal: Renewal): Promise<Renewed> {
    return this.#renewing.send(renewal)
  }

  release(lease: Lease): Awaitable<Released> {
    if (this.#immediate) {
      try {
        return (this.store.release([lease]) as Released[])[0] as Released
      } catch (error) {
        return { outcome: 'unknown', error: this.explain(error) }
      }
    }
    return this.#releasing.send(lease)
  }

  /** As `release`, on a store that answers later. */
  giveBack(lease: Lease, answered: (answer: Released) => void): void {
    this.#releasing.post(lease, answered)
  }

  take(request: TakeRequest): Promise<TakeAnswer | Failure> {
    return this.#taking.send(request)
  }

  /** Every call ends: with an answer, or as unknown when the store's time limit has passed. Never rejects. */
  within<T>(call: () => Awaitable<T>, unknown: (error: unknown) => T, late?: (answer: T) => void): Awaitable<T> {
    let answer: Awaitable<T>
    try {
      answer = call()
    } catch (error) {
      return unknown(this.explain(error))
    }
    if (!(answer instanceof Promise)) return answer
    return new Promise<T>((resolve) => new Errand(this, resolve, unknown, late).follow(answer, this.store.timeoutMs))
  }

  /** The time limits of calls that somebody waits for, and of the others: only the first keep a process alive. */
  limits(inBackground: boolean): Timers {
    return inBackground ? this.#patience : this.#urgency
  }

  get now(): number {
    return this.#world.now()
  }

  explain(error: unknown): LeaseholdError {
    if (error instanceof LeaseholdError) return error
    const reason = error instanceof Error ? error.message || error.name : String(error)
    return new StoreUnavailableError(`${this.store.name} is unavailable: ${reason}`, { cause: error })
  }
}

/** A question that is out. Settled once: by its answer, or as unknown when its time is up. */
abstract class Call<T> extends Timed {
  readonly courier: Courier
  readonly #timers: Timers
  #over = false
  #limitMs = 0

  constructor(courier: Courier, inBackground: boolean) {
    super()
    this.courier = courier
    this.#timers = courier.limits(inBackground)
  }

  follow(answer: Promise<T>, limitMs: number): void {
    this.#limitMs = limitMs
    this.#timers.set(this, this.courier.now + limitMs, limitMs)
    answer.then(
      (value) => {
        this.#timers.clear(this)
        if (this.#over) this.late(value)
        else this.settle(value)
      },
      (error: unknown) => {
        this.#timers.clear(this)
        if (!this.#over) this.settle(this.unknown(this.courier.explain(error)))
      },
    )
  }

  override due(): void {
    this.#over = true
    const silence = `${this.courier.store.name} did not answer within ${formatDuration(this.#limitMs)}`
    this.settle(this.unknown(new StoreUnavailableError(silence)))
  }

  protected abstract settle(answer: T): void
  /** The answer to what was not answered. */
  protected abstract unknown(error: unknown): T
  /** An answer that came when nobody waited for it any more. */
  protected abstract late(answer: T): void
}

/** One that somebody else thought up. */
class Errand<T> extends Call<T> {
  readonly #resolve: (answer: T) => void
  readonly #unknown: (error: unknown) => T
  readonly #late: ((answer: T) => void) | undefined

  constructor(
    courier: Courier,
    resolve: (answer: T) => void,
    unknown: (error: unknown) => T,
    late: ((answer: T) => void) | undefined,
  ) {
    super(courier, false)
    this.#resolve = resolve
    this.#unknown = unknown
    this.#late = late
  }

  protected override settle(answer: T): void {
    this.#resolve(answer)
  }

  protected override unknown(error: unknown): T {
    return this.#unknown(error)
  }

  protected override late(answer: T): void {
    this.#late?.(answer)
  }
}

/** One kind of question. */
interface Questions<I, O> {
  call: (items: I[]) => Awaitable<O[]>
  /** The answer to a question that was not answered. */
  unknown: (error: unknown) => O
  /** An answer that came after all, when nobody waits for it any more. */
  late?: (item: I, answer: O) => void
  /** Nobody awaits the answer: it does not keep the process alive. */
  inBackground?: boolean
}

interface Parcel<I, O> {
  item: I
  resolve: (answer: O) => void
}

/** Several of one kind that travel together. */
class Batch<I, O> extends Call<O[]> {
  readonly #questions: Questions<I, O>
  readonly #parcels: readonly Parcel<I, O>[]
  readonly #items: I[]

  constructor(courier: Courier, questions: Questions<I, O>, parcels: readonly Parcel<I, O>[]) {
    super(courier, questions.inBackground === true)
    this.#questions = questions
    this.#parcels = parcels
    this.#items = parcels.map((parcel) => parcel.item)
  }

  send(extraMs: number): void {
    let answers: Awaitable<O[]>
    try {
      answers = this.#questions.call(this.#items)
    } catch (error) {
      return this.settle(this.unknown(this.courier.explain(error)))
    }
    if (answers instanceof Promise) this.follow(answers, this.courier.store.timeoutMs + extraMs)
    else this.settle(answers)
  }

  protected override settle(answers: O[]): void {
    const parcels = this.#parcels
    if (answers.length !== parcels.length) {
      const counts = `${answers.length} of ${parcels.length} questions`
      return this.settle(this.unknown(new StoreUnavailableError(`${this.courier.store.name} answered ${counts}`)))
    }
    for (let i = 0; i < parcels.length; i++) (parcels[i] as Parcel<I, O>).resolve(answers[i] as O)
  }

  protected override unknown(error: unknown): O[] {
    return this.#items.map(() => this.#questions.unknown(error))
  }

  protected override late(answers: O[]): void {
    for (const [i, answer] of answers.entries()) this.#questions.late?.(this.#items[i] as I, answer)
  }
}

/** Collects the questions of one kind. */
class Channel<I extends { key: string }, O> {
  readonly #courier: Courier
  readonly #questions: Questions<I, O>
  #parcels: Parcel<I, O>[] = []

  constructor(courier: Courier, questions: Questions<I, O>) {
    this.#courier = courier
    this.#questions = questions
  }

  send(item: I): Promise<O> {
    return new Promise((resolve) => this.post(item, resolve))
  }

  post(item: I, resolve: (answer: O) => void): void {
    this.#parcels.push({ item, resolve })
    // After the microtasks that this turn still has: whoever else was just answered gets aboard.
    if (this.#parcels.length === 1) queueMicrotask(this.#flushNextTick)
  }

  /** By itself and at once: its answer may take `extraMs` longer, and the others should not wait for it. */
  sendAlone(item: I, extraMs: number): Promise<O> {
    return new Promise((resolve) => this.#dispatch([{ item, resolve }], extraMs))
  }

  readonly #flushNextTick = (): void => process.nextTick(this.#flush)

  readonly #flush = (): void => {
    const parcels = this.#parcels
    this.#parcels = []
    if (parcels.length === 1) this.#dispatch(parcels)
    else for (const batch of this.#batches(parcels)) this.#dispatch(batch)
  }

  #dispatch(batch: readonly Parcel<I, O>[], extraMs = 0): void {
    new Batch(this.#courier, this.#questions, batch).send(extraMs)
  }

  /** Never two partitions in one call, never more than the store takes. */
  #batches(parcels: Parcel<I, O>[]): Parcel<I, O>[][] {
    const { store } = this.#courier
    const byPartition = new Map<string | number, Parcel<I, O>[]>()
    for (const parcel of parcels) {
      const partition = store.partition?.(parcel.item.key) ?? 0
      const group = byPartition.get(partition)
      if (group) group.push(parcel)
      else byPartition.set(partition, [parcel])
    }
    const most = store.maxBatch ?? Number.POSITIVE_INFINITY
    const batches: Parcel<I, O>[][] = []
    for (const group of byPartition.values()) {
      if (group.length <= most) batches.push(group)
      else for (let i = 0; i < group.length; i += most) batches.push(group.slice(i, i + most))
    }
    return batches
  }
}
