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
  /** The time limits of calls that somebody waits for, and of the others: only the first keep a process alive. */
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
        return { granted: 'unknown', error: this.#explain(error) }
      }
    }
    return claim.blockMs ? this.#acquiring.sendAlone(claim, claim.blockMs) : this.#acquiring.send(claim)
  }

  /** All or none, in one call of their own. */
  async acquireTogether(claims: Claim[]): Promise<Answer[]> {
    const failed = (error: unknown): Answer[] => claims.map(() => ({ granted: 'unknown', error }))
    return this.within(() => this.store.acquire(claims, { atomic: true }), failed, {
      late: (answers) => {
        for (const [i, answer] of answers.entries()) {
          if (answer.granted === true) this.#onStray(claims[i] as Claim, answer)
        }
      },
    })
  }

  renew(renewal: Renewal): Promise<Renewed> {
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

  take(request: TakeRequest): Promise<TakeAnswer | Failure> {
    return this.#taking.send(request)
  }

  /** Every call ends: with an answer, or as unknown when the store's time limit has passed. Never rejects. */
  within<T>(call: () => Awaitable<T>, unknown: (error: unknown) => T, options: WithinOptions<T> = {}): Awaitable<T> {
    const { extraMs = 0, late, inBackground = false } = options
    let answer: Awaitable<T>
    try {
      answer = call()
    } catch (error) {
      return unknown(this.#explain(error))
    }
    if (!(answer instanceof Promise)) return answer
    const limit = this.store.timeoutMs + extraMs
    const timers = inBackground ? this.#patience : this.#urgency
    return new Promise<T>((resolve) => {
      const call = new Call(resolve, () =>
        unknown(new StoreUnavailableError(`${this.store.name} did not answer within ${formatDuration(limit)}`)),
      )
      timers.set(call, this.#world.now() + limit, limit)
      answer.then(
        (value) => {
          timers.clear(call)
          if (call.over) late?.(value)
          else resolve(value)
        },
        (error: unknown) => {
          timers.clear(call)
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

/** A question that is out. */
class Call<T> extends Timed {
  /** It was given up. */
  over = false
  readonly #resolve: (answer: T) => void
  readonly #unanswered: () => T

  constructor(resolve: (answer: T) => void, unanswered: () => T) {
    super()
    this.#resolve = resolve
    this.#unanswered = unanswered
  }

  override due(): void {
    this.over = true
    this.#resolve(this.#unanswered())
  }
}

interface WithinOptions<T> {
  /** May take so much longer than usual. */
  extraMs?: number
  /** What came when nobody waited for it any more. */
  late?: ((answer: T) => void) | undefined
  /** Nobody awaits it: it does not keep the process alive. */
  inBackground?: boolean | undefined
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
    return new Promise((resolve) => {
      this.#parcels.push({ item, resolve })
      // After the microtasks that this turn still has: whoever else was just answered gets aboard.
      if (this.#parcels.length === 1) queueMicrotask(() => process.nextTick(() => this.#flush()))
    })
  }

  /** By itself and at once: its answer may take `extraMs` longer, and the others should not wait for it. */
  sendAlone(item: I, extraMs: number): Promise<O> {
    return new Promise((resolve) => this.#dispatch([{ item, resolve }], extraMs))
  }

  #flush(): void {
    const parcels = this.#parcels
    this.#parcels = []
    for (const batch of this.#batches(parcels)) this.#dispatch(batch)
  }

  #dispatch(batch: Parcel<I, O>[], extraMs = 0): void {
    const { call, unknown, late, inBackground } = this.#questions
    const items = batch.map((parcel) => parcel.item)
    const answers = this.#courier.within<O[]>(
      () => call(items),
      (error) => items.map(() => unknown(error)),
      {
        extraMs,
        inBackground,
        late: (answers) => {
          for (const [i, answer] of answers.entries()) late?.(items[i] as I, answer)
        },
      },
    )
    if (answers instanceof Promise) void answers.then((list) => this.#deliver(batch, list))
    else this.#deliver(batch, answers)
  }

  #deliver(batch: Parcel<I, O>[], answers: O[]): void {
    if (answers.length === batch.length) {
      for (const [i, parcel] of batch.entries()) parcel.resolve(answers[i] as O)
      return
    }
    const counts = `${answers.length} of ${batch.length} questions`
    const error = new StoreUnavailableError(`${this.#courier.store.name} answered ${counts}`)
    for (const parcel of batch) parcel.resolve(this.#questions.unknown(error))
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
