/**
 * The store itself: the contract of store.ts, in scripts.
 *
 * @module
 */
import { StoreUnavailableError, UnsupportedError } from '../../errors.js'
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
import { ForeignHolders } from './foreign-holders.js'
import type { GrantMessage } from './grant-message.js'
import { regrouped } from './groups.js'
import { Inspector } from './inspect.js'
import { type Index, Keys } from './keys.js'
import { MasterWatch } from './master-watch.js'
import { type RedisStoreOptions, checkedOptions } from './options.js'
import { Readiness } from './readiness.js'
import { Replication } from './replication.js'
import { type Scripts, type Sources, composeScripts, embedded } from './scripts.js'
import { metersOf, termsOf } from './takes.js'
import { Transport } from './transport.js'
import { Wakeups } from './wakeups.js'

/** One key per claim and the index: a call touches at most 250 keys, and holds the server up for about a millisecond. */
const MAX_BATCH = 249

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
  readonly #readiness: Readiness
  readonly #replication: Replication | undefined
  readonly #masters: MasterWatch | undefined
  readonly #declareKeys: boolean
  readonly #closeClient: (() => Promise<unknown>) | undefined
  readonly #doubters = new Set<(affected?: (key: string) => boolean) => void>()
  #closing: Promise<void> | undefined

  constructor(
    adapter: Adapter,
    options: RedisStoreOptions,
    sources: Sources,
    closeClient: (() => Promise<unknown>) | undefined,
  ) {
    const { prefix, listForeign, allowEviction, replicas, withinMs, timeoutMs, declareKeys } = checkedOptions(
      options,
      adapter,
    )
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
    const shared = { keys: this.#keys, scripts: this.#scripts, transport: this.#transport }
    this.#readiness = new Readiness(adapter, { ...shared, allowEviction, timeoutMs })
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
      const pending = this.#readiness.prepare(index, longest, now)
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
      this.#readiness.announce(index, Math.max(...part.map(({ ttlMs }) => ttlMs)), sentAt)
      const args = part.flatMap(termsOfRenewal)
      const reply = await this.#transport.run(this.#scripts.renew, this.#named(part, index), args)
      const heard = (micros: number): void => this.#readiness.clockOf(index).heard(micros, sentAt)
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
    this.#readiness.forget(affected)
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
    const clock = this.#readiness.clockOf(index)
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
    this.#readiness.clockOf(index).heard(late, sentAt)
    const now = performance.now()
    if (now - sentAt < this.timeoutMs) return this.#ask(claims, index, atomic, now)
    throw new StoreUnavailableError('redis was asked too late: the request had been under way for too long')
  }

  /** What a pushed grant is worth now: it may have lain in a buffer, or its replicas may not have it. */
  #judge(key: string, { owner, token, endMs }: GrantMessage, deliver: (event: StoreEvent) => void): void {
    const index = this.#keys.index(key)
    const judge = (): void => {
      const ttlMs = this.#readiness.clockOf(index).leftMs(endMs, performance.now())
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
