/**
 * The store itself: the contract of store.ts, in scripts.
 *
 * @module
 */
import { InvalidOptionError, StoreUnavailableError, UnsupportedError } from '../../errors.js'
import { type Duration, milliseconds } from '../../kit/duration.js'
import {
  ALL,
  type Answer,
  type Claim,
  type Failure,
  type HolderView,
  type Lease,
  type Limit,
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
import type { Adapter, Reply } from './adapter.js'
import { Bells } from './bells.js'
import { Eviction } from './eviction.js'
import { Foreigners } from './foreigners.js'
import { Listing } from './listing.js'
import { type Index, Names } from './names.js'
import { answerOf, answersOf, releasedOf, renewedOf, takenOf, tooLate, viewOf } from './replies.js'
import { type Scripts, type Sources, composeScripts, embedded } from './scripts.js'
import { Transport } from './transport.js'

export interface RedisStoreOptions {
  /** Stands before every key, so that several applications share one Redis. Default: nothing, `lock:<name>`. */
  prefix?: string
  /** A call that is not answered within this time counts as unknown. Default: `2s`. */
  timeout?: Duration
  /**
   * Keeps the connection for wake-ups open at all times, so that a holder who waits for nothing hears of a forced release
   * at once. Default: it opens when somebody waits; otherwise a forced release is noticed at the next heartbeat.
   */
  alwaysListen?: boolean
  /** Lists holders who are not ours as well, found by SCAN for at most 5 % of the time. Default: true. */
  listForeign?: boolean
  /** Grants locks on a server that is evicting keys, and so may drop them without a word. Default: false. */
  allowEviction?: boolean
}

/** One key per claim and the index: a call touches at most 250 keys, and holds the server up for about a millisecond. */
const MAX_BATCH = 249
const DAY_MS = 86_400_000
const HOUR_MS = 3_600_000

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
    const { prefix = '', timeout = '2s', alwaysListen = false, listForeign = true, allowEviction = false } = options
    if (typeof prefix !== 'string' || prefix.includes('\0'))
      throw new InvalidOptionError('prefix', prefix, 'a text without NUL')
    this.timeoutMs = milliseconds('timeout', timeout, { min: 1, max: 2 ** 31 - 1 })
    this.#adapter = adapter
    this.#closeClient = closeClient
    this.#names = new Names(adapter.keyPrefix, prefix, adapter.cluster)
    this.#scripts = composeScripts(sources, adapter.cluster)
    this.#transport = new Transport(adapter, this.timeoutMs)
    this.#eviction = allowEviction ? undefined : new Eviction(adapter)
    this.#foreigners = listForeign ? new Foreigners(adapter, this.#names, this.timeoutMs / 2) : undefined
    this.#listing = new Listing(this.#transport, this.#names, this.#scripts, this.#foreigners)
    this.#bells = new Bells(adapter, this.#names, {
      timeoutMs: this.timeoutMs,
      always: alwaysListen,
      onRevoked: () => this.#doubt(),
      findOut: (channel) => this.#transport.run(this.#scripts.list, [channel], []),
    })
    adapter.onDoubt(() => {
      for (const index of this.#names.indexes) index.warmUntil = index.announcedUntil = 0
      this.#bells.refresh()
      this.#doubt()
    })
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
      await this.#announce(index, Math.max(...part.map(({ ttlMs }) => ttlMs)), performance.now())
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
    return this.#byIndex(leases, false, (part, index) => {
      const args = part.map(({ owner }) => owner)
      const read = (reply: Reply): Released[] => answersOf(reply, part.length).map(releasedOf)
      return this.#transport.ask(this.#scripts.release, this.#keys(part, index), args, read)
    })
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#bells.watch(key, listener)
  }

  onDoubt(listener: () => void): () => void {
    this.#doubters.add(listener)
    return () => this.#doubters.delete(listener)
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
      const reply = await this.#transport.run(this.#scripts.take, this.#meters(part), termsOfTakes(part))
      return part.map((_, i) => takenOf(reply as Reply[], i * 4))
    })
  }

  #meters(requests: readonly TakeRequest[]): string[] {
    const meters: string[] = []
    for (const { key, limits } of requests) {
      for (let i = 0; i < limits.length; i++) meters.push(this.#names.meter(key, i, limits[i] as Limit))
    }
    return meters
  }

  async now(): Promise<number> {
    return Number(await this.#transport.run(this.#scripts.list, [], [])) / 1_000
  }

  close(): Promise<void> {
    this.#closing ??= this.#end()
    return this.#closing
  }

  async #end(): Promise<void> {
    this.#bells.close()
    this.#foreigners?.close()
    this.#adapter.detach()
    this.#doubters.clear()
    await this.#closeClient?.()
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
    const args = [atomic ? 'all' : index.clock.deadline(sentAt + this.timeoutMs)]
    for (const claim of claims) args.push(claim.owner, String(wholeMs(claim.ttlMs)), termsOf(claim))
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
    if (now < index.warmUntil && ttlMs <= DAY_MS && this.#adapter.ready()) return undefined
    if (!this.#adapter.ready()) {
      return this.#transport.whenReady().then(() => this.#prepare(index, ttlMs, performance.now()))
    }
    const judged = this.#eviction?.check(now)
    const known = this.#announce(index, ttlMs, now)
    const settled = (): void => {
      if (!this.#eviction?.refuses)
        index.warmUntil = Math.min(this.#eviction?.dueAt ?? Number.POSITIVE_INFINITY, index.announcedUntil)
    }
    if (!judged && !known) return void settled()
    return Promise.all([judged, known]).then(settled)
  }

  /** Tells the directory that this index is in use: every few hours, or for longer leases. Only those who list depend on it. */
  #announce(index: Index, ttlMs: number, now: number): Promise<void> | undefined {
    const neededMs = Math.max(DAY_MS, ttlMs)
    if (index.announcedUntil >= now + neededMs - DAY_MS + 1) return undefined
    index.announcedUntil = now + neededMs - DAY_MS + HOUR_MS
    const args = [index.name, String(Math.ceil(neededMs + 3 * HOUR_MS))]
    return this.#transport.run(this.#scripts.index, [this.#names.directory], args).then(
      () => {},
      () => {
        index.announcedUntil = 0
      },
    )
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

/** Each group in a call of its own, the answers in the order of the items. */
async function regrouped<I, O, G>(
  items: readonly I[],
  groupOf: (item: I) => G,
  call: (part: I[], group: G) => Promise<O[]>,
): Promise<O[]> {
  const groups = new Map<G, number[]>()
  for (const [i, item] of items.entries()) {
    const group = groupOf(item)
    const members = groups.get(group)
    if (members) members.push(i)
    else groups.set(group, [i])
  }
  const answers: O[] = []
  await Promise.all(
    [...groups].map(async ([group, members]) => {
      const part = await call(
        members.map((i) => items[i] as I),
        group,
      )
      for (const [at, i] of members.entries()) answers[i] = part[at] as O
    }),
  )
  return answers
}

/** Redis counts whole milliseconds. Never more than asked for, and never none. */
function wholeMs(ms: number): number {
  return Math.max(Math.floor(ms), 1)
}

/** take.lua says how. Most takes are of one limiter and cost the same: that is then said once. */
function termsOfTakes(requests: readonly TakeRequest[]): string[] {
  const sets = new Map<readonly Limit[], number>()
  const args: string[] = ['']
  for (const { limits } of requests) {
    if (sets.has(limits)) continue
    sets.set(limits, sets.size + 1)
    args.push(String(limits.length))
    for (const { algorithm, limit, perMs, burst } of limits) {
      args.push(algorithm === 'token-bucket' ? 'b' : 'w', String(limit), String(perMs), String(burst))
    }
  }
  args[0] = String(sets.size)
  const [first] = requests
  if (first && sets.size === 1 && requests.every(({ cost }) => cost === first.cost)) {
    args.push('=', '1', String(first.cost))
  } else for (const { limits, cost } of requests) args.push(String(sets.get(limits)), String(cost))
  return args
}

/** acquire.lua says how. An exclusive claim without further wishes, the usual one, is written as short as can be. */
function termsOf({ weight, capacity, placeMs, announce, steal, value, ttlMs }: Claim): string {
  const place = placeMs !== undefined && placeMs > 0 ? String(wholeMs(placeMs)) : ''
  // Long leases take the long way, which sees to it that the index outlives them.
  if (weight === ALL && !announce && !steal && value === undefined && ttlMs < DAY_MS / 2) return place
  const flags = `${announce ? 'a' : ''}${steal ? 's' : ''}${value === undefined ? '' : 'v'}`
  return `${weight}:${capacity}:${place || '0'}:${flags}:${value ?? ''}`
}
