import { StoreUnavailableError } from '../errors.js'
import type { Awaitable } from '../store.js'
import { Call } from './call.js'
import type { Courier } from './courier.js'
import { warn } from './guarded.js'
import { isThenable } from './thenable.js'

/** One kind of question. */
interface Questions<I, O> {
  call: (items: I[]) => Awaitable<O[]>
  /** The answer to a question that was not answered. */
  unknown: (error: unknown) => O
  /** An answer that came after all, when nobody waits for it any more. */
  late?: (item: I, answer: O) => void
  /** So many travel together at most. */
  atMost?: number
  /** Nobody awaits the answer: it does not keep the process alive. */
  inBackground?: boolean
}

/**
 * After so many questions in a row that had no company, the next is not kept for company either. Until one has some: whoever
 * works by turns gets the shortest way, and a crowd is split once at most.
 */
const LONERS = 8

/** What is on its way between one instance and its store, by all channels. */
export class Traffic {
  /** Asked, and not answered yet. */
  out = 0
  /** How many in a row were the only ones out. */
  alone = 0
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
  readonly #traffic: Traffic

  constructor(
    courier: Courier,
    questions: Questions<I, O>,
    parcels: readonly Parcel<I, O>[],
    { items, traffic }: { items: I[]; traffic: Traffic },
  ) {
    super(courier, questions.inBackground === true)
    this.#questions = questions
    this.#parcels = parcels
    this.#traffic = traffic
    this.#items = items
  }

  fail(error: unknown): void {
    this.settle(this.unknown(this.courier.explain(error)))
  }

  await(answers: Awaitable<O[]>, limitMs: number): void {
    if (isThenable(answers)) this.follow(answers, limitMs)
    else this.settle(answers)
  }

  protected override settle(answers: O[]): void {
    const parcels = this.#parcels
    if (answers?.length !== parcels.length) {
      const counts = `${answers?.length ?? 'none'} of ${parcels.length} requests`
      return this.settle(this.unknown(new StoreUnavailableError(`${this.courier.store.name} answered ${counts}`)))
    }
    this.#traffic.out -= parcels.length
    for (let i = 0; i < parcels.length; i++) {
      const answer =
        answers[i] ?? this.#questions.unknown(this.courier.explain(new Error('one request was not answered')))
      const { resolve } = parcels[i] as Parcel<I, O>
      // One that throws must not cost the others their answers. Without a closure: this runs once per lock.
      try {
        resolve(answer)
      } catch (error) {
        warn(error)
      }
    }
  }

  protected override unknown(error: unknown): O[] {
    return this.#items.map(() => this.#questions.unknown(error))
  }

  protected override late(answers: O[]): void {
    if (answers?.length !== this.#items.length) return
    for (const [i, answer] of answers.entries()) if (answer) this.#questions.late?.(this.#items[i] as I, answer)
  }
}

/** Collects the questions of one kind. */
export class Channel<I extends { key: string }, O> {
  readonly #courier: Courier
  readonly #questions: Questions<I, O>
  readonly #traffic: Traffic
  #parcels: Parcel<I, O>[] = []

  constructor(courier: Courier, traffic: Traffic, questions: Questions<I, O>) {
    this.#courier = courier
    this.#traffic = traffic
    this.#questions = questions
  }

  send(item: I): Promise<O> {
    return new Promise((resolve) => this.post(item, resolve))
  }

  post(item: I, resolve: (answer: O) => void): void {
    // With nothing else out there is also nothing that it could overtake. What nobody awaits may wait for who does.
    const atOnce = this.#traffic.out++ === 0 && this.#traffic.alone >= LONERS && !this.#questions.inBackground
    if (atOnce) return this.#dispatch([{ item, resolve }])
    this.#parcels.push({ item, resolve })
    // After the microtasks that this turn still has: whoever else was just answered gets aboard.
    if (this.#parcels.length === 1) queueMicrotask(this.#flushNextTick)
  }

  /** By itself and at once: its answer may take `extraMs` longer, and the others should not wait for it. */
  sendAlone(item: I, extraMs: number): Promise<O> {
    this.#traffic.out++
    return new Promise((resolve) => this.#dispatch([{ item, resolve }], extraMs))
  }

  readonly #flushNextTick = (): void => process.nextTick(this.#flush)

  readonly #flush = (): void => {
    const parcels = this.#parcels
    this.#parcels = []
    this.#traffic.alone = this.#traffic.out === 1 ? this.#traffic.alone + 1 : 0
    if (parcels.length === 1) this.#dispatch(parcels)
    else for (const batch of this.#batches(parcels)) this.#dispatch(batch)
  }

  #dispatch(batch: readonly Parcel<I, O>[], extraMs = 0): void {
    const courier = this.#courier
    const items = batch.length === 1 ? [(batch[0] as Parcel<I, O>).item] : batch.map((parcel) => parcel.item)
    let answers: Awaitable<O[]> | undefined
    let failure: unknown
    // First they leave, then comes what is needed when they are answered.
    try {
      answers = this.#questions.call(items)
    } catch (error) {
      failure = error ?? new Error('the store threw nothing')
    }
    const sent = new Batch(courier, this.#questions, batch, { items, traffic: this.#traffic })
    if (failure === undefined) sent.await(answers as Awaitable<O[]>, courier.store.timeoutMs + extraMs)
    else sent.fail(failure)
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
    const most = Math.min(
      store.maxBatch ?? Number.POSITIVE_INFINITY,
      this.#questions.atMost ?? Number.POSITIVE_INFINITY,
    )
    const batches: Parcel<I, O>[][] = []
    for (const group of byPartition.values()) {
      if (group.length <= most) batches.push(group)
      else for (let i = 0; i < group.length; i += most) batches.push(group.slice(i, i + most))
    }
    return batches
  }
}
