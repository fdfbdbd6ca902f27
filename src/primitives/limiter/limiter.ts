import type { Engine } from '../../core/engine.js'
import { isThenable } from '../../core/thenable.js'
import { nameFrom } from '../../core/name.js'
import { type Defaults, signalFrom } from '../../core/options.js'
import { ClosedError, InvalidOptionError, type LeaseholdError, UnsupportedError } from '../../errors.js'
import type { Failure, Limit, LimitState, TakeAnswer, TakeRequest } from '../../store.js'
import { knownOptions } from '../../util/options.js'
import { DenyCache } from './deny-cache.js'
import { LimiterQueue } from './queue.js'
import { costFrom, type LimiterOptions, limitsFrom, policyFrom } from './options.js'
import { StoreFallback } from './store-fallback.js'
import { SUPPORTED_BY } from '../supported-by.js'
import { TakeCoalescer } from './coalescer.js'

/** The answer of a limiter to one take. Of several limits, that of the one that binds most. */
export interface RateLimitResult {
  allowed: boolean
  /** How much could still be taken now. */
  remaining: number
  /** When to come again: 0 when allowed, `Infinity` when the cost can never pass. */
  retryAfterMs: number
  /** When everything is available again. */
  resetMs: number
  /** Each limit by itself, in order. May be absent where there is only one. */
  limits?: readonly LimitState[] | undefined
  /** The store did not answer, and this was decided by `onStoreError`. */
  storeError?: LeaseholdError
}

/** Bounds the checked keys that are remembered, and so the memory. A forgotten one is checked again. */
const MOST_CHECKED = 20_000

let takeRaw!: (limiter: Limiter, key: string, terms: Omit<TakeRequest, 'key'>) => Promise<TakeAnswer>

/**
 * At most so much per time, for each key, across all processes.
 *
 * @example
 * ```ts
 * const api = locks.limiter('api', { limit: 100, per: '1m' })
 * const { allowed, retryAfterMs } = await api.take(user)
 * if (!allowed) return tooManyRequests(retryAfterMs)
 * ```
 */
export class Limiter {
  readonly name: string
  /** What is enforced, with defaults filled in. */
  readonly limits: readonly Limit[]
  /**
   * Set if this process publishes its figures.
   *
   * @internal
   */
  counts: { allowed: number; refused: number } | undefined
  readonly #engine: Engine
  readonly #prefix: string
  /** Keys that have been checked, with the prefix: a string that is put together anew has to be hashed anew by each map. */
  readonly #checked = new Map<string, string>()
  /** The largest cost that can ever pass. */
  readonly #most: number
  readonly #coalescer: TakeCoalescer
  readonly #denied = new DenyCache()
  readonly #fallback: StoreFallback
  readonly #queues = new Map<string, LimiterQueue<RateLimitResult>>()
  readonly #closing: AbortSignal

  static {
    takeRaw = async (limiter, key, terms) => {
      const full = limiter.#check(key)
      if (limiter.#engine.closingReason)
        throw new ClosedError(`"${limiter.name}" takes nothing: locks.close() was called`)
      const answer = await limiter.#engine.batcher.take({ key: full, ...terms })
      if ('granted' in answer) throw answer.error
      return answer
    }
  }

  /** @internal */
  constructor(engine: Engine, defaults: Defaults, name: string, options: LimiterOptions, closing: AbortSignal) {
    if (!engine.store.take) {
      throw new UnsupportedError(`the ${engine.store.name} store cannot limit rates: use ${SUPPORTED_BY.limiter}`)
    }
    this.limits = limitsFrom(options)
    const policy = policyFrom(options.onStoreError)
    // A colon in the name must not make `a:b` with key `c` out of `a` with key `b:c`.
    this.#prefix = `${defaults.key('limiter', nameFrom('name', name).replace(/[%:]/g, encodeURIComponent))}:`
    this.name = name
    this.#engine = engine
    this.#closing = closing
    this.#most = Math.min(...this.limits.map((limit) => limit.burst))
    this.#fallback = new StoreFallback(engine, this.limits, policy)
    const { limits } = this
    const takeFromStore = (key: string, cost: number): Promise<TakeAnswer | Failure> =>
      Promise.resolve(engine.batcher.take({ key, cost, limits }))
    this.#coalescer = new TakeCoalescer(takeFromStore, this.#most)
  }

  /**
   * Takes `cost` from what `key` has left, at once or not at all; a cost of 0 only reads. A refusal is a value;
   * the promise rejects only when the store fails and `onStoreError` is `throw`.
   */
  take(key: string, cost = 1): Promise<RateLimitResult> {
    // The cached refusals come first and cost a single promise: a caller that ignores refusals takes this path all the time.
    if (typeof cost === 'number' && cost <= this.#most) {
      const now = this.#engine.world.now()
      const block = this.#denied.find(key, cost, now)
      if (block) {
        if (this.counts) this.counts.refused++
        const { remaining, until, whole, limits } = block
        const answer = { allowed: false, remaining, retryAfterMs: until - now, resetMs: whole - now }
        return Promise.resolve(limits ? { ...answer, limits: laterStates(limits, now - block.sentAt) } : answer)
      }
    }
    return this.#take(key, cost)
  }

  /**
   * Resolves when it could take `cost`. First come, first served within this process; `signal` cancels. Rejects with
   * `InvalidOptionError` if the cost could never pass.
   */
  async wait(
    key: string,
    options: { signal?: AbortSignal | undefined; cost?: number | undefined } = {},
  ): Promise<RateLimitResult> {
    knownOptions(options, ['signal', 'cost'])
    const cost = options.cost === undefined ? 1 : costFrom(options.cost)
    const signals = options.signal === undefined ? [this.#closing] : [signalFrom(options.signal), this.#closing]
    if (cost > this.#most || this.#most === 0) {
      throw new InvalidOptionError('cost', cost, `at most ${this.#most} here, or it would wait for ever`)
    }
    this.#check(key)
    for (const signal of signals) signal.throwIfAborted()
    let queue = this.#queues.get(key)
    if (!queue) {
      const take = (sum: number): Promise<RateLimitResult> => this.take(key, sum)
      queue = new LimiterQueue(this.#engine.world, take, () => this.#queues.delete(key))
      this.#queues.set(key, queue)
    }
    return queue.wait(cost, signals)
  }

  async #take(key: string, asked: unknown): Promise<RateLimitResult> {
    const cost = costFrom(asked)
    const full = this.#check(key)
    if (this.#engine.closingReason) throw new ClosedError(`"${this.name}" takes nothing: locks.close() was called`)
    // A limit of 0 refuses everything, so the store is not asked.
    if (this.#most === 0) return { allowed: false, remaining: 0, retryAfterMs: Number.POSITIVE_INFINITY, resetMs: 0 }
    const outage = this.#fallback.pending
    if (outage) return this.#fallback.decide(full, cost, outage)
    const sentAt = this.#engine.world.now()
    const { batcher } = this.#engine
    // A store in this process answers at once: takes that are made together need no request in common.
    const taking = batcher.answersAtOnce
      ? batcher.take({ key: full, cost, limits: this.limits })
      : this.#coalescer.take(full, cost)
    const answer = isThenable(taking) ? await taking : taking
    if ('granted' in answer) return this.#failed(full, cost, answer)
    this.#fallback.over()
    if (this.counts && cost > 0) this.counts[answer.allowed ? 'allowed' : 'refused']++
    if (!answer.allowed && answer.retryAfterMs < Number.POSITIVE_INFINITY) this.#block(key, cost, answer, sentAt)
    return answer
  }

  #block(key: string, cost: number, answer: TakeAnswer, sentAt: number): void {
    const { remaining, retryAfterMs, resetMs, limits } = answer
    const block = { cost, remaining, sentAt, until: sentAt + retryAfterMs, whole: sentAt + resetMs, limits }
    this.#denied.add(key, block, this.#engine.world.now())
  }

  #failed(key: string, cost: number, { error }: Failure): RateLimitResult {
    this.#fallback.began(error)
    this.#engine.events.emit('error', () => ({
      name: this.name,
      kind: 'limiter',
      metadata: undefined,
      doing: 'take',
      error,
    }))
    return this.#fallback.decide(key, cost, error)
  }

  #check(key: string): string {
    const known = this.#checked.get(key)
    if (known !== undefined) return known
    const full = this.#prefix + nameFrom('key', key)
    this.#engine.store.partition?.(full)
    if (this.#checked.size >= MOST_CHECKED) this.#checked.clear()
    this.#checked.set(key, full)
    return full
  }
}

/** One request to the store under a limiter's name, with limits of its own. Nothing is cached here. */
export function takeUnder(limiter: Limiter, key: string, terms: Omit<TakeRequest, 'key'>): Promise<TakeAnswer> {
  return takeRaw(limiter, key, terms)
}

/** What the store answered about each limit, `ms` later. */
function laterStates(limits: readonly LimitState[], ms: number): LimitState[] {
  return limits.map(({ remaining, nextMs }) => ({ remaining, nextMs: Math.max(nextMs - ms, 0) }))
}
