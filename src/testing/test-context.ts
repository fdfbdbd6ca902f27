/**
 * What a case works with: clients of the server under test, names that no other case uses, and waits with a time limit.
 *
 * @module
 */
import { strict as assert } from 'node:assert'
import { randomBytes } from 'node:crypto'
import type { LocksOptions } from '../core/options.js'
import { type Locks, createLocks } from '../locks.js'
import { ALL, type Claim, type LeaseId, type Store, type StoreEvent } from '../store.js'
import { type Fault, type FaultyStore, faulty } from './faulty.js'
import { mustBeBefore, tooSlow, unhurried } from './unhurried.js'

/** The source of stores: one server, one file, or one memory. */
export interface Setup {
  /** Opens an independent client of the same server, as another process would have. */
  store(): Promise<Store>
  /** Called once, after all stores were closed. */
  close(): Promise<void>
}

/**
 * PATIENCE_MS: how long a case waits for something that must happen before it fails. A busy machine needs seconds for
 * what usually takes a few milliseconds, and a case that passes never waits for so long.
 */
const PATIENCE_MS = 30_000

/**
 * LOST_AFTER_MS: when the core gives up a call through a faulty store. A longer time makes every lost reply cost more; a
 * shorter one takes a real answer for lost when a disk or a server stands still.
 */
const LOST_AFTER_MS = 2_000

/**
 * LONG_MS: a lease that outlives every case. A case that shows a key as held must not fail because the machine was
 * slow.
 */
const LONG_MS = 60_000

const run = randomBytes(5).toString('hex')
let counter = 0

/** The clients that all cases share. Cases never use each other's names, and a connection per case would be slow. */
export class SharedClients {
  readonly #setup: Setup
  readonly #clients: Promise<Store>[] = []
  readonly patienceMs: number

  constructor(setup: Setup, patienceMs: number = PATIENCE_MS) {
    this.#setup = setup
    this.patienceMs = patienceMs
  }

  client(nth: number): Promise<Store> {
    return (this.#clients[nth] ??= this.#setup.store())
  }

  separate(): Promise<Store> {
    return this.#setup.store()
  }

  async close(): Promise<void> {
    for (const client of this.#clients) await (await client).close()
    await this.#setup.close()
  }
}

export class TestContext {
  readonly #shared: SharedClients
  readonly #first: Store
  readonly #afterwards: (() => unknown)[] = []
  #clients = 0
  /** A time to live that outlasts the case. */
  readonly longMs: number

  /** @internal */
  constructor(shared: SharedClients, first: Store) {
    this.#shared = shared
    this.#first = first
    this.longMs = Math.min(LONG_MS, first.maxTtlMs ?? LONG_MS)
  }

  /** Another client of the same server. The first four are shared with other cases: never close them. */
  client(): Promise<Store> {
    return this.#shared.client(this.#clients++ % 4)
  }

  async clients(count: number): Promise<[Store, Store, Store, ...Store[]]> {
    const all = Array.from({ length: Math.max(count, 3) }, () => this.client())
    return (await Promise.all(all)) as [Store, Store, Store, ...Store[]]
  }

  /** A client of this case alone, closed after the case. */
  async separate(): Promise<Store> {
    const store = await this.#shared.separate()
    this.afterwards(() => store.close())
    return store
  }

  /** Locks on another client, or on the given store. Closed after the case. */
  async locks(options: LocksOptions = {}, store?: Store): Promise<Locks> {
    const locks = createLocks(store ?? (await this.client()), { ttl: this.longMs, wait: this.patienceMs, ...options })
    this.afterwards(() => locks.close({ grace: 0 }))
    return locks
  }

  /** Another client that misbehaves on demand. Its timeout is short, so that lost replies cost little time. */
  async faulty(...faults: Fault[]): Promise<FaultyStore> {
    const client = await this.client()
    return faulty(client, faults, { timeoutMs: Math.min(LOST_AFTER_MS, client.timeoutMs || LOST_AFTER_MS) })
  }

  get patienceMs(): number {
    return this.#shared.patienceMs
  }

  /** Registers a clean-up that runs after the case, however it ended. The last one registered runs first. */
  afterwards(run: () => unknown): void {
    this.#afterwards.unshift(run)
  }

  async clear(): Promise<void> {
    for (const run of this.#afterwards) await run()
  }

  /** A name that no other case uses. */
  name(suffix = ''): string {
    return `kit-${run}-${++counter}${suffix}`
  }

  /** A key that no other case uses. */
  key(suffix = '', kind = 'lock'): string {
    return `${kind}:${this.name(suffix)}`
  }

  /** Keys of one partition: they may travel in one call. */
  keys(count: number, kind = 'lock'): string[] {
    const base = this.name()
    const plain = Array.from({ length: count }, (_, i) => `${kind}:${base}:${i}`)
    if (this.#together(plain)) return plain
    const tagged = Array.from({ length: count }, (_, i) => `${kind}:{${base}}:${i}`)
    if (this.#together(tagged)) return tagged
    const wanted = this.#first.partition?.(plain[0] as string)
    const found: string[] = []
    for (let i = 0; found.length < count && i < 1_000_000; i++) {
      const key = `${kind}:${base}:${i}`
      if (this.#first.partition?.(key) === wanted) found.push(key)
    }
    assert.equal(found.length, count, `no ${count} keys of one partition were found`)
    return found
  }

  #together(keys: readonly string[]): boolean {
    return new Set(keys.map((key) => this.#first.partition?.(key))).size <= 1
  }

  owner(suffix = ''): string {
    return `kit:${run}:${++counter}/1${suffix}`
  }

  /** An exclusive claim that outlasts the case. */
  claim(key: string, over: Partial<Claim> = {}): Claim {
    return { key, owner: this.owner(), weight: ALL, capacity: ALL, ttlMs: this.longMs, ...over }
  }

  /** A shared claim of the same key. */
  reader(key: string, over: Partial<Claim> = {}): Claim {
    return this.claim(key, { weight: 1, ...over })
  }

  now(): number {
    return performance.now()
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, ms))
  }

  /**
   * Lets this much time pass, by the clock that the store judges by too. A server whose clock was set back keeps what expires for longer: a
   * case that looks before would take that for an entry without an end.
   */
  async elapse(ms: number): Promise<void> {
    const from = await this.#first.now?.()
    await this.sleep(ms)
    if (from === undefined) return
    await this.until(`${ms} ms pass by the clock of the store`, async () => {
      const now = await this.#first.now?.()
      return now !== undefined && now - from >= ms
    })
  }

  /** Polls until the function returns something other than undefined, null or false. */
  async until<T>(what: string, look: () => T | Promise<T>): Promise<Exclude<T, undefined | null | false>> {
    const deadline = this.now() + this.#shared.patienceMs
    for (let pause = 1; ; pause = Math.min(pause * 2, 25)) {
      // Read before the look: a process that stood still past the deadline looks once more.
      const isLast = this.now() > deadline
      const seen = await look()
      if (seen !== undefined && seen !== null && seen !== false) return seen as Exclude<T, undefined | null | false>
      if (isLast) assert.fail(`${what}: not within ${this.#shared.patienceMs} ms`)
      await this.sleep(pause)
    }
  }

  /** Settles as the promise does, or fails if it takes longer than `patienceMs`. */
  async settled<T>(what: string, promise: T | PromiseLike<T>): Promise<T> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      const { patienceMs } = this.#shared
      timer = setTimeout(
        () => reject(new assert.AssertionError({ message: `${what}: not within ${patienceMs} ms` })),
        patienceMs,
      )
    })
    try {
      return await Promise.race([promise, late])
    } finally {
      clearTimeout(timer)
    }
  }

  /**
   * Runs an attempt that has to finish within some time. If the machine was too slow, runs it again with three times as
   * long.
   * The attempt calls `t.mustBeBefore(deadline)` before it asserts anything: that abandons the attempt, not the case.
   */
  unhurried(shortestMs: number, attempt: (ms: number) => Promise<void>): Promise<void> {
    return unhurried(shortestMs, attempt)
  }

  mustBeBefore(deadline: number): void {
    mustBeBefore(deadline)
  }

  tooSlow(): never {
    return tooSlow()
  }

  /** Records which leases are revoked from now on. Closed after the case. */
  async revocations(store: Store): Promise<RevocationProbe> {
    const received: LeaseId[] = []
    assert.ok(store.watchRevoked, 'the store has watchRevoked()')
    const watch = store.watchRevoked((lease) => received.push(lease))
    this.afterwards(() => watch.close())
    assert.equal(
      await this.settled('the subscription is ready', watch.ready),
      true,
      'revocations are going to be reported',
    )
    assert.equal(watch.live(), true, 'revocations are reported')
    const of = (lease: LeaseId): Promise<LeaseId> =>
      this.until(`the revocation of ${lease.owner}`, () =>
        received.find(({ key, owner }) => key === lease.key && owner === lease.owner),
      )
    return { received, of, close: () => watch.close() }
  }

  /** Records the events of a key from now on. Closed after the case. */
  async probe(store: Store, key: string): Promise<EventProbe> {
    const received: StoreEvent[] = []
    assert.ok(store.watch, 'the store has watch()')
    const watch = store.watch(key, (event) => received.push(event))
    this.afterwards(() => watch.close())
    assert.equal(await this.settled('the watch is ready', watch.ready), true, 'events are going to arrive')
    assert.equal(watch.live(), true, 'events arrive')
    return {
      received,
      close: () => watch.close(),
      event: (wanted) =>
        this.until(`the event ${JSON.stringify(wanted)}`, () => received.find((event) => matches(event, wanted))),
    }
  }
}

/** One subscription to revocations, and what it has reported. */
export interface RevocationProbe {
  received: LeaseId[]
  close: () => void
  /** Waits for the revocation of this lease. */
  of: (lease: LeaseId) => Promise<LeaseId>
}

/** One watch of a key, and the events that it has reported. */
export interface EventProbe {
  received: StoreEvent[]
  close: () => void
  /** Waits for the first event of this kind. */
  event<T extends StoreEvent['type']>(wanted: { type: T; owner?: string }): Promise<Extract<StoreEvent, { type: T }>>
}

function matches<T extends StoreEvent['type']>(
  event: StoreEvent,
  wanted: { type: T; owner?: string },
): event is Extract<StoreEvent, { type: T }> {
  if (event.type !== wanted.type) return false
  return wanted.owner === undefined || ('owner' in event && event.owner === wanted.owner)
}
