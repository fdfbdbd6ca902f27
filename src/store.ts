/**
 * The contract between leasehold and a place that keeps locks.
 *
 * Everything is a leased claim: an `owner` holds `weight` of a `capacity` under a `key`, until its time passes.
 * A store applies one rule, atomically:
 *
 * > Drop what expired. If no live queue entry is ahead, and what is held plus `weight` fits `capacity`, grant; otherwise
 * > refuse, and keep a queue entry if asked to.
 *
 * A store asks its server once and returns the answer. Waiting, renewing, deadlines, retries and time limits live in
 * `core/`, once for all stores. `docs/writing-a-store.md` explains; `leasehold/testing` checks.
 *
 * @module
 */

/** The whole of a capacity. An exclusive lock claims `ALL` of `ALL`, a reader `1` of `ALL` under the same key. */
export const ALL: number = 2 ** 31 - 1

/** A value or a promise of it: a store in memory answers at once, and must not pay for a promise. */
export type Awaitable<T> = T | Promise<T>

/** One attempt to hold something. */
export interface Claim {
  /** `<kind>:<name>`, such as `lock:order:7` or `semaphore:api`. Kinds are words; names may hold anything but NUL. */
  key: string
  /**
   * Who asks. The same owner asking again gets its own grant again, with the same token and its current value: the reply
   * to the first request may have been lost, and a request that arrives late must not undo what came after it.
   */
  owner: string
  /** How much of the capacity is wanted, 1 to `capacity`. */
  weight: number
  /** The total capacity that this claim assumes. */
  capacity: number
  /** How long the lease lasts unless renewed, by the store's own clock. */
  ttlMs: number
  /** Kept beside the lease for others to read: JSON text. */
  value?: string | undefined
  /**
   * If refused, keep (or refresh) a queue entry for this long. Absent: no queue entry.
   * An entry outlives its owner's silence by no more than this, so a dead waiter cannot block the others.
   */
  queueMs?: number | undefined
  /** The store may keep the request open inside the server for this long before it refuses. `release` ends it. */
  blockMs?: number | undefined
  /**
   * If granted, reserve this many tokens: that of the grant and the ones after it. Set while other acquisitions of
   * the process wait for the same lease: the core passes the lease on to them without a call, with one token each. A
   * store may ignore it: the core then makes a call for each lock.
   */
  tokens?: number | undefined
  /** Send `changed` to all subscribers of the key when this lease begins, changes its value or ends. */
  announce?: boolean | undefined
  /** Revoke all holders, overtake all waiters, and grant this claim. */
  steal?: boolean | undefined
  /**
   * True: the core renews the lease until it is released, so a store may keep it alive together with others of the
   * same ttl. Otherwise the lease has to end by itself when its time has passed, also if its process has died.
   */
  renewed?: boolean | undefined
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
  /**
   * So many tokens from `token` on are reserved for this grant: no other one of the key gets any of them, and every later one a larger
   * one, however this one ends. The store knows the lease by `token` all the time. Absent: 1.
   */
  tokens?: number | undefined
}

/** Busy: another owner holds it, or has a queue entry ahead of ours. */
export interface Refusal {
  granted: false
  /** How many queue entries are ahead of ours; without an entry of ours: how many there are. */
  ahead?: number | undefined
  /**
   * The largest token that the store has granted so far, for this key or for any. A `granted` event with a token that is
   * not larger is from before this refusal, and its lease may have ended. Absent: `granted` events are only hints,
   * and the core asks again.
   */
  newest?: bigint | undefined
  /** One of the holders that are in the way. */
  blocker?: Blocker | undefined
}

/** A holder that is in the way, as far as the store can tell. */
export interface Blocker {
  owner: string
  /** What is left of its lease. Absent: it never expires, or ends with a session. */
  ttlMs?: number | undefined
  token?: bigint | undefined
  value?: string | undefined
  /** Held by a client other than leasehold. Its release is not announced, so waiters must poll. */
  foreign?: boolean | undefined
}

/** This item could not be decided; the others of the batch may have been. It may or may not have been granted. */
export interface Failure {
  granted: 'unknown'
  error: unknown
}

export type Answer = Grant | Refusal | Failure

/** What identifies a grant or a queue entry. */
export interface LeaseId {
  key: string
  owner: string
  /**
   * The token of the grant. A grant of the same owner with another token is left alone and answered `gone`: the owner may
   * have been granted the key anew since, and a clean-up that arrives late must not end that. Absent: not known.
   */
  token?: bigint | undefined
}

/** Ask for more time for a grant, or for a queue entry. */
export interface Renewal extends LeaseId {
  /** From now on. Never shortens: a renewal that arrives late must not take away what a later one gave. */
  ttlMs: number
  /**
   * Replace the value kept beside the lease, and send `changed` to all subscribers of the key. The value may be the
   * record of a `runOnce`: its lease has to last for `ttlMs` even if this process dies, and to end then unless it is
   * renewed.
   */
  value?: string | undefined
  /**
   * Keep this owner's queue entry alive for `ttlMs` instead of a grant. If the owner was granted the key meanwhile, the
   * grant is left as it is, and answered `granted`. Only sent to a store whose `features.queue` is true.
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
 * `released`: it was ours until now. `gone`: it was not (any more). `hasWaiters`, for stores without a queue: other processes
 * subscribe to this key, so a process that wants it back at once waits until they had a chance to ask.
 */
export type Released =
  | { outcome: 'released'; hasWaiters?: boolean | undefined }
  | { outcome: 'gone' }
  | { outcome: 'unknown'; error: unknown }

/**
 * What a store sends to the subscribers of a key. Only hints: an event may be late, doubled or missing.
 *
 * - `granted`: the releasing process handed the lease to this waiter, for `ttlMs` (its `queueMs`) from then on. To keep it,
 *   renew. `tokens` as in a grant. Sent only through the store object that asked for it.
 * - `freed`: this waiter is first in the queue and there is room; or, without an owner, every waiter may ask.
 * - `changed`: an announced lease began, changed its value or ended. For observers; a waiter that wants the key is sent
 *   `granted` or `freed` besides.
 */
export type StoreEvent =
  | { type: 'granted'; owner: string; token: bigint; ttlMs: number; tokens?: number | undefined }
  | { type: 'freed'; owner?: string | undefined }
  | { type: 'changed' }

/** A subscription to one key. */
export interface Watch {
  /** Settles when events that happen from now on will arrive: true, or false if they will not (yet). Never rejects. */
  ready: Awaitable<boolean>
  /** Whether events arrive right now. While false, waiters poll. */
  live: () => boolean
  close: () => void
}

/** One holder, to look at and never to decide by. */
export interface HolderView extends LeaseId {
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
  /** How many queue entries this key has. */
  waiting?: number | undefined
  /** What else this store knows, such as a client's address. */
  detail?: Readonly<Record<string, string | number>> | undefined
}

/** One queue entry. */
export interface WaiterView extends LeaseId {
  weight: number
  capacity: number
  /** How long it has waited. */
  waitedMs?: number | undefined
  value?: string | undefined
  detail?: Readonly<Record<string, string | number>> | undefined
}

/**
 * A rate: at most `limit` per `perMs`.
 *
 * - `token-bucket`: refills steadily, up to `burst`.
 * - `sliding-window`: never more than `limit` in any stretch of `perMs`.
 * - `fixed-window`: a counter, for other libraries' rate limits. It counts what is above the limit too, and begins again
 *   `perMs` after its first take. Always the only limit of a request.
 */
export interface Limit {
  algorithm: 'token-bucket' | 'sliding-window' | 'fixed-window'
  limit: number
  perMs: number
  /** Size of the bucket; for a window equal to `limit`. */
  burst: number
  /** Windows only: whatever is refused begins a block of this length, after which everything is available again. */
  blockMs?: number | undefined
  /** Fixed window only: each further refusal makes the block this many times as long. Absent: only the first one blocks. */
  blockGrowth?: number | undefined
}

/** Take `cost` from every limit of this key, or from none. */
export interface TakeRequest {
  /** `limiter:<name>:<key>` */
  key: string
  /** 0 looks. Below 0 gives back, never more than was taken: the latest first. */
  cost: number
  limits: readonly Limit[]
  /** Forget what was taken (and blocks), and look. */
  reset?: boolean | undefined
}

/** Of the limit that binds most. */
export interface TakeAnswer {
  allowed: boolean
  /** How much could still be taken now. Below 0 in a fixed window that counted more than its limit. */
  remaining: number
  /** 0 when allowed; `Infinity` when the cost can never pass. */
  retryAfterMs: number
  /** When everything is available again. */
  resetMs: number
  /** Each limit by itself, in order. May be absent where one token bucket says it all. */
  limits?: readonly LimitState[] | undefined
}

/** Where one of several limits stands. */
export interface LimitState {
  remaining: number
  /** When one more is available; 0 when nothing is missing. */
  nextMs: number
}

/** What a store can carry beyond locks and shared locks. Asking for what it cannot is an `UnsupportedError`. */
export interface Features {
  /** Queue entries are kept and served first come, first served: no waiter starves. */
  queue: boolean
  /** Any `weight` of any `capacity`. Without it only `ALL` of `ALL` and `1` of `ALL`; a semaphore is then made of slots. */
  counting: boolean
  /**
   * `acquire(claims, { atomic: true })` grants all or none. A number: of at most so many claims, where that differs from `maxBatch`; more
   * names are acquired one by one.
   */
  atomic: boolean | number
  /** A `value` can be read by others and outlives the process that wrote it. */
  values: boolean
}

/** At most how many items travel in one call of each kind. */
export interface BatchSizes {
  acquire: number
  renew: number
  release: number
  take: number
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
  /**
   * How long the core waits for the answer of one call before it counts as unknown. 0: every answer is there when the
   * call returns, never as a promise. Each acquire, release and take is then sent by itself, at once: where there is
   * no round trip, batches gain nothing. The renewals of a heartbeat still travel in one call.
   */
  readonly timeoutMs: number
  /**
   * At most this many items travel in one call, of any kind or of each kind. Absent: no bound. Large calls save round trips. Small ones
   * overlap: the server decides one while the next one is written, where with a single large call server and client wait for each other.
   */
  readonly maxBatch?: number | Readonly<BatchSizes> | undefined
  /** Longest lease this store grants. Absent: no bound. */
  readonly maxTtlMs?: number | undefined
  /**
   * Honours `blockMs`: the server itself keeps a waiter in its queue, which needs no entry and no notification then. Such claims travel
   * alone, since their answer may take as long.
   */
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
  release(leases: readonly LeaseId[]): Awaitable<Released[]>

  /**
   * Subscribe to one key. Many subscriptions to one key share their cost.
   */
  watch?(key: string, listener: (event: StoreEvent) => void): Watch
  /**
   * Subscribe to the pushed grants of all keys that waiters of this store object asked for. While the subscription is
   * live, they need no `watch` of their own, and a refused waiter need not ask a second time. The event `freed` tells
   * its owner to ask: the store could not make the grant, or cannot tell how long it lasts. With a key of undefined
   * it tells all waiters to ask: pushes may have been lost. While the subscription is not live the core calls
   * `watch`, which has to exist besides.
   */
  watchGrants?(listener: (key: string | undefined, event: StoreEvent) => void): Watch
  /**
   * Subscribe to leases that were taken away by `revoke`, by `steal` or by hand in the store, or that ended with the connection
   * they were bound to: `broken` is its error then. One subscription for all that this process holds; the core opens it with the
   * first lock. A hint like every event: the next renewal finds out too. A grant whose connection broke before it was answered is
   * answered `unknown`, since the subscription may not be open yet.
   */
  watchRevoked?(listener: (lease: LeaseId, broken?: unknown) => void): Watch
  /**
   * Calls the listener when leases may have been lost without notice (a reconnect): the core then renews them at once.
   * `affected` tells which keys that concerns; absent: all.
   */
  onPossibleLoss?(listener: (affected?: (key: string) => boolean) => void): () => void

  /** All holders of keys that begin with this prefix. */
  holders?(prefix: string): Awaitable<HolderView[]>
  /**
   * The same in pages of at most 1,000, each read when it is asked for: `timeoutMs` bounds one page, not the whole listing.
   * In no particular order. A page may be empty, which only says that the listing goes on. Absent: `holders` is called.
   */
  holderPages?(prefix: string): AsyncIterable<HolderView[]>
  /** The holders and the queue of one key. */
  inspect?(key: string): Awaitable<{ holders: HolderView[]; waiters: WaiterView[] }>
  /** Break glass: ends every lease of this key, notifies the holders, grants to the next waiters. Returns the former holders. */
  revoke?(key: string): Awaitable<HolderView[]>

  /** Rate limiting: all limits of a request or none. */
  take?(requests: readonly TakeRequest[]): Awaitable<(TakeAnswer | Failure)[]>
  /** The store's own time in epoch milliseconds. */
  now?(): Awaitable<number>

  /** Why calls are not answered right now, as far as the store knows: the last connection error. For messages. */
  outage?(): unknown
  /**
   * The last instance that used the store was closed: take every listener off borrowed clients, and end connections opened beside
   * them. The store stays usable, and listens again when the next instance calls `onPossibleLoss` or asks for something.
   */
  idle?(): void

  /** Closes what the store itself opened, never a client it was given. */
  close(): Promise<void>
}
