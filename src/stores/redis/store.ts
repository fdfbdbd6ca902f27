/**
 * The store itself: the contract of store.ts, in scripts.
 *
 * @module
 */
import type {
  Answer,
  BatchSizes,
  Claim,
  Failure,
  Features,
  HolderView,
  LeaseId,
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
import { realWorld } from '../../util/world.js'
import type { Adapter, RedisReply } from '../../clients/redis/adapter.js'
import { AcquireCalls } from './acquire.js'
import {
  answerToRelease,
  answersToReleases,
  answersToRenewals,
  answersToTakes,
  entryOf,
  formOf,
  metersOf,
  termsOfReleases,
  termsOfRenewals,
  termsOfTakes,
  undecided,
  unknown,
} from './codec.js'
import type { GrantMessage } from './grant-inbox.js'
import { ForeignHolders, RedisInspector } from './inspect.js'
import { type Index, Keys } from './keys.js'
import { Readiness } from './readiness.js'
import { MasterWatch, Replication } from './replication.js'
import {
  type IndexedCall,
  type RedisScripts,
  type RedisScriptSources,
  Transport,
  byIndex,
  composeScripts,
  regrouped,
} from './transport.js'
import { RedisWakeups } from './wakeups.js'

/** MAX_BATCH: items in one call. With the index it names 250 keys, and keeps the server busy for about a millisecond. */
const MAX_BATCH = 249
/**
 * PIPELINED_BATCH: acquires, releases or takes in one call, so that the server decides one call while the next one is written. With 64
 * locks in flight, 24 and 32 were equally fast, 16 a little slower, and 64 took half as long again. No more than acquire.lua
 * decides on its slow path (`slow`), so that claims of one key are queued in the order of the calls.
 */
const PIPELINED_BATCH = 32

function longestOf(items: readonly { ttlMs: number }[]): number {
  let longest = 0
  for (const { ttlMs } of items) if (ttlMs > longest) longest = ttlMs
  return longest
}

/** The options, with their defaults. */
export interface RedisStoreSettings {
  prefix: string
  listForeign: boolean
  allowEviction: boolean
  replicas: number
  declareKeys: boolean
  timeoutMs: number
  withinMs: number
}

export class RedisStore implements Store {
  readonly name = 'redis'
  readonly expiry = 'timed'
  readonly features: Features = { queue: true, counting: true, atomic: MAX_BATCH, values: true }
  readonly maxBatch: BatchSizes = {
    acquire: PIPELINED_BATCH,
    renew: MAX_BATCH,
    release: PIPELINED_BATCH,
    take: PIPELINED_BATCH,
  }
  readonly timeoutMs: number

  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #scripts: RedisScripts
  readonly #transport: Transport
  readonly #wakeups: RedisWakeups
  readonly #inspector: RedisInspector
  readonly #foreign: ForeignHolders | undefined
  readonly #readiness: Readiness
  readonly #acquireCalls: AcquireCalls
  readonly #replication: Replication | undefined
  readonly #masters: MasterWatch | undefined
  readonly #declareKeys: boolean
  readonly #closeClient: (() => Promise<unknown>) | undefined
  readonly #lossListeners = new Set<(affected?: (key: string) => boolean) => void>()
  #closing: Promise<void> | undefined

  constructor(
    adapter: Adapter,
    settings: RedisStoreSettings,
    sources: RedisScriptSources,
    closeClient: (() => Promise<unknown>) | undefined,
  ) {
    const { prefix, listForeign, allowEviction, replicas, withinMs, timeoutMs, declareKeys } = settings
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
      onRecovered: (affected) => this.#serversChanged(affected),
    })
    const shared = { keys: this.#keys, scripts: this.#scripts, transport: this.#transport }
    this.#readiness = new Readiness(adapter, { ...shared, allowEviction, timeoutMs })
    const release = (leases: LeaseId[]): Promise<unknown> => this.release(leases)
    this.#replication =
      replicas > 0 ? new Replication(adapter, this.#keys, { replicas, withinMs, timeoutMs, release }) : undefined
    this.#foreign = listForeign ? new ForeignHolders(adapter, this.#keys, timeoutMs / 2) : undefined
    const sideKeys = (keys: readonly string[]): string[] => this.#sideKeys(keys)
    this.#inspector = new RedisInspector(this.#transport, this.#keys, this.#scripts, {
      foreign: this.#foreign,
      sideKeys,
      announced: () => this.#readiness.announced(),
    })
    // A script that pushes to the inbox of another process cannot declare it.
    const listening = { timeoutMs, inbox: !declareKeys }
    this.#wakeups = new RedisWakeups(adapter, this.#keys, listening, {
      findOut: (channel) => this.#transport.run(this.#scripts.time, [channel], []),
      probe: (inbox) => this.#transport.run(this.#scripts.probe, [inbox], []),
      judge: (key, grant, deliver) => this.#judge(key, grant, deliver),
    })
    this.#acquireCalls = new AcquireCalls({
      transport: this.#transport,
      script: this.#scripts.acquire,
      timeoutMs,
      clockOf: (index) => this.#readiness.clockOf(index),
      keysOf: (call) => this.#declared(call),
      subscriber: () => this.#wakeups.subscriber,
    })
    this.#masters = adapter.cluster
      ? new MasterWatch(adapter, this.#keys, (key) => this.#transport.run(this.#scripts.time, [key], []))
      : undefined
    adapter.onPossibleLoss((affected) => this.#serversChanged(affected))
  }

  partition(key: string): number {
    return this.#adapter.cluster ? this.#keys.slot(key) : 0
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    const atomic = options?.atomic === true
    const ask = (call: IndexedCall<Claim>): Promise<Answer[]> => {
      const asked = this.#askWhenReady(call, atomic)
      const replication = this.#replication
      return replication ? asked.then((answers) => replication.confirmGrants(call.items, answers, call.index)) : asked
    }
    return byIndex(this.#keys, claims, atomic, ask, undecided)
  }

  /**
   * Prepares the server, then sends the call. A reconnect during the preparation makes the store forget what it has
   * learned: it is then prepared again, within the time limit of the call.
   */
  #askWhenReady(call: IndexedCall<Claim>, atomic: boolean, askedAt?: number): Promise<Answer[]> {
    const now = realWorld.now()
    const pending = this.#readiness.prepare(call.index, longestOf(call.items), now)
    if (!pending) return this.#acquireCalls.send(call, atomic, now)
    return pending.then(() => {
      this.#acquireCalls.assertInTime(askedAt ?? now)
      return this.#askWhenReady(call, atomic, askedAt ?? now)
    })
  }

  renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    const ask = (call: IndexedCall<Renewal>): Promise<Renewed[]> => {
      const { items, index } = call
      const sentAt = realWorld.now()
      this.#readiness.announce(index, longestOf(items), sentAt)
      const heard = (micros: number): void => this.#readiness.clockOf(index).heard(micros, sentAt)
      const form = formOf(items)
      return this.#transport.ask(this.#scripts.renew, this.#declared(call), termsOfRenewals(items, form), (reply) => {
        const answers = answersToRenewals(reply, items, form, heard)
        return this.#replication?.confirmHandOffs(items, answers, index) ?? answers
      })
    }
    return byIndex(this.#keys, renewals, false, ask, unknown)
  }

  release(leases: readonly LeaseId[]): Promise<Released[]> {
    const lone = leases.length === 1 && !this.#declareKeys ? this.#releaseAlone(leases[0] as LeaseId) : undefined
    if (lone) return lone
    const ask = (call: IndexedCall<LeaseId>): Promise<Released[]> => {
      const { length } = call.items
      const read = (reply: RedisReply): Released[] => answersToReleases(reply, length)
      return this.#transport.ask(this.#scripts.release, this.#declared(call), termsOfReleases(call.items), read)
    }
    return byIndex(this.#keys, leases, false, ask, unknown)
  }

  /** Somebody may wait for it: so in fewer steps than `byIndex` takes. Undefined for a key that cannot be carried. */
  #releaseAlone({ key, owner, token }: LeaseId): Promise<Released[]> | undefined {
    const names = this.#keys.lone(key)
    return names && this.#transport.ask(this.#scripts.release, names, [entryOf(owner, token)], answerToRelease)
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#wakeups.watch(key, listener)
  }

  watchGrants(listener: (key: string | undefined, event: StoreEvent) => void): Watch {
    return this.#wakeups.watchGrants(listener)
  }

  watchRevoked(listener: (lease: LeaseId) => void): Watch {
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

  onPossibleLoss(listener: (affected?: (key: string) => boolean) => void): () => void {
    this.#adapter.attend()
    this.#lossListeners.add(listener)
    return () => this.#lossListeners.delete(listener)
  }

  holders(prefix: string): Promise<HolderView[]> {
    return this.#inspector.holders(prefix)
  }

  holderPages(prefix: string): AsyncIterable<HolderView[]> {
    return this.#inspector.pages(prefix)
  }

  inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    return this.#inspector.inspect(key)
  }

  revoke(key: string): Promise<HolderView[]> {
    return this.#inspector.revoke(key)
  }

  take(requests: readonly TakeRequest[]): Promise<(TakeAnswer | Failure)[]> {
    const ask = (part: readonly TakeRequest[]): Promise<(TakeAnswer | Failure)[]> => {
      const read = (reply: RedisReply): (TakeAnswer | Failure)[] => answersToTakes(reply, part.length)
      return this.#transport.ask(this.#scripts.take, metersOf(part, this.#keys), termsOfTakes(part), read)
    }
    if (requests.length === 0) return Promise.resolve([])
    if (!this.#adapter.cluster) return ask(requests)
    return regrouped(requests, ({ key }) => this.partition(key), ask, undecided)
  }

  async now(): Promise<number> {
    return Number(await this.#transport.run(this.#scripts.time, [this.#keys.directory], [])) / 1_000
  }

  outage(): unknown {
    const { lastError } = this.#adapter
    if (this.#adapter.ready()) return undefined
    // A client that connects for the first time is not an outage.
    return lastError ?? (this.#adapter.closed() ? this.#adapter.whyNotReady() : undefined)
  }

  /** What happens to the servers from now on is not heard of, so nothing that is known of them counts for the next instance. */
  idle(): void {
    this.#adapter.rest()
    this.#readiness.forget()
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
    this.#lossListeners.clear()
    await this.#closeClient?.()
  }

  /** The servers of these slots may be others than before, or know nothing any more. */
  #serversChanged(affected?: (slot: number) => boolean): void {
    this.#readiness.forget(affected)
    this.#wakeups.refresh()
    const concerns = affected && this.#adapter.cluster ? (key: string) => affected(this.#keys.slot(key)) : undefined
    for (const listener of [...this.#lossListeners]) listener(concerns)
  }

  #sideKeys(keys: readonly string[]): string[] {
    return this.#declareKeys ? keys.flatMap((key) => this.#keys.sideKeys(key)) : []
  }

  /** The keys of a call, with the side keys for servers that want them declared. */
  #declared({ items, names }: IndexedCall<{ key: string }>): string[] {
    return this.#declareKeys ? [...names, ...this.#sideKeys(items.map(({ key }) => key))] : names
  }

  /** What a pushed grant is worth now: it may have lain in a buffer, or its replicas may not have it. */
  #judge(key: string, grant: GrantMessage, deliver: (event: StoreEvent) => void): void {
    const index = this.#keys.index(key)
    if (!this.#replication || grant.token === 0n) return deliver(this.#eventOf(index, grant))
    const { owner, token } = grant
    this.#replication.confirm(index).then(
      () => deliver(this.#eventOf(index, grant)),
      () => {
        this.release([{ key, owner, token }]).catch(() => {})
        deliver({ type: 'freed', owner })
      },
    )
  }

  #eventOf(index: Index, { owner, token, endMs, tokens }: GrantMessage): StoreEvent {
    const ttlMs = this.#readiness.clockOf(index).leftMs(endMs, realWorld.now())
    // Over, or nobody knows: to ask costs one request and tells for certain.
    if (token === 0n || ttlMs <= 0) return { type: 'freed', owner }
    return { type: 'granted', owner, token, ttlMs, tokens }
  }
}
