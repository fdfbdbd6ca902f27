/**
 * What a case works with: clients of the place under test, names nobody else uses, and patience.
 *
 * @module
 */
import { strict as assert } from 'node:assert'
import { randomBytes } from 'node:crypto'
import type { LocksOptions } from '../core/options.js'
import { type Locks, createLocks } from '../locks.js'
import { ALL, type Claim, type Lease, type Store, type StoreEvent } from '../store.js'
import { type Fault, type FaultyStore, faulty } from './faulty.js'

/** Where stores come from: one server, one file, one memory. */
export interface Setup {
  /** An independent client of the same place, as another process would have. */
  store(): Promise<Store>
  /** Called once, after all stores were closed. */
  close(): Promise<void>
}

/** How long to wait for what must happen at all before calling it missing. */
const PATIENCE_MS = 10_000

/** A lease that no case outlives: what it shows as held is held, however slow the machine. */
const LONG_MS = 60_000

const run = randomBytes(5).toString('hex')
let counter = 0

/** The machine was too slow for the attempt to mean anything. */
class TooSlow extends Error {}

/** Clients that cases share: their names never meet, and a connection per case would be slow. */
export class Premises {
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

export class Bench {
  readonly #premises: Premises
  readonly #first: Store
  readonly #afterwards: (() => unknown)[] = []
  #clients = 0
  /** Held for the whole of a case. */
  readonly longMs: number

  /** @internal */
  constructor(premises: Premises, first: Store) {
    this.#premises = premises
    this.#first = first
    this.longMs = Math.min(LONG_MS, first.maxTtlMs ?? LONG_MS)
  }

  /** Another client of the same place. The first four are shared with other cases: never close them. */
  client(): Promise<Store> {
    return this.#premises.client(this.#clients++ % 4)
  }

  async clients(count: number): Promise<[Store, Store, Store, ...Store[]]> {
    const all = Array.from({ length: Math.max(count, 3) }, () => this.client())
    return (await Promise.all(all)) as [Store, Store, Store, ...Store[]]
  }

  /** A client of this case's own, closed afterwards. */
  async separate(): Promise<Store> {
    const store = await this.#premises.separate()
    this.afterwards(() => store.close())
    return store
  }

  /** Locks on another client, or on this store. Closed after the case. */
  async locks(options: LocksOptions = {}, store?: Store): Promise<Locks> {
    const locks = createLocks(store ?? (await this.client()), { ttl: this.longMs, wait: this.patienceMs, ...options })
    this.afterwards(() => locks.close({ grace: 0 }))
    return locks
  }

  /** Another client that misbehaves on demand, and gives up on a call soon. */
  async faulty(...faults: Fault[]): Promise<FaultyStore> {
    return faulty(await this.client(), faults, { timeoutMs: 500 })
  }

  get patienceMs(): number {
    return this.#premises.patienceMs
  }

  /** Run when the case is over, last first, however it ended. */
  afterwards(run: () => unknown): void {
    this.#afterwards.unshift(run)
  }

  async clear(): Promise<void> {
    for (const run of this.#afterwards) await run()
  }

  /** A name that nobody else uses. */
  name(suffix = ''): string {
    return `kit-${run}-${++counter}${suffix}`
  }

  /** A key that nobody else uses. */
  key(suffix = '', kind = 'lock'): string {
    return `${kind}:${this.name(suffix)}`
  }

  /** Keys that may travel in one call. */
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

  /** An exclusive claim, long enough for the whole case. */
  claim(key: string, over: Partial<Claim> = {}): Claim {
    return { key, owner: this.owner(), weight: ALL, capacity: ALL, ttlMs: this.longMs, ...over }
  }

  /** A shared claim of the same key as the lock. */
  reader(key: string, over: Partial<Claim> = {}): Claim {
    return this.claim(key, { weight: 1, ...over })
  }

  now(): number {
    return performance.now()
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, ms))
  }

  /** Looks again and again until there is something to see. */
  async until<T>(what: string, look: () => T | Promise<T>): Promise<Exclude<T, undefined | null | false>> {
    const deadline = this.now() + this.#premises.patienceMs
    for (let pause = 1; ; pause = Math.min(pause * 2, 25)) {
      const seen = await look()
      if (seen !== undefined && seen !== null && seen !== false) return seen as Exclude<T, undefined | null | false>
      if (this.now() > deadline) assert.fail(`${what}: not within ${this.#premises.patienceMs} ms`)
      await this.sleep(pause)
    }
  }

  /** Settles as the promise does, or fails when it takes for ever. */
  async settled<T>(what: string, promise: T | PromiseLike<T>): Promise<T> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      const { patienceMs } = this.#premises
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
   * For what must be done before some time has passed: tries with ever longer times until the machine kept up.
   * Inside, say `t.mustBeBefore(deadline)` before judging: it gives up the attempt, not the case.
   */
  async unhurried(shortestMs: number, attempt: (ms: number) => Promise<void>): Promise<void> {
    for (let ms = shortestMs, tries = 1; ; ms *= 3, tries++) {
      try {
        return await attempt(ms)
      } catch (error) {
        if (!(error instanceof TooSlow) || tries === 5) throw error
      }
    }
  }

  mustBeBefore(deadline: number): void {
    // A hair of margin: stores count in whole milliseconds.
    if (this.now() > deadline - 5) this.tooSlow()
  }

  tooSlow(): never {
    throw new TooSlow('the machine is too slow to tell')
  }

  /** Hears which leases are taken away by force from now on. Closed after the case. */
  async revocations(store: Store): Promise<{ heard: Lease[]; of: (lease: Lease) => Promise<Lease> }> {
    const heard: Lease[] = []
    assert.ok(store.watchRevoked, 'the store tells of revocations')
    const watch = store.watchRevoked((lease) => heard.push(lease))
    this.afterwards(() => watch.close())
    assert.equal(await this.settled('the subscription is ready', watch.ready), true, 'revocations will be told')
    const of = (lease: Lease): Promise<Lease> =>
      this.until(`the revocation of ${lease.owner}`, () =>
        heard.find(({ key, owner }) => key === lease.key && owner === lease.owner),
      )
    return { heard, of }
  }

  /** Hears what happens to a key from now on. Closed after the case. */
  async ear(store: Store, key: string): Promise<Ear> {
    const heard: StoreEvent[] = []
    assert.ok(store.watch, 'the store has watch')
    const watch = store.watch(key, (event) => heard.push(event))
    this.afterwards(() => watch.close())
    assert.equal(await this.settled('the watch is ready', watch.ready), true, 'events will arrive')
    assert.equal(watch.live(), true, 'events arrive')
    return {
      heard,
      close: () => watch.close(),
      event: (wanted) =>
        this.until(`the event ${JSON.stringify(wanted)}`, () => heard.find((event) => matches(event, wanted))),
    }
  }
}

/** Somebody who listens at a key. */
export interface Ear {
  heard: StoreEvent[]
  close: () => void
  /** The first event like this one, waited for. */
  event<T extends StoreEvent['type']>(wanted: { type: T; owner?: string }): Promise<Extract<StoreEvent, { type: T }>>
}

function matches<T extends StoreEvent['type']>(
  event: StoreEvent,
  wanted: { type: T; owner?: string },
): event is Extract<StoreEvent, { type: T }> {
  if (event.type !== wanted.type) return false
  return wanted.owner === undefined || ('owner' in event && event.owner === wanted.owner)
}
