import { LeaseholdError, StoreUnavailableError } from '../errors.js'
import { formatDuration } from '../kit/duration.js'
import type { World } from '../kit/world.js'
import type {
  Answer,
  Awaitable,
  Claim,
  Failure,
  Lease,
  Released,
  Renewal,
  Renewed,
  Store,
  TakeAnswer,
  TakeRequest,
} from '../store.js'

/**
 * Carries questions to the store: everything of one event-loop turn together, each item answered on its own, a lone
 * question without added delay, and every question answered in the end, if only with `unknown`.
 */
export class Courier {
  readonly store: Store
  readonly #world: World
  readonly #immediate: boolean
  readonly #acquiring: Channel<Claim, Answer>
  readonly #renewing: Channel<Renewal, Renewed>
  readonly #releasing: Channel<Lease, Released>
  readonly #taking: Channel<TakeRequest, TakeAnswer | Failure>

  constructor(store: Store, world: World) {
    this.store = store
    this.#world = world
    this.#immediate = store.immediate === true
    const channel = <I extends { key: string }, O>(
      call: (items: I[]) => Awaitable<O[]>,
      unknown: (error: unknown) => O,
      late?: (item: I, answer: O) => void,
    ): Channel<I, O> => new Channel(this, call, unknown, late)
    const refused = (error: unknown): Failure => ({ granted: 'unknown', error })
    const unsure = (error: unknown): { outcome: 'unknown'; error: unknown } => ({ outcome: 'unknown', error })
    this.#releasing = channel((leases) => store.release(leases), unsure)
    this.#renewing = channel((renewals) => store.renew(renewals), unsure)
    this.#acquiring = channel(
      (claims) => store.acquire(claims),
      refused,
      // The one who asked was told «unknown» and has gone. What came after all must not stay until its time passes.
      (claim, answer) => {
        if (answer.granted === true) void this.release({ key: claim.key, owner: answer.owner })
      },
    )
    this.#taking = channel((requests) => (store.take as NonNullable<Store['take']>)(requests), refused)
  }

  acquire(claim: Claim): Awaitable<Answer> {
    if (this.#immediate) {
      try {
        return (this.store.acquire([claim]) as Answer[])[0] as Answer
      } catch (error) {
        return { granted: 'unknown', error: this.#explain(error) }
      }
    }
    return claim.blockMs ? this.#acquiring.alone(claim, claim.blockMs) : this.#acquiring.send(claim)
  }

  /** All or none, in one call of their own. */
  async acquireTogether(claims: Claim[]): Promise<Answer[]> {
    const failed = (error: unknown): Answer[] => claims.map(() => ({ granted: 'unknown', error }))
    return this.within(
      0,
      () => this.store.acquire(claims, { atomic: true }),
      failed,
      (answers) => {
        for (const [i, answer] of answers.entries()) {
          if (answer.granted === true) void this.release({ key: (claims[i] as Claim).key, owner: answer.owner })
        }
      },
    )
  }

  renew(renewal: Renewal): Awaitable<Renewed> {
    return this.#renewing.send(renewal)
  }

  release(lease: Lease): Awaitable<Released> {
    if (this.#immediate) {
      try {
        return (this.store.release([lease]) as Released[])[0] as Released
      } catch (error) {
        return { outcome: 'unknown', error: this.#explain(error) }
      }
    }
    return this.#releasing.send(lease)
  }

  take(request: TakeRequest): Awaitable<TakeAnswer | Failure> {
    return this.#taking.send(request)
  }

  /** Every call ends: with an answer, or as unknown when the store's time limit has passed. Never rejects. */
  within<T>(
    extraMs: number,
    call: () => Awaitable<T>,
    unknown: (error: unknown) => T,
    late?: (answer: T) => void,
  ): Awaitable<T> {
    let answer: Awaitable<T>
    try {
      answer = call()
    } catch (error) {
      return unknown(this.#explain(error))
    }
    if (!(answer instanceof Promise)) return answer
    const promise = answer
    return new Promise<T>((resolve) => {
      const limit = this.store.timeoutMs + extraMs
      let over = false
      const cancel = this.#world.after(limit, () => {
        over = true
        resolve(unknown(new StoreUnavailableError(`${this.store.name} did not answer within ${formatDuration(limit)}`)))
      })
      promise.then(
        (value) => {
          cancel()
          if (over) late?.(value)
          else resolve(value)
        },
        (error: unknown) => {
          cancel()
          resolve(unknown(this.#explain(error)))
        },
      )
    })
  }

  #explain(error: unknown): LeaseholdError {
    if (error instanceof LeaseholdError) return error
    const reason = error instanceof Error ? error.message || error.name : String(error)
    return new StoreUnavailableError(`${this.store.name} is unavailable: ${reason}`, { cause: error })
  }
}

interface Parcel<I, O> {
  item: I
  resolve: (answer: O) => void
}

/** One kind of question. */
class Channel<I extends { key: string }, O> {
  readonly #courier: Courier
  readonly #call: (items: I[]) => Awaitable<O[]>
  readonly #unknown: (error: unknown) => O
  readonly #late: ((item: I, answer: O) => void) | undefined
  #parcels: Parcel<I, O>[] = []

  constructor(
    courier: Courier,
    call: (items: I[]) => Awaitable<O[]>,
    unknown: (error: unknown) => O,
    late: ((item: I, answer: O) => void) | undefined,
  ) {
    this.#courier = courier
    this.#call = call
    this.#unknown = unknown
    this.#late = late
  }

  send(item: I): Awaitable<O> {
    if (this.#courier.store.immediate) return this.alone(item, 0)
    return new Promise((resolve) => {
      this.#parcels.push({ item, resolve })
      // After the microtasks that this turn still has: whoever else was just answered gets aboard.
      if (this.#parcels.length === 1) queueMicrotask(() => process.nextTick(() => this.#flush()))
    })
  }

  alone(item: I, extraMs: number): Awaitable<O> {
    const answers = this.#courier.within<O[]>(
      extraMs,
      () => this.#call([item]),
      (error) => [this.#unknown(error)],
      (late) => this.#late?.(item, late[0] as O),
    )
    return answers instanceof Promise ? answers.then((list) => this.#only(list)) : this.#only(answers)
  }

  #only(answers: O[]): O {
    return answers.length === 1 ? (answers[0] as O) : this.#unknown(this.#miscounted(1, answers.length))
  }

  #flush(): void {
    const parcels = this.#parcels
    this.#parcels = []
    for (const batch of this.#batches(parcels)) this.#dispatch(batch)
  }

  #dispatch(batch: Parcel<I, O>[]): void {
    const items = batch.map((parcel) => parcel.item)
    const deliver = (answers: O[]): void => {
      if (answers.length !== batch.length) {
        const error = this.#miscounted(batch.length, answers.length)
        for (const parcel of batch) parcel.resolve(this.#unknown(error))
      } else for (const [i, parcel] of batch.entries()) parcel.resolve(answers[i] as O)
    }
    const answers = this.#courier.within<O[]>(
      0,
      () => this.#call(items),
      (error) => items.map(() => this.#unknown(error)),
      (late) => {
        for (const [i, answer] of late.entries()) this.#late?.(items[i] as I, answer)
      },
    )
    if (answers instanceof Promise) void answers.then(deliver)
    else deliver(answers)
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

  #miscounted(asked: number, answered: number): StoreUnavailableError {
    return new StoreUnavailableError(`${this.#courier.store.name} answered ${answered} of ${asked} questions`)
  }
}
