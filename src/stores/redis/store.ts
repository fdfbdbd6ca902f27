/**
 * The store itself: the contract of store.ts, in scripts.
 *
 * @module
 */
import { InvalidOptionError, StoreUnavailableError, UnsupportedError } from '../../errors.js'
import { type Duration, milliseconds } from '../../kit/duration.js'
import {
  type Answer,
  type Claim,
  type Failure,
  type HolderView,
  type Lease,
  type Released,
  type Renewal,
  type Renewed,
  type Store,
  type StoreEvent,
  type TakeAnswer,
  type TakeRequest,
  type WaiterView,
  type Watch,
} from '../../store.js'
import { knownOptions } from '../../util/options.js'
import type { Adapter, Reply } from '../../clients/redis/adapter.js'
import { Bells } from './bells.js'
import { termsOfClaim, wholeMs } from './claims.js'
import { Eviction } from './eviction.js'
import { Foreigners } from './foreigners.js'
import { regrouped } from './groups.js'
import { Listing } from './listing.js'
import { type Index, Names } from './names.js'
import { answerOf, answersOf, releasedOf, renewedOf, takenOf, tooLate, viewOf } from './replies.js'
import { type Scripts, type Sources, composeScripts, embedded } from './scripts.js'
import { metersOf, termsOf } from './takes.js'
import { Transport } from './transport.js'

export interface RedisStoreOptions {
  /** Stands before every key, so that several applications share one Redis. Default: nothing, `lock:<name>`. */
  prefix?: string | undefined
  /** A call that is not answered within this time counts as unknown. Default: `2s`. */
  timeout?: Duration | undefined
  /**
   * Keeps the connection for wake-ups open at all times, so that a holder who waits for nothing hears of a forced release
   * at once. Default: it opens when somebody waits; otherwise a forced release is noticed at the next heartbeat.
   */
  alwaysListen?: boolean | undefined
  /** Lists holders who are not ours as well, found by SCAN for at most 5 % of the time. Default: true. */
  listForeign?: boolean | undefined
  /** Grants locks on a server that is evicting keys, and so may drop them without a word. Default: false. */
  allowEviction?: boolean | undefined
}

const OPTIONS = ['prefix', 'timeout', 'alwaysListen', 'listForeign', 'allowEviction']

/** One key per claim and the index: a call touches at most 250 keys, and holds the server up for about a millisecond. */
const MAX_BATCH = 249
const DAY_MS = 86_400_000
const HOUR_MS = 3_600_000
const ANNOUNCE_EVERY_MS = 600_000

/** A lone answer is not in a list. */
const released = (reply: Reply): Released[] => (Array.isArray(reply) ? reply.map(releasedOf) : [releasedOf(reply)])

/** `sources`: other texts for the scripts, such as mutants that a test must find out. `closeClient`: for a client of our own. */
export function createRedisStore(
  adapter: Adapter,
  options: RedisStoreOptions = {},
  sources: Sources = embedded,
  closeClient?: () => Promise<unknown>,
): Store {
  return new RedisStore(adapter, options, sources, closeClient)
}

class RedisStore implements Store {
  readonly name = 'redis'
  readonly expiry = 'timed'
  readonly features = { line: true, counting: true, atomic: true, values: true }
  readonly maxBatch: number = MAX_BATCH
  readonly timeoutMs: number

  readonly #adapter: Adapter
  readonly #names: Names
  readonly #scripts: Scripts
  readonly #transport: Transport
  readonly #bells: Bells
  readonly #listing: Listing
  readonly #foreigners: Foreigners | undefined
  readonly #eviction: Eviction | undefined
  readonly #closeClient: (() => Promise<unknown>) | undefined
  readonly #doubters = new Set<() => void>()
  #closing: Promise<void> | undefined

  constructor(
    adapter: Adapter,
    options: RedisStoreOptions,
    sources: Sources,
    closeClient: (() => Promise<unknown>) | undefined,
  ) {
    const {
      prefix = '',
      timeout = '2s',
      alwaysListen = false,
      listForeign = true,
      allowEviction = false,
    } = knownOptions(options, OPTIONS)
    if (typeof prefix !== 'string' || prefix.includes('\0'))
      throw new InvalidOptionError('prefix', prefix, 'a text without NUL')
    this.timeoutMs = milliseconds('timeout', timeout, { min: 1, max: 2 ** 31 - 1 })
    this.#adapter = adapter
    this.#closeClient = closeClient
    this.#names = new Names(adapter.keyPrefix, prefix, adapter.cluster)
    this.#scripts = composeScripts(sources, adapter.cluster)
    const onRecovered = (): void => this.#doubtAll()
    this.#transport = new Transport(adapter, { timeoutMs: this.timeoutMs, probe: this.#scripts.list, onRecovered })
    this.#eviction = allowEviction ? undefined : new Eviction(adapter)
    this.#foreigners = listForeign ? new Foreigners(adapter, this.#names, this.timeoutMs / 2) : undefined
    this.#listing = new Listing(this.#transport, this.#names, this.#scripts, this.#foreigners)
    this.#bells = new Bells(adapter, this.#names, {
      timeoutMs: this.timeoutMs,
      always: alwaysListen,
      onRevoked: () => this.#doubt(),
      findOut: (channel) => this.#transport.run(this.#scripts.list, [channel], []),
      knock: (mailbox) => this.#transport.run(this.#scripts.knock, [mailbox], []),
    })
    adapter.onDoubt(() => this.#doubtAll())
  }

  partition(key: string): number {
    return this.#adapter.cluster ? this.#names.slot(key) : 0
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    const atomic = options?.atomic === true
    return this.#byIndex(claims, atomic, (part, index) => {
      let longest = 0
      for (const { ttlMs } of part) if (ttlMs > longest) longest = ttlMs
      const now = performance.now()
      const pending = this.#prepare(index, longest, now)
      if (!pending) return this.#ask(part, index, atomic, now)
      return pending.then(() => this.#ask(part, index, atomic, performance.now()))
    })
  }

  renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    return this.#byIndex(renewals, false, async (part, index) => {
      this.#announce(index, Math.max(...part.map(({ ttlMs }) => ttlMs)), performance.now())
      const args = part.flatMap(({ owner, ttlMs, value }) => [
        owner,
        String(wholeMs(ttlMs)),
        value === undefined ? '' : `=${value}`,
      ])
      const reply = await this.#transport.run(this.#scripts.renew, this.#keys(part, index), args)
      return answersOf(reply, part.length).map((answer, i) => renewedOf(answer, wholeMs((part[i] as Renewal).ttlMs)))
    })
  }

  release(leases: readonly Lease[]): Promise<Released[]> {
    const [lone] = leases
    // Somebody may wait for it.
    if (lone && leases.length === 1) {
      const { index, plain, base } = this.#names.of(lone.key)
      return this.#transport.ask(this.#scripts.release, [index.name, plain], [lone.owner, base], released)
    }
    return this.#byIndex(leases, false, (part, index) => {
      const args: string[] = []
      for (const { owner } of part) args.push(owner)
      return this.#transport.ask(this.#scripts.release, this.#keys(part, index), args, released)
    })
  }

  watch(key: string, listener: (event: StoreEvent) => void, only?: 'granted'): Watch {
    return this.#bells.watch(key, listener, only)
  }

  hearsGrants(): boolean {
    return this.#bells.hearsGrants
  }

  onDoubt(listener: () => void): () => void {
    this.#adapter.attend()
    this.#doubters.add(listener)
    return () => this.#doubters.delete(listener)
  }

  outage(): unknown {
    return this.#adapter.ready() ? undefined : this.#adapter.trouble()
  }

  holders(prefix: string): Promise<HolderView[]> {
    return this.#listing.holders(prefix)
  }

  inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    return this.#look(key, 'all')
  }

  async revoke(key: string): Promise<HolderView[]> {
    return (await this.#look(key, 'revoke')).holders
  }

  async take(requests: readonly TakeRequest[]): Promise<(TakeAnswer | Failure)[]> {
    return this.#byPartition(requests, async (part) => {
      const reply = await this.#transport.run(this.#scripts.take, metersOf(part, this.#names), termsOf(part))
      return part.map((_, i) => takenOf(reply as Reply[], i * 5))
    })
  }

  async now(): Promise<number> {
    return Number(await this.#transport.run(this.#scripts.list, [], [])) / 1_000
  }

  idle(): void {
    this.#adapter.rest()
  }

  close(): Promise<void> {
    this.#closing ??= this.#end()
    return this.#closing
  }

  async #end(): Promise<void> {
    this.#bells.close()
    this.#transport.close()
    this.#foreigners?.close()
    this.#adapter.detach()
    this.#doubters.clear()
    await this.#closeClient?.()
  }

  /** The server may be another than before, or know nothing any more. */
  #doubtAll(): void {
    for (const index of this.#names.indexes) index.warmUntil = index.announcedUntil = 0
    this.#bells.refresh()
    this.#doubt()
  }

  #doubt(): void {
    for (const listener of [...this.#doubters]) listener()
  }

  async #look(key: string, how: 'all' | 'revoke'): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    const keys = [this.#names.index(key).name, this.#names.plain(key)]
    const reply = await this.#transport.run(this.#scripts.look, keys, [how])
    return viewOf((reply as Reply[])[0], key)
  }

  #keys(items: readonly { key: string }[], index: Index): string[] {
    const keys = [index.name]
    for (const { key } of items) keys.push(this.#names.plain(key))
    return keys
  }

  #ask(claims: readonly Claim[], index: Index, atomic: boolean, sentAt: number): Promise<Answer[]> {
    const deadline = index.clock.deadline(sentAt + this.timeoutMs)
    const args = [atomic ? `*${deadline}` : deadline]
    for (const claim of claims) args.push(claim.owner, String(wholeMs(claim.ttlMs)), termsOfClaim(claim))
    args.push(this.#bells.ear)
    return this.#transport.ask(this.#scripts.acquire, this.#keys(claims, index), args, (reply) => {
      const late = tooLate(reply)
      if (late !== undefined) return this.#askAgain(claims, index, atomic, { sentAt, late })
      const replies = answersOf(reply, claims.length)
      const answers = claims.map((claim, i) => answerOf(replies[i], claim, wholeMs(claim.ttlMs)))
      const [first] = answers
      if (first?.granted === true && index.clock.isDue(sentAt)) index.clock.heard(Number(first.token), sentAt)
      return answers
    })
  }

  /** Late by the server's clock. If it is not by ours, one of the clocks was set: ask once more, by the new time. */
  async #askAgain(
    claims: readonly Claim[],
    index: Index,
    atomic: boolean,
    { sentAt, late }: { sentAt: number; late: number },
  ): Promise<Answer[]> {
    index.clock.heard(late, sentAt)
    const now = performance.now()
    if (now - sentAt < this.timeoutMs) return this.#ask(claims, index, atomic, now)
    throw new StoreUnavailableError('redis was asked too late: the question had been under way for too long')
  }

  /** What has to be settled before the first question, and now and then; undefined, as nearly always, when nothing has. */
  #prepare(index: Index, ttlMs: number, now: number): Promise<void> | undefined {
    if (!this.#adapter.ready()) {
      return this.#transport.whenReady().then(() => this.#prepare(index, ttlMs, performance.now()))
    }
    if (now < index.warmUntil && ttlMs <= DAY_MS) return undefined
    this.#announce(index, ttlMs, now)
    const judged = this.#eviction?.check(now)
    if (judged) return judged
    index.warmUntil = Math.min(this.#eviction?.dueAt ?? index.announcedUntil, index.announcedUntil)
    return undefined
  }

  /** Tells the directory that this index is in use. Only those who list depend on it, so nobody waits for the answer. */
  #announce(index: Index, ttlMs: number, now: number): void {
    const neededMs = Math.max(DAY_MS, ttlMs)
    if (index.announcedUntil > now + neededMs - DAY_MS) return
    index.announcedUntil = now + neededMs - DAY_MS + ANNOUNCE_EVERY_MS
    const args = [index.name, String(Math.ceil(neededMs + HOUR_MS))]
    this.#transport.run(this.#scripts.index, [this.#names.directory], args).catch(() => {
      index.announcedUntil = index.warmUntil = 0
    })
  }

  /** The core never mixes slots, but may mix kinds, which have an index each. */
  #byIndex<I extends { key: string }, O>(
    items: readonly I[],
    together: boolean,
    call: (part: readonly I[], index: Index) => Promise<O[]>,
  ): Promise<O[]> {
    const [first] = items
    if (!first) return Promise.resolve([])
    const index = this.#names.index(first.key)
    if (items.length === 1 || items.every(({ key }) => this.#names.index(key) === index)) return call(items, index)
    if (together)
      throw new UnsupportedError('redis grants all or none only for keys of one kind and, on a cluster, of one slot')
    return regrouped(items, ({ key }) => this.#names.index(key), call)
  }

  #byPartition<I extends { key: string }, O>(
    items: readonly I[],
    call: (part: readonly I[]) => Promise<O[]>,
  ): Promise<O[]> {
    if (items.length === 0) return Promise.resolve([])
    return regrouped(items, ({ key }) => this.partition(key), call)
  }
}
