/**
 * Leases in the memory of this process: for one process, for tests, and as the reference the other stores are judged by.
 *
 * @module
 */
import { type World, realWorld } from '../../kit/world.js'
import { knownOptions } from '../../util/options.js'
import type {
  Answer,
  Blocker,
  Claim,
  Grant,
  HolderView,
  Lease,
  Released,
  Renewal,
  Renewed,
  Store,
  StoreEvent,
  WaiterView,
} from '../../store.js'
import { Meters } from './meters.js'

/** The memory store answers at once, never with a promise. */
export interface MemoryStore extends Store {
  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Answer[]
  renew(renewals: readonly Renewal[]): Renewed[]
  release(leases: readonly Lease[]): Released[]
  holders(prefix: string): HolderView[]
  inspect(key: string): { holders: HolderView[]; waiters: WaiterView[] }
  revoke(key: string): HolderView[]
}

/** A store in the memory of this process. Give the same one to everybody who should exclude each other. */
export function memory(options: { world?: World } = {}): MemoryStore {
  return new Memory(knownOptions(options, ['world']).world ?? realWorld)
}

interface Holder {
  owner: string
  weight: number
  capacity: number
  expiresAt: number
  token: bigint
  since: number
  value: string | undefined
  announce: boolean
}

interface Place {
  claim: Claim
  placeMs: number
  expiresAt: number
  since: number
}

/** All that is known of one key. Forgotten some time after nobody holds it or waits for it any more. */
interface Entry {
  holders: Map<string, Holder> | undefined
  /** The usual case, one holder, without a map. Either this or `holders`. */
  sole: Holder | undefined
  /** First come, first served: a Map keeps the order of arrival. */
  line: Map<string, Place> | undefined
}

/** So many keys that nobody uses are kept: the next one who wants the same key need not begin anew. */
const MOST_IDLE = 1_000

/** Leases that ran out and whose key nobody asks for again are dropped this often. A short interval would cost, a long one keep memory. */
const SWEEP_MS = 10_000

const RELEASED: Released = { outcome: 'released' }
const GONE: { outcome: 'gone' } = { outcome: 'gone' }

class Memory implements MemoryStore {
  readonly name = 'memory'
  readonly expiry = 'timed'
  readonly features = { line: true, counting: true, atomic: true, values: true }
  readonly timeoutMs = 2_000
  readonly immediate = true

  readonly #world: World
  readonly #entries = new Map<string, Entry>()
  readonly #listeners = new Map<string, Set<(event: StoreEvent) => void>>()
  readonly #meters: Meters
  /** The last token of any key: one counter for all, so that nothing has to be kept per name. */
  #lastToken = 0
  /** How often a key fell idle since the last sweep. */
  #idle = 0
  /** Events wait here until the state is consistent: a listener may call straight back into the store. */
  #outbox: { key: string; event: StoreEvent }[] = []
  readonly #revokedListeners = new Set<(lease: Lease) => void>()
  #revoked: Lease[] = []
  #sweeping = false
  #behindAnswer: Renewed = GONE
  #behindAt = -1

  constructor(world: World) {
    this.#world = world
    this.#meters = new Meters(world)
  }

  acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Answer[] {
    const now = this.#world.now()
    if (claims.length === 1) {
      const answer = [this.#ask(claims[0] as Claim, now)]
      this.#deliver()
      return answer
    }
    if (options?.atomic) return this.#askTogether(claims, now)
    const answers = claims.map((claim) => this.#ask(claim, now))
    this.#deliver()
    return answers
  }

  renew(renewals: readonly Renewal[]): Renewed[] {
    const now = this.#world.now()
    let entry: Entry | undefined
    let entryKey: string | undefined
    const answers = renewals.map((renewal) => {
      // Ten thousand queue entries of one key travel in one call: what has expired is dropped once.
      if (renewal.key !== entryKey) entry = this.#entry((entryKey = renewal.key), now)
      return renewal.queued ? this.#renewQueued(entry, renewal, now) : this.#renew(entry, renewal, now)
    })
    this.#deliver()
    return answers
  }

  #renew(entry: Entry | undefined, { key, owner, token, ttlMs, value }: Renewal, now: number): Renewed {
    const holder = this.#find(entry, owner)
    if (!holder || (token ?? holder.token) !== holder.token) return GONE
    holder.expiresAt = Math.max(holder.expiresAt, now + ttlMs)
    if (value !== undefined) {
      holder.value = value
      this.#post(key, { type: 'changed' })
    }
    return { outcome: 'ours', ttlMs }
  }

  /** One answer for all who are not first: with ten thousand waiters, an object and a bigint for each would show. */
  #behind(): Renewed {
    if (this.#behindAt !== this.#lastToken) {
      this.#behindAt = this.#lastToken
      this.#behindAnswer = { outcome: 'waiting', ahead: 1, newest: BigInt(this.#lastToken) }
    }
    return this.#behindAnswer
  }

  #renewQueued(entry: Entry | undefined, { owner, ttlMs }: Renewal, now: number): Renewed {
    const holder = this.#find(entry, owner)
    if (holder) return { outcome: 'granted', token: holder.token, ttlMs: holder.expiresAt - now }
    const place = entry?.line?.get(owner)
    if (!entry || !place || place.expiresAt <= now) return GONE
    place.expiresAt = Math.max(place.expiresAt, now + ttlMs)
    if (entry.line?.keys().next().value !== owner) return this.#behind()
    const newest = BigInt(this.#lastToken)
    if (this.#fits(entry, place.claim)) return { outcome: 'waiting', ahead: 0, newest, blockedMs: 0 }
    const ends = this.#all(entry).map(({ expiresAt }) => expiresAt - now)
    return { outcome: 'waiting', ahead: 0, newest, blockedMs: Math.min(...ends) }
  }

  release(leases: readonly Lease[]): Released[] {
    const now = this.#world.now()
    if (leases.length === 1) {
      const answer = [this.#letGo(leases[0] as Lease, now)]
      this.#deliver()
      return answer
    }
    const answers = leases.map((lease) => this.#letGo(lease, now))
    this.#deliver()
    return answers
  }

  watch(key: string, listener: (event: StoreEvent) => void): { ready: true; live: () => true; close: () => void } {
    let listeners = this.#listeners.get(key)
    if (!listeners) this.#listeners.set(key, (listeners = new Set()))
    listeners.add(listener)
    const close = (): void => {
      listeners.delete(listener)
      if (listeners.size === 0 && this.#listeners.get(key) === listeners) this.#listeners.delete(key)
    }
    return { ready: true, live: () => true, close }
  }

  watchRevoked(listener: (lease: Lease) => void): { ready: true; live: () => true; close: () => void } {
    // A function of its own: the same listener may watch twice.
    const told = (lease: Lease): void => listener(lease)
    this.#revokedListeners.add(told)
    return { ready: true, live: () => true, close: () => void this.#revokedListeners.delete(told) }
  }

  holders(prefix: string): HolderView[] {
    const now = this.#world.now()
    return [...this.#entries.keys()].filter((key) => key.startsWith(prefix)).flatMap((key) => this.#views(key, now))
  }

  inspect(key: string): { holders: HolderView[]; waiters: WaiterView[] } {
    const now = this.#world.now()
    const holders = this.#views(key, now)
    const places = [...(this.#entries.get(key)?.line?.values() ?? [])].filter(({ expiresAt }) => expiresAt > now)
    const waiters = places.map(({ claim, since }) => ({
      key,
      owner: claim.owner,
      weight: claim.weight,
      capacity: claim.capacity,
      waitedMs: now - since,
      value: claim.value,
    }))
    return { holders, waiters }
  }

  revoke(key: string): HolderView[] {
    const now = this.#world.now()
    const cut = this.#views(key, now)
    const entry = this.#entries.get(key)
    if (entry) {
      this.#evict(key, entry)
      this.#serve(key, entry, now)
    }
    this.#deliver()
    return cut
  }

  take(requests: Parameters<NonNullable<Store['take']>>[0]): ReturnType<Meters['take']> {
    return this.#meters.take(requests)
  }

  now(): number {
    return this.#world.date()
  }

  async close(): Promise<void> {}

  /** All or none: tries, and takes back what it was given if one was refused. Nobody stands in line for it. */
  #askTogether(claims: readonly Claim[], now: number): Answer[] {
    const entries = claims.map((claim) => this.#entry(claim.key, now))
    for (const [i, claim] of claims.entries()) this.#serveBefore(entries[i], claim, now)
    const posted = this.#outbox.length
    const had = claims.map(({ owner }, i) => this.#find(entries[i], owner) !== undefined)
    const answers = claims.map((claim) =>
      this.#decide(this.#entries.get(claim.key), { ...claim, placeMs: undefined }, now),
    )
    if (answers.some((answer) => !answer.granted)) {
      for (const [i, { key, owner }] of claims.entries()) {
        const entry = this.#entries.get(key)
        const holder = this.#find(entry, owner)
        if (entry && holder && !had[i]) this.#end(key, entry, holder)
      }
      // What was taken back is not told; but whoever was let in before has to hear of it.
      this.#outbox.length = posted
    }
    for (const { key } of claims) this.#serve(key, this.#entries.get(key), now)
    this.#deliver()
    if (answers.every((answer) => answer.granted)) return answers
    return claims.map((claim) => this.#refusal(this.#entries.get(claim.key), claim))
  }

  /**
   * The rule, for one claim. A lease that ran out rings no bell, so whoever asks first also lets in everybody else who
   * fits now: otherwise ten readers behind a dead writer would come in one by one, each when it happens to ask.
   */
  #ask(claim: Claim, now: number): Answer {
    const entry = this.#entry(claim.key, now)
    if (!entry?.line || entry.line.size === 0) return this.#decide(entry, claim, now)
    this.#serveBefore(entry, claim, now)
    const answer = this.#decide(entry, claim, now)
    if (answer.granted) this.#serve(claim.key, entry, now)
    return answer
  }

  #decide(known: Entry | undefined, claim: Claim, now: number): Answer {
    let entry = known
    const held = this.#find(entry, claim.owner)
    if (held) {
      held.expiresAt = Math.max(held.expiresAt, now + claim.ttlMs)
      return { granted: true, owner: claim.owner, token: held.token, ttlMs: claim.ttlMs, decidedAt: now }
    }
    if (claim.steal && entry) this.#evict(claim.key, entry)
    if (claim.steal || this.#admits(entry, claim)) {
      entry?.line?.delete(claim.owner)
      if (!entry) this.#entries.set(claim.key, (entry = { holders: undefined, sole: undefined, line: undefined }))
      return this.#grant(entry, claim, now, claim.ttlMs)
    }
    if (claim.placeMs !== undefined) this.#enqueue(entry as Entry, claim, claim.placeMs, now)
    return this.#refusal(entry, claim)
  }

  /** Whether nobody earlier stands in line and there is room. */
  #admits(entry: Entry | undefined, claim: Claim): boolean {
    if (!entry) return true
    if (entry.line && entry.line.size > 0 && entry.line.keys().next().value !== claim.owner) return false
    return this.#fits(entry, claim)
  }

  #fits(entry: Entry, claim: Claim): boolean {
    let free = claim.capacity - claim.weight
    if (entry.sole) free -= entry.sole.weight
    if (entry.holders) for (const holder of entry.holders.values()) free -= holder.weight
    return free >= 0
  }

  #grant(entry: Entry, claim: Claim, now: number, ttlMs: number): Grant {
    this.#lastToken = Math.max(this.#lastToken + 1, Math.floor(now * 1_000))
    const token = BigInt(this.#lastToken)
    const holder: Holder = {
      owner: claim.owner,
      weight: claim.weight,
      capacity: claim.capacity,
      expiresAt: now + ttlMs,
      token,
      since: now,
      value: claim.value,
      announce: claim.announce === true,
    }
    if (entry.holders) entry.holders.set(claim.owner, holder)
    else if (entry.sole) {
      entry.holders = new Map([
        [entry.sole.owner, entry.sole],
        [claim.owner, holder],
      ])
      entry.sole = undefined
    } else entry.sole = holder
    if (claim.announce) this.#post(claim.key, { type: 'changed' })
    if (!this.#sweeping) this.#sweepLater()
    return { granted: true, owner: claim.owner, token, ttlMs, decidedAt: now }
  }

  #enqueue(entry: Entry, claim: Claim, placeMs: number, now: number): void {
    entry.line ??= new Map()
    const place = entry.line.get(claim.owner)
    if (place && place.expiresAt > now) {
      place.expiresAt = now + placeMs
      return
    }
    // One that has ended lost its turn, although nobody has removed it yet: a Map keeps the order of insertion.
    entry.line.delete(claim.owner)
    entry.line.set(claim.owner, { claim, placeMs, expiresAt: now + placeMs, since: now })
  }

  #refusal(entry: Entry | undefined, claim: Claim): Answer {
    const ahead = this.#ahead(entry, claim.owner)
    const newest = BigInt(this.#lastToken)
    let holder = entry?.sole
    // The one whose lease ends first tells how long to wait.
    if (entry?.holders) {
      for (const each of entry.holders.values()) if (!holder || each.expiresAt < holder.expiresAt) holder = each
    }
    if (!holder) return { granted: false, ahead, newest }
    const { owner, token, value, expiresAt } = holder
    const blocker: Blocker = { owner, token, value, ttlMs: Math.max(expiresAt - this.#world.now(), 0) }
    return { granted: false, ahead, newest, blocker }
  }

  /** Exact for those who ask for the first time, who are many, and for the first; the others only have to know that they are not. */
  #ahead(entry: Entry | undefined, owner: string): number {
    const queue = entry?.line
    if (!queue) return 0
    if (!queue.has(owner)) return queue.size
    return queue.keys().next().value === owner ? 0 : Math.max(queue.size - 1, 1)
  }

  #letGo({ key, owner, token }: Lease, now: number): Released {
    const entry = this.#entry(key, now)
    if (!entry) return GONE
    const holder = this.#find(entry, owner)
    if (token !== undefined && holder?.token !== token) return GONE
    const place = token === undefined ? entry.line?.get(owner) : undefined
    const waited = place !== undefined && place.expiresAt > now
    if (place) entry.line?.delete(owner)
    if (holder) this.#end(key, entry, holder)
    else if (!waited) return GONE
    if (entry.line && entry.line.size > 0) this.#serve(key, entry, now)
    if (!entry.sole && !entry.holders) this.#sweepIfMany()
    return RELEASED
  }

  /** Drops what expired. The head of the line comes by itself when a lease runs out. */
  #entry(key: string, now: number): Entry | undefined {
    const entry = this.#entries.get(key)
    if (!entry) return undefined
    if (entry.sole && entry.sole.expiresAt <= now) this.#end(key, entry, entry.sole)
    if (entry.holders)
      for (const holder of entry.holders.values()) if (holder.expiresAt <= now) this.#end(key, entry, holder)
    // Only from the head: a dead waiter further behind is in nobody's way yet, and walking the queue would cost each waiter.
    if (entry.line)
      for (const [owner, place] of entry.line) {
        if (place.expiresAt > now) break
        entry.line.delete(owner)
      }
    return entry
  }

  /** Everybody who came earlier and fits. Not before a theft, which would take it away again at once. */
  #serveBefore(entry: Entry | undefined, { key, owner, steal }: Claim, now: number): void {
    if (!steal) this.#serve(key, entry, now, owner)
  }

  /**
   * Hands the lease to the head of the line while there is room: no second question, no race with newcomers. Stops
   * before the one who is asking right now, who gets more than a hand-over.
   */
  #serve(key: string, entry: Entry | undefined, now: number, before?: string): void {
    if (!entry?.line) return
    for (const [owner, place] of entry.line) {
      const ended = place.expiresAt <= now
      // Also before the one who asks: its own entry that has ended must not pass for the first.
      if (!ended && (owner === before || !this.#fits(entry, place.claim))) return
      entry.line.delete(owner)
      if (ended) continue
      const ttlMs = Math.min(place.placeMs, place.claim.ttlMs)
      const { token } = this.#grant(entry, place.claim, now, ttlMs)
      this.#post(key, { type: 'granted', owner, token, ttlMs })
    }
  }

  #evict(key: string, entry: Entry): void {
    for (const holder of this.#all(entry)) {
      if (this.#revokedListeners.size > 0) this.#revoked.push({ key, owner: holder.owner, token: holder.token })
      if (holder.announce) this.#post(key, { type: 'changed' })
    }
    entry.sole = undefined
    entry.holders = undefined
  }

  #end(key: string, entry: Entry, holder: Holder): void {
    if (entry.sole === holder) entry.sole = undefined
    else if (entry.holders?.delete(holder.owner) && entry.holders.size === 0) entry.holders = undefined
    if (holder.announce) this.#post(key, { type: 'changed' })
  }

  #sweepIfMany(): void {
    if (++this.#idle <= MOST_IDLE) return
    this.#idle = 0
    for (const [key, { sole, holders, line }] of this.#entries) {
      if (!sole && !holders && !line?.size) this.#entries.delete(key)
    }
  }

  #find(entry: Entry | undefined, owner: string): Holder | undefined {
    if (!entry) return undefined
    if (entry.sole) return entry.sole.owner === owner ? entry.sole : undefined
    return entry.holders?.get(owner)
  }

  #all(entry: Entry): Holder[] {
    return entry.sole ? [entry.sole] : [...(entry.holders?.values() ?? [])]
  }

  #views(key: string, now: number): HolderView[] {
    const entry = this.#entry(key, now)
    if (!entry) return []
    return this.#all(entry).map(({ owner, weight, capacity, token, value, expiresAt, since }) => ({
      key,
      owner,
      weight,
      capacity,
      token,
      value,
      ttlMs: expiresAt - now,
      heldMs: now - since,
      waiting: entry.line?.size ?? 0,
    }))
  }

  #post(key: string, event: StoreEvent): void {
    if (this.#listeners.has(key)) this.#outbox.push({ key, event })
  }

  #deliver(): void {
    while (this.#revoked.length > 0) {
      const revoked = this.#revoked
      this.#revoked = []
      for (const lease of revoked) for (const listener of [...this.#revokedListeners]) listener(lease)
    }
    while (this.#outbox.length > 0) {
      const events = this.#outbox
      this.#outbox = []
      for (const { key, event } of events) for (const listener of [...(this.#listeners.get(key) ?? [])]) listener(event)
    }
  }

  /** While anything is held. The timer does not keep the process alive. */
  #sweepLater(): void {
    this.#sweeping = true
    this.#world.after(SWEEP_MS, () => {
      this.#sweeping = false
      const now = this.#world.now()
      for (const key of [...this.#entries.keys()]) {
        const entry = this.#entry(key, now)
        if (entry && !entry.sole && !entry.holders && !entry.line?.size) this.#entries.delete(key)
      }
      this.#deliver()
      if (this.#entries.size > 0) this.#sweepLater()
    })
  }
}
