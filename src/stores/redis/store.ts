/**
 * The store itself: the contract of store.ts, in scripts.
 *
 * @module
 */
import { InvalidOptionError, StoreUnavailableError, UnsupportedError } from '../../errors.js'
import { type Duration, milliseconds } from '../../kit/duration.js'
import type {
  Answer,
  Claim,
  Failure,
  HolderView,
  Lease,
  Released,
  Renewal,
  Renewed,
  Store,
  StoreEvent,
  TakeAnswer,
  TakeRequest,
  WaiterView,
  Watch,
} from '../../store.js'
import { knownOptions } from '../../util/options.js'
import type { Adapter, Reply } from '../../clients/redis/adapter.js'
import {
  answerOf,
  answersOf,
  isLeftOver,
  releasedOf,
  renewedOf,
  takenOf,
  termsOfClaim,
  termsOfRenewal,
  tooLate,
  wholeMs,
} from './codec.js'
import { Eviction } from './eviction.js'
import { ForeignHolders } from './foreign-holders.js'
import type { GrantMessage } from './grant-message.js'
import { regrouped } from './groups.js'
import { Inspector } from './inspect.js'
import { type Index, Keys } from './keys.js'
import { MasterWatch } from './master-watch.js'
import { Replication } from './replication.js'
import { type Scripts, type Sources, composeScripts, embedded } from './scripts.js'
import { ServerClock } from './server-clock.js'
import { metersOf, termsOf } from './takes.js'
import { Transport } from './transport.js'
import { Wakeups } from './wakeups.js'

export interface RedisStoreOptions {
  /** Stands before every key, so that several applications share one Redis. Default: nothing, `lock:<name>`. */
  prefix?: string | undefined
  /** A call that is not answered within this time counts as unknown. Default: `2s`. */
  timeout?: Duration | undefined
  /** Lists holders who are not ours as well, found by SCAN for at most 5 % of the time. Default: true. */
  listForeign?: boolean | undefined
  /** Grants locks on a server that is evicting keys, and so may drop them without a word. Default: false. */
  allowEviction?: boolean | undefined
  /**
   * A grant counts only once so many replicas have it. If they do not acknowledge it in time, it is released, and the call
   * fails with `StoreUnavailableError`. Default: 0, replicas are not asked.
   */
  replicas?: number | undefined
  /** How long `replicas` may take to acknowledge a grant. Default: `100ms`. */
  within?: Duration | undefined
  /** Declares every key that a script may touch, for servers that insist on it. Not for a cluster. Default: false. */
  declareKeys?: boolean | undefined
}

const OPTIONS = ['prefix', 'timeout', 'listForeign', 'allowEviction', 'replicas', 'within', 'declareKeys']

/** One key per claim and the index: a call touches at most 250 keys, and holds the server up for about a millisecond. */
const MAX_BATCH = 249
const DAY_MS = 86_400_000
const HOUR_MS = 3_600_000
const ANNOUNCE_EVERY_MS = 600_000

/** A lone answer is not in a list. */
const released = (reply: Reply): Released[] => (Array.isArray(reply) ? reply.map(releasedOf) : [releasedOf(reply)])

/** The answers to the items of a group whose call failed. */
const undecided = (error: unknown): Failure => ({ granted: 'unknown', error })
const unknown = (error: unknown): { outcome: 'unknown'; error: unknown } => ({ outcome: 'unknown', error })

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
  readonly #keys: Keys
  readonly #scripts: Scripts
  readonly #transport: Transport
  readonly #wakeups: Wakeups
  readonly #inspector: Inspector
  readonly #foreign: ForeignHolders | undefined
  readonly #eviction: Eviction | undefined
  readonly #replication: Replication | undefined
  readonly #masters: MasterWatch | undefined
  readonly #declareKeys: boolean
  readonly #closeClient: (() => Promise<unknown>) | undefined
  /** By the address of the server. */
  readonly #clocks = new Map<string, ServerClock>()
  readonly #doubters = new Set<(affected?: (key: string) => boolean) => void>()
  #closing: Promise<void> | undefined

  constructor(
    adapter: Adapter,
    options: RedisStoreOptions,
    sources: Sources,
    closeClient: (() => Promise<unknown>) | undefined,
  ) {
    const { prefix, listForeign, allowEviction, replicas, withinMs, timeoutMs, declareKeys } = checked(options, adapter)
    this.timeoutMs = timeoutMs
    this.#adapter = adapter
    this.#closeClient = closeClient
    this.#declareKeys = declareKeys
    this.#keys = new Keys(adapter.keyPrefix, prefix, adapter.cluster)
    this.#scripts = composeScripts(sources, adapter.cluster)
    this.#transport = new Transport(adapter, {
      timeoutMs,
      probe: this.#scripts.time,
      anyKey: this.#keys.directory,
      onRecovered: (affected) => this.#doubtServers(affected),
    })
    this.#eviction = allowEviction ? undefined : new Eviction(adapter, timeoutMs)
    this.#replication =
      replicas > 0 ? new Replication(adapter, this.#keys, { replicas, withinMs, timeoutMs }) : undefined
    this.#foreign = listForeign ? new ForeignHolders(adapter, this.#keys, timeoutMs / 2) : undefined
    const sideKeys = (keys: readonly string[]): string[] => this.#sideKeys(keys)
    this.#inspector = new Inspector(this.#transport, this.#keys, this.#scripts, this.#foreign, sideKeys)
    this.#wakeups = new Wakeups(adapter, this.#keys, {
      timeoutMs,
      // The list of another process cannot be declared by whoever pushes to it.
      inbox: !declareKeys,
      findOut: (channel) => this.#transport.run(this.#scripts.time, [channel], []),
      probe: (inbox) => this.#transport.run(this.#scripts.probe, [inbox], []),
      judge: (key, grant, deliver) => this.#judge(key, grant, deliver),
    })
    this.#masters = adapter.cluster
      ? new MasterWatch(adapter, this.#keys, (key) => this.#transport.run(this.#scripts.time, [key], []))
      : undefined
    adapter.onDoubt((affected) => this.#doubtServers(affected))
  }

  partition(key: string): number {
    return this.#adapter.cluster ? this.#keys.slot(key) : 0
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    const atomic = options?.atomic === true
    const ask = (part: readonly Claim[], index: Index): Promise<Answer[]> => {
      let longest = 0
      for (const { ttlMs } of part) if (ttlMs > longest) longest = ttlMs
      const now = performance.now()
      const pending = this.#prepare(index, longest, now)
      const asked = pending
        ? pending.then(() => this.#askInTime(part, index, atomic, now))
        : this.#ask(part, index, atomic, now)
      return this.#replication ? asked.then((answers) => this.#confirmGrants(part, answers, index)) : asked
    }
    return this.#byIndex(claims, atomic, ask, undecided)
  }

  renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    const ask = async (part: readonly Renewal[], index: Index): Promise<Renewed[]> => {
      const sentAt = performance.now()
      this.#announce(index, Math.max(...part.map(({ ttlMs }) => ttlMs)), sentAt)
      const args = part.flatMap(termsOfRenewal)
      const reply = await this.#transport.run(this.#scripts.renew, this.#named(part, index), args)
      const heard = (micros: number): void => this.#clockOf(index).heard(micros, sentAt)
      const answers = answersOf(reply, part.length).map((answer, i) =>
        renewedOf(answer, wholeMs((part[i] as Renewal).ttlMs), heard),
      )
      return this.#replication ? this.#confirmHandOffs(part, answers, index) : answers
    }
    return this.#byIndex(renewals, false, ask, unknown)
  }

  release(leases: readonly Lease[]): Promise<Released[]> {
    const ask = (part: readonly Lease[], index: Index): Promise<Released[]> => {
      const args: string[] = []
      for (const { owner, token } of part) args.push(owner, token === undefined ? '' : String(token))
      return this.#transport.ask(this.#scripts.release, this.#named(part, index), args, released)
    }
    return this.#byIndex(leases, false, ask, unknown)
  }

  watch(key: string, listener: (event: StoreEvent) => void, only?: 'granted'): Watch {
    return this.#wakeups.watch(key, listener, only)
  }

  watchRevoked(listener: (lease: Lease) => void): Watch {
    const watch = this.#wakeups.watchRevoked(listener)
    // Somebody holds something from now on: see to it that another master in its place is noticed.
    const stop = this.#masters?.begin()
    return {
      ready: watch.ready,
      live: watch.live,
      close: () => {
        stop?.()
        watch.close()
      },
    }
  }

  hearsGrants(): boolean {
    return this.#wakeups.receivesAllGrants
  }

  onDoubt(listener: (affected?: (key: string) => boolean) => void): () => void {
    this.#adapter.attend()
    this.#doubters.add(listener)
    return () => this.#doubters.delete(listener)
  }

  holders(prefix: string): Promise<HolderView[]> {
    return this.#inspector.holders(prefix)
  }

  inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    return this.#inspector.inspect(key)
  }

  revoke(key: string): Promise<HolderView[]> {
    return this.#inspector.revoke(key)
  }

  async take(requests: readonly TakeRequest[]): Promise<(TakeAnswer | Failure)[]> {
    const ask = async (part: readonly TakeRequest[]): Promise<(TakeAnswer | Failure)[]> => {
      const reply = await this.#transport.run(this.#scripts.take, metersOf(part, this.#keys), termsOf(part))
      return part.map((_, i) => takenOf(reply as Reply[], i * 5))
    }
    if (requests.length === 0) return []
    return regrouped(requests, ({ key }) => this.partition(key), ask, undecided)
  }

  async now(): Promise<number> {
    return Number(await this.#transport.run(this.#scripts.time, [this.#keys.directory], [])) / 1_000
  }

  outage(): unknown {
    const { lastError } = this.#adapter
    if (this.#adapter.ready()) return undefined
    // A client that connects for the first time is not an outage.
    return lastError ?? (this.#adapter.closed() ? this.#adapter.trouble() : undefined)
  }

  idle(): void {
    this.#adapter.rest()
  }

  close(): Promise<void> {
    this.#closing ??= this.#end()
    return this.#closing
  }

  async #end(): Promise<void> {
    this.#masters?.close()
    this.#wakeups.close()
    this.#transport.close()
    this.#foreign?.close()
    this.#replication?.close()
    this.#adapter.detach()
    this.#doubters.clear()
    await this.#closeClient?.()
  }

  /** The servers of these slots may be others than before, or know nothing any more. */
  #doubtServers(affected?: (slot: number) => boolean): void {
    for (const index of this.#keys.indexes) {
      if (affected && !affected(index.slot)) continue
      index.warmUntil = index.announcedUntil = 0
      index.clock = undefined
    }
    this.#clocks.clear()
    this.#eviction?.forget()
    this.#wakeups.refresh()
    const concerns = affected && this.#adapter.cluster ? (key: string) => affected(this.#keys.slot(key)) : undefined
    for (const listener of [...this.#doubters]) listener(concerns)
  }

  #sideKeys(keys: readonly string[]): string[] {
    return this.#declareKeys ? keys.flatMap((key) => this.#keys.sideKeys(key)) : []
  }

  #named(items: readonly { key: string }[], index: Index): string[] {
    const keys = [index.name]
    for (const { key } of items) keys.push(this.#keys.plain(key))
    if (this.#declareKeys) keys.push(...this.#sideKeys(items.map(({ key }) => key)))
    return keys
  }

  /** What had to be settled before took its time: whoever asked at `askedAt` may have given up. */
  #askInTime(claims: readonly Claim[], index: Index, atomic: boolean, askedAt: number): Promise<Answer[]> {
    const now = performance.now()
    if (now - askedAt < this.timeoutMs) return this.#ask(claims, index, atomic, now)
    throw new StoreUnavailableError('redis did not answer in time, so that nothing was asked for')
  }

  #ask(claims: readonly Claim[], index: Index, atomic: boolean, sentAt: number): Promise<Answer[]> {
    const clock = this.#clockOf(index)
    const deadline = clock.deadline(sentAt + this.timeoutMs)
    const args = [atomic ? `*${deadline}` : deadline]
    for (const claim of claims) args.push(claim.owner, String(wholeMs(claim.ttlMs)), termsOfClaim(claim))
    args.push(this.#wakeups.subscriber)
    return this.#transport.ask(this.#scripts.acquire, this.#named(claims, index), args, (reply) => {
      const late = tooLate(reply)
      if (late !== undefined) return this.#askAgain(claims, index, atomic, { sentAt, late })
      const replies = answersOf(reply, claims.length)
      const heard = (micros: number): void => clock.heard(micros, sentAt)
      const left = claims.length > 1 && isLeftOver(replies.at(-1)) ? replies.findIndex(isLeftOver) : claims.length
      const answers: Answer[] = []
      for (let i = 0; i < left; i++) {
        const claim = claims[i] as Claim
        answers.push(answerOf(replies[i], claim, wholeMs(claim.ttlMs), heard))
      }
      const [first] = answers
      if (first?.granted === true && clock.isDue(sentAt)) clock.heardToken(Number(first.token), sentAt)
      return left < claims.length ? this.#askRest(answers, claims.slice(left), index) : answers
    })
  }

  /** What a script had no time for: it bounds how long it keeps the server. */
  async #askRest(answers: Answer[], rest: readonly Claim[], index: Index): Promise<Answer[]> {
    try {
      return [...answers, ...(await this.#ask(rest, index, false, performance.now()))]
    } catch (error) {
      return [...answers, ...rest.map(() => undecided(error))]
    }
  }

  /** Late by the server's clock. If it is not by ours, one of the clocks was set: ask once more, by the new time. */
  async #askAgain(
    claims: readonly Claim[],
    index: Index,
    atomic: boolean,
    { sentAt, late }: { sentAt: number; late: number },
  ): Promise<Answer[]> {
    this.#clockOf(index).heard(late, sentAt)
    const now = performance.now()
    if (now - sentAt < this.timeoutMs) return this.#ask(claims, index, atomic, now)
    throw new StoreUnavailableError('redis was asked too late: the request had been under way for too long')
  }

  /** What has to be settled before the first request, and now and then; undefined, as nearly always, when nothing has. */
  #prepare(index: Index, ttlMs: number, now: number): Promise<void> | undefined {
    if (!this.#adapter.ready()) {
      return this.#transport.whenReady().then(() => this.#prepare(index, ttlMs, performance.now()))
    }
    if (now < index.warmUntil && ttlMs <= DAY_MS) return undefined
    this.#announce(index, ttlMs, now)
    const address = this.#adapter.addressOf(index.slot)
    // A request without a deadline may lie in a frozen server, and be granted when whoever sent it is long dead.
    const heard = this.#clockOf(index).known ? undefined : this.#hearClock(index, now)
    const judged = address === undefined ? undefined : this.#eviction?.check(address, now)
    if (heard || judged) return Promise.all([heard, judged]).then(() => {})
    const dueAt = address === undefined ? undefined : this.#eviction?.dueAt(address)
    index.warmUntil = Math.min(dueAt ?? index.announcedUntil, index.announcedUntil)
    return undefined
  }

  #clockOf(index: Index): ServerClock {
    if (index.clock) return index.clock
    const address = this.#adapter.addressOf(index.slot) ?? ''
    let clock = this.#clocks.get(address)
    if (!clock) this.#clocks.set(address, (clock = new ServerClock()))
    index.clock = clock
    return clock
  }

  async #hearClock(index: Index, sentAt: number): Promise<void> {
    const micros = Number(await this.#transport.run(this.#scripts.time, [index.name], []))
    this.#clockOf(index).heard(micros, sentAt)
  }

  /** Tells the directory that this index is in use. Only those who list depend on it, so nobody waits for the answer. */
  #announce(index: Index, ttlMs: number, now: number): void {
    const neededMs = Math.max(DAY_MS, ttlMs)
    if (index.announcedUntil > now + neededMs - DAY_MS) return
    index.announcedUntil = now + neededMs - DAY_MS + ANNOUNCE_EVERY_MS
    const args = [index.name, String(Math.ceil(neededMs + HOUR_MS))]
    this.#transport.run(this.#scripts.index, [this.#keys.directory], args).catch(() => {
      index.announcedUntil = index.warmUntil = 0
    })
  }

  /** What a pushed grant is worth now: it may have lain in a buffer, or its replicas may not have it. */
  #judge(key: string, { owner, token, endMs }: GrantMessage, deliver: (event: StoreEvent) => void): void {
    const index = this.#keys.index(key)
    const judge = (): void => {
      const ttlMs = this.#clockOf(index).leftMs(endMs, performance.now())
      // Over, or nobody knows: to ask costs one request and tells for certain.
      if (token === 0n || ttlMs <= 0) deliver({ type: 'freed', owner })
      else deliver({ type: 'granted', owner, token, ttlMs })
    }
    if (!this.#replication || token === 0n) return judge()
    this.#replication.confirm(index).then(judge, () => {
      this.release([{ key, owner, token }]).catch(() => {})
      deliver({ type: 'freed', owner })
    })
  }

  async #confirmGrants(claims: readonly Claim[], answers: Answer[], index: Index): Promise<Answer[]> {
    const granted = answers.flatMap((answer, i) => {
      return answer.granted === true
        ? [{ key: (claims[i] as Claim).key, owner: answer.owner, token: answer.token }]
        : []
    })
    const error = await this.#unconfirmed(granted, index)
    return error ? answers.map((answer) => (answer.granted === true ? undecided(error) : answer)) : answers
  }

  async #confirmHandOffs(renewals: readonly Renewal[], answers: Renewed[], index: Index): Promise<Renewed[]> {
    const granted = answers.flatMap((answer, i) => {
      const { key, owner } = renewals[i] as Renewal
      return answer.outcome === 'granted' ? [{ key, owner, token: answer.token }] : []
    })
    const error = await this.#unconfirmed(granted, index)
    return error ? answers.map((answer) => (answer.outcome === 'granted' ? unknown(error) : answer)) : answers
  }

  /** Why these grants do not count; they have been released then, as far as that was possible. */
  async #unconfirmed(granted: Lease[], index: Index): Promise<unknown> {
    if (granted.length === 0) return undefined
    try {
      await this.#replication?.confirm(index)
      return undefined
    } catch (error) {
      await this.release(granted).catch(() => {})
      return error
    }
  }

  /** The core never mixes slots, but may mix kinds, which have an index each. */
  #byIndex<I extends { key: string }, O>(
    items: readonly I[],
    together: boolean,
    call: (part: readonly I[], index: Index) => Promise<O[]>,
    failed: (error: unknown) => O,
  ): Promise<O[]> {
    const [first] = items
    if (!first) return Promise.resolve([])
    const index = this.#indexOf(first)
    const same = items.length === 1 || items.every((item) => this.#indexOf(item) === index)
    if (same && !(index instanceof Error)) return call(items, index)
    if (together)
      throw new UnsupportedError('redis grants all or none only for keys of one kind and, on a cluster, of one slot')
    const ask = (part: readonly I[], group: Index | Error): Promise<O[]> => {
      if (group instanceof Error) throw group
      return call(part, group)
    }
    return regrouped(items, (item) => this.#indexOf(item), ask, failed)
  }

  /** Or why this key cannot be carried. */
  #indexOf({ key }: { key: string }): Index | Error {
    try {
      return this.#keys.index(key)
    } catch (error) {
      return error as Error
    }
  }
}

/** The options, with their defaults. */
interface Checked {
  prefix: string
  listForeign: boolean
  allowEviction: boolean
  replicas: number
  declareKeys: boolean
  timeoutMs: number
  withinMs: number
}

function checked(options: RedisStoreOptions, { cluster }: Adapter): Checked {
  const {
    prefix = '',
    timeout = '2s',
    listForeign = true,
    allowEviction = false,
    replicas = 0,
    within = '100ms',
    declareKeys = false,
  } = knownOptions(options, OPTIONS)
  if (typeof prefix !== 'string' || prefix.includes('\0'))
    throw new InvalidOptionError('prefix', prefix, 'a text without NUL')
  if (!Number.isInteger(replicas) || replicas < 0)
    throw new InvalidOptionError('replicas', replicas, 'a whole number, at least 0')
  if (declareKeys && cluster)
    throw new InvalidOptionError(
      'declareKeys',
      declareKeys,
      'false on a cluster, where a slot that moves would refuse every call',
    )
  return {
    prefix,
    listForeign,
    allowEviction,
    replicas,
    declareKeys,
    timeoutMs: milliseconds('timeout', timeout, { min: 1, max: 2 ** 31 - 1 }),
    withinMs: milliseconds('within', within, { min: 1, max: 60_000 }),
  }
}
