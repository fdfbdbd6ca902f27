/**
 * The contract between leasehold and a place that keeps locks.
 *
 * Everything is a leased claim: an `owner` holds `weight` of a `capacity` under a `key`, until its time passes.
 * A store applies one rule, atomically:
 *
 * > Drop what expired. If nobody earlier still stands in line, and what is held plus `weight` fits `capacity`,
 * > grant; otherwise refuse, and remember the place in line if asked to.
 *
 * A store asks its server once and says what it heard. Waiting, renewing, deadlines, retries and time limits live in
 * `core/`, once for all stores. `docs/writing-a-store.md` explains; `leasehold/testing` checks.
 *
 * @module
 */

/** The whole of a capacity. An exclusive lock claims `ALL` of `ALL`, a reader `1` of `ALL` under the same key. */
export const ALL: number = 2 ** 31 - 1

/** Either the thing itself or a promise of it: a store in memory answers at once, and must not pay for a promise. */
export type Awaitable<T> = T | Promise<T>

/** One attempt to hold something. */
export interface Claim {
  /** `<kind>:<name>`, such as `lock:order:7` or `semaphore:api`. Kinds are words; names may hold anything but NUL. */
  key: string
  /**
   * Who asks. The same owner asking again gets its own grant again, with the same token and the value it has by now: the
   * reply to the first request may have been lost, and a request that arrives late must not undo what came after it.
   */
  owner: string
  /** How much of the capacity is wanted, 1 to `capacity`. */
  weight: number
  /** How much there is in all, in the eyes of this claim. */
  capacity: number
  /** How long the lease lasts unless renewed, by the store's own clock. */
  ttlMs: number
  /** Kept beside the lease for others to read: JSON text. */
  value?: string | undefined
  /**
   * If refused, keep (or refresh) a place in line for this long. Absent: do not stand in line.
   * A place outlives its owner's silence by no more than this, so a dead waiter cannot block the others.
   */
  placeMs?: number | undefined
  /** The store may keep the question open inside the server for this long before it refuses. `release` ends it. */
  blockMs?: number | undefined
  /** Tell everyone who watches the key when this lease begins, changes its value or ends (`changed`). */
  announce?: boolean | undefined
  /** Take it whoever holds it and whoever waits: all holders are revoked, and the grant goes to this claim. */
  steal?: boolean | undefined
}

/** The claim is held from now on. */
export interface Grant {
  granted: true
  /** The owner to renew and release with. Usually the claim's; a store that needs a fresh one per attempt says so here. */
  owner: string
  /** Larger than the token of every earlier exclusive grant of this key, also over crashes and lost data. */
  token: bigint
  /** For how long it was granted, counted from the moment the store decided. May be less than asked for, never more. */
  ttlMs: number
  /** When it was decided, for a store that shares the core's clock. Otherwise the moment of asking counts. */
  decidedAt?: number | undefined
  /** Aborts when the store learns that the lease has ended, such as a session whose connection broke. */
  lost?: AbortSignal | undefined
}

/** Busy: somebody else holds it, or stands in line before us. */
export interface Refusal {
  granted: false
  /** How many places in line are before ours, or before anyone who came now. */
  ahead?: number | undefined
  /**
   * The largest token that the store has granted so far, for this key or for any. A `granted` event with a token that is
   * not larger is news from before this refusal, and its lease may have ended. Absent: `granted` events are only hints,
   * and the core asks again.
   */
  newest?: bigint | undefined
  /** One of those who hold it now, and so are in the way. */
  blocker?: Blocker | undefined
}

/** Who is in the way, as far as the store can tell. */
export interface Blocker {
  owner: string
  /** What is left of its lease. Absent: it never expires, or ends with a session. */
  ttlMs?: number | undefined
  token?: bigint | undefined
  value?: string | undefined
  /** Not one of ours: its release rings no bell, so whoever waits has to look again by itself. */
  foreign?: boolean | undefined
}

/** This item could not be decided; the others of the batch may have been. It may or may not have been granted. */
export interface Failure {
  granted: 'unknown'
  error: unknown
}

export type Answer = Grant | Refusal | Failure

/** What identifies a grant or a queue entry. */
export interface Lease {
  key: string
  owner: string
  /**
   * The token of the grant. A grant of the same owner with another token is left alone and answered `gone`: the owner may
   * have been granted the key anew since, and a clean-up that arrives late must not end that. Absent: not known.
   */
  token?: bigint | undefined
}

/** Ask for more time for a grant, or for a queue entry. */
export interface Renewal extends Lease {
  /** From now on. Never shortens: a renewal that arrives late must not take away what a later one gave. */
  ttlMs: number
  /** Replace the value kept beside the lease, and tell everyone who watches the key (`changed`). */
  value?: string | undefined
  /**
   * Keep this owner's queue entry alive for `ttlMs` instead of a grant. If the owner was granted the key meanwhile, the
   * grant is left as it is, and answered `granted`. Only sent to a store whose `features.line` is true.
   */
  queued?: boolean | undefined
}

/**
 * `gone` is certain: expired, taken or never there. Renewal never creates. `unknown` changes nothing.
 *
 * For a queue entry: `waiting`, `granted` with what is left of the lease, or `gone`: the waiter then asks again. `ahead` is 0
 * for the first, else 1 or more, exact only where that costs nothing; `newest` as in a refusal. `blockedMs`, for the first:
 * 0 if it would be granted now (holders expired, or a notification was lost), else when the next lease of this key ends by
 * itself. The waiter asks then, and not before; without it the first asks with every heartbeat.
 */
export type Renewed =
  | { outcome: 'ours'; ttlMs: number }
  | { outcome: 'waiting'; ahead: number; newest?: bigint | undefined; blockedMs?: number | undefined }
  | { outcome: 'granted'; token: bigint; ttlMs: number }
  | { outcome: 'gone' }
  | { outcome: 'unknown'; error: unknown }

/**
 * `released`: it was ours until now. `gone`: it was not (any more). `awaited`, of use where there is no line: others listen
 * to this key, so whoever lets go of it and wants it back at once should not ask before they could.
 */
export type Released =
  | { outcome: 'released'; awaited?: boolean | undefined }
  | { outcome: 'gone' }
  | { outcome: 'unknown'; error: unknown }

/**
 * What a store tells those who watch a key. Only hints: an event may be late, doubled or missing.
 *
 * - `granted`: whoever let go handed the lease to this waiter, for `ttlMs` (its `placeMs`) from then on. To keep it, renew.
 *   Only those who watch by the store that asked for it count on hearing of it: nobody else need wake up.
 * - `freed`: this waiter is first in line and there is room; or, without an owner, whoever waits may ask.
 * - `changed`: an announced lease began, changed its value or ended. For those who look; whoever waits to be next is told
 *   by `granted` or `freed` besides.
 */
export type StoreEvent =
  | { type: 'granted'; owner: string; token: bigint; ttlMs: number }
  | { type: 'freed'; owner?: string | undefined }
  | { type: 'changed' }

/** A subscription to one key. */
export interface Watch {
  /** Settles when events that happen from now on will arrive: true, or false if they will not (yet). Never rejects. */
  ready: Awaitable<boolean>
  /** Whether events arrive right now. While false, whoever waits polls. */
  live: () => boolean
  close: () => void
}

/** One holder, to look at and never to decide by. */
export interface HolderView extends Lease {
  weight: number
  capacity: number
  /** Absent for foreign holders. */
  token?: bigint | undefined
  /** Absent: it never expires, or ends with a session. */
  ttlMs?: number | undefined
  /** How long it has been held, by the store's clock. */
  heldMs?: number | undefined
  value?: string | undefined
  foreign?: boolean | undefined
  /** How many stand in line for this key. */
  waiting?: number | undefined
  /** What else this store knows, such as a client's address. */
  detail?: Readonly<Record<string, string | number>> | undefined
}

/** One place in line. */
export interface WaiterView extends Lease {
  weight: number
  capacity: number
  /** How long it has stood there. */
  waitedMs?: number | undefined
  value?: string | undefined
  detail?: Readonly<Record<string, string | number>> | undefined
}

/** A rate: at most `limit` per `perMs`. */
export interface Limit {
  algorithm: 'token-bucket' | 'sliding-window'
  limit: number
  perMs: number
  /** Size of the bucket; for a sliding window equal to `limit`. */
  burst: number
}

/** Take `cost` from every limit of this key, or from none. */
export interface TakeRequest {
  /** `limiter:<name>:<key>` */
  key: string
  cost: number
  limits: readonly Limit[]
}

/** Of the limit that binds most. */
export interface TakeAnswer {
  allowed: boolean
  /** How much could still be taken now. */
  remaining: number
  /** 0 when allowed; `Infinity` when the cost can never pass. */
  retryAfterMs: number
  /** When everything is available again. */
  resetMs: number
}

/** What a store can carry beyond locks and shared locks. Asking for what it cannot is an `UnsupportedError`. */
export interface Features {
  /** Places in line are kept and served first come, first served: nobody starves. */
  line: boolean
  /** Any `weight` of any `capacity`. Without it only `ALL` of `ALL` and `1` of `ALL`; a semaphore is then made of slots. */
  counting: boolean
  /** `acquire(claims, { atomic: true })` grants all or none. */
  atomic: boolean
  /** A `value` can be read by others and outlives the process that wrote it. */
  values: boolean
}

/**
 * A place that keeps leases. A plain object; an optional method is a capability.
 *
 * Every method may be called at any time, also concurrently. A call that throws or rejects counts as `unknown` for
 * each of its items. A store sets no timers of its own around calls: the core gives up after `timeoutMs`, and a store
 * only has to make sure that work it was told to give up does not go on for ever.
 */
export interface Store {
  /** For messages: `memory`, `redis`. */
  readonly name: string
  /** `timed`: a lease ends when its time passes. `session`: also when our connection does. */
  readonly expiry: 'timed' | 'session'
  readonly features: Features
  /** How long the core waits for the answer of one call before it counts as unknown. */
  readonly timeoutMs: number
  /** At most this many items travel in one call. Absent: no bound. */
  readonly maxBatch?: number | undefined
  /** Longest lease this store grants. Absent: no bound. */
  readonly maxTtlMs?: number | undefined
  /** Answers without a promise and gains nothing from batches: each item is sent by itself, without any delay. */
  readonly immediate?: boolean | undefined
  /** Honours `blockMs`. Such claims travel alone, since their answer may take as long. */
  readonly blocks?: boolean | undefined

  /** Items whose partitions differ never travel in one call. Throws `InvalidOptionError` for a key it cannot carry. */
  partition?(key: string): string | number

  /** One attempt each, answered singly, in order. `atomic`: all or none. */
  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Awaitable<Answer[]>
  renew(renewals: readonly Renewal[]): Awaitable<Renewed[]>
  /**
   * With a token: ends this very grant, and nothing else. Without: whatever this owner has under the key, a grant, a queue
   * entry or a request still open (`blockMs`). Never anyone else's.
   */
  release(leases: readonly Lease[]): Awaitable<Released[]>

  /**
   * Be told about one key. Many watches of one key share what they cost. `only`: whoever waits to be next need not be told
   * anything else, if that is cheaper.
   */
  watch?(key: string, listener: (event: StoreEvent) => void, only?: 'granted'): Watch
  /**
   * Grants to whoever asks now would be heard, whatever the key: a watch for grants that is begun after the answer misses
   * nothing, and is live from the start.
   */
  hearsGrants?(): boolean
  /**
   * Be told of leases that were taken away by `revoke`, `steal` or somebody's hand in the store. One subscription for all
   * that this process holds; the core opens it with the first lock. A hint like every event: the renewal finds out too.
   */
  watchRevoked?(listener: (lease: Lease) => void): Watch
  /**
   * Be told when leases may have been lost without notice (a reconnect): the core then renews them at once. `affected`
   * tells which keys that concerns; absent: all.
   */
  onDoubt?(listener: (affected?: (key: string) => boolean) => void): () => void

  /** All holders of keys that begin with this prefix. */
  holders?(prefix: string): Awaitable<HolderView[]>
  /** The holders and the line of one key. */
  inspect?(key: string): Awaitable<{ holders: HolderView[]; waiters: WaiterView[] }>
  /** Break glass: ends every lease of this key, tells the holders, lets the next in. Returns whom it cut off. */
  revoke?(key: string): Awaitable<HolderView[]>

  /** Rate limiting: all limits of a request or none. */
  take?(requests: readonly TakeRequest[]): Awaitable<(TakeAnswer | Failure)[]>
  /** The store's own time in epoch milliseconds. */
  now?(): Awaitable<number>

  /** Why calls are not answered right now, as far as the store knows: the last connection error. For messages. */
  outage?(): unknown

  /** Closes what the store itself opened, never a client it was given. */
  close(): Promise<void>
}
