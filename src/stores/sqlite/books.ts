/**
 * The rule of the store contract, in SQL: who holds what, and who stands in line. Everything here happens inside one
 * write transaction, with one reading of the clock.
 *
 * @module
 */
import type { Answer, Claim, Grant, Lease, Released, Renewal, Renewed, StoreEvent } from '../../store.js'
import type { Statements } from './statements.js'

/** `revoked` is for those who subscribed to all revocations, whatever the key; the rest for those who watch the key. */
export type WakeUp = StoreEvent | { type: 'revoked'; owner: string; token: bigint }

/** Something to tell after the commit: the process behind this bell, or everyone who watches the key. */
export interface Letter {
  key: string
  event: WakeUp
  bell: string | undefined
}

interface Overview {
  boot: string
  lastToken: number
  holding: number
  held: number
  firstEnd: number | null
  firstPlaceEnd: number | null
}

interface Head {
  owner: string
  weight: number
  capacity: number
  placeMs: number
  ttlMs: number
  announce: number
  bell: string | null
  value: string | null
}

interface FirstWaiter {
  owner: string
  /** 0: it would be granted now. Undefined: nobody knows when that will be. */
  blockedMs: number | undefined
}

interface Found {
  token: number
  announce: number
  expiresAt: number
}

/** What a grant writes down; a claim and a place in line both are that. */
interface Granted {
  owner: string
  weight: number
  capacity: number
  value?: string | null | undefined
  announce?: boolean | number | undefined
}

const GONE: { outcome: 'gone' } = { outcome: 'gone' }
const RELEASED: Released = { outcome: 'released' }
/** Larger than every place in line. */
const END_OF_LINE = Number.MAX_SAFE_INTEGER

/** What the books do not know by themselves. */
export interface BooksFacts {
  wallMicros: () => number
  /** The bell to ring when a place of ours in this line is served; null: none is being listened to. */
  bellFor: (key: string) => string | null
  /** Throws if the times in this file are those of another machine. */
  checkBoot: (boot: string) => void
}

/** A token as the file keeps it. One that is too large for that belongs to no grant in it, and stays unlike all of them. */
export function comparable(token: bigint | undefined): number | null {
  return token === undefined ? null : Number(token)
}

/** One transaction's view of the books. */
export class Books {
  readonly now: number
  readonly letters: Letter[] = []
  /** Undefined: nobody has asked for anything in this transaction. */
  lastToken: number | undefined
  readonly #sql: Statements
  readonly #facts: BooksFacts
  /** How many places lie before a certain one, as last counted: a batch of waiters counts the line once, not each. */
  #counted: Map<string, { seq: number; ahead: number }> | undefined
  /** The first waiter of each key whose entries were renewed in this transaction: read once, not once per entry. */
  #firstWaiters: Map<string, FirstWaiter | undefined> | undefined

  constructor(sql: Statements, now: number, facts: BooksFacts) {
    this.#sql = sql
    this.now = now
    this.#facts = facts
  }

  askAll(claims: readonly Claim[]): Answer[] {
    return claims.map((claim) => this.#ask(claim, claim.placeMs))
  }

  /** All or none: tries, and takes everything back if one was refused. Nobody stands in line meanwhile. */
  askAtomically(claims: readonly Claim[]): Answer[] {
    const { lastToken } = this
    this.#sql.mark.run()
    const answers = claims.map((claim) => this.#ask(claim, undefined))
    if (answers.every((answer) => answer.granted)) return answers
    this.#sql.backToMark.run()
    this.lastToken = lastToken
    this.letters.length = 0
    this.#counted = undefined
    return claims.map((claim) => this.#refusal(claim, this.#lookAndServe(claim.key)))
  }

  renew(renewal: Renewal): Renewed {
    if (renewal.queued) return this.#renewEntry(renewal)
    const { key, owner, ttlMs, value } = renewal
    const token = comparable(renewal.token)
    const { changes } =
      value === undefined
        ? this.#sql.extend.run(key, owner, this.now, ttlMs, token)
        : this.#sql.extendAndTell.run(key, owner, this.now, ttlMs, token, value)
    if (Number(changes) === 0) return GONE
    this.#firstWaiters?.delete(key)
    if (value !== undefined) this.#post(key, { type: 'changed' })
    return { outcome: 'ours', ttlMs }
  }

  end({ key, owner, token }: Lease): Released {
    const seen = this.#look(key)
    // A token names a grant: the owner's queue entry is of another request, and stays.
    const waited = token === undefined && seen.firstPlaceEnd !== null && this.#leave(key, owner)
    const found = seen.holding > 0 ? this.#find(key, owner) : undefined
    const holder = found && (token ?? BigInt(found.token)) === BigInt(found.token) ? found : undefined
    if (holder) this.#sql.endHolder.run(key, owner)
    if (holder?.announce) this.#post(key, { type: 'changed' })
    if (!waited && !holder) return GONE
    if (seen.firstPlaceEnd !== null) this.#serve(key)
    return RELEASED
  }

  revoke(key: string): void {
    this.#look(key)
    this.#evict(key)
    this.#serve(key)
  }

  /**
   * The rule, for one claim. A lease that ran out rings no bell, so whoever asks first also lets in everybody else who
   * fits now: otherwise ten readers behind a dead writer would come in one by one, each when it happens to ask.
   */
  #ask(claim: Claim, placeMs: number | undefined): Answer {
    const { key, owner, steal } = claim
    // Not before a theft, which would take it away again at once.
    const seen = steal ? this.#look(key) : this.#lookAndServe(key, owner)
    const answer = this.#decide(claim, placeMs, seen)
    if (answer.granted && seen.firstPlaceEnd !== null) this.#serve(key)
    return answer
  }

  /** Keeps a queue entry alive. What expired is dropped, and the queue is looked at once per key, not once per entry. */
  #renewEntry({ key, owner, ttlMs }: Renewal): Renewed {
    const first = this.#firstWaiter(key)
    const { changes } = this.#sql.renewPlace.run(key, owner, this.now, ttlMs, this.#facts.bellFor(key))
    if (Number(changes) > 0) {
      const newest = BigInt(this.lastToken as number)
      if (first?.owner !== owner) return { outcome: 'waiting', ahead: 1, newest }
      return { outcome: 'waiting', ahead: 0, newest, blockedMs: first.blockedMs }
    }
    const holder = this.#find(key, owner)
    if (!holder) return GONE
    return { outcome: 'granted', token: BigInt(holder.token), ttlMs: holder.expiresAt - this.now }
  }

  #firstWaiter(key: string): FirstWaiter | undefined {
    if (this.#firstWaiters?.has(key)) return this.#firstWaiters.get(key)
    const { held, firstEnd } = this.#look(key)
    const head = this.#sql.head.get(key) as Head | undefined
    let first: FirstWaiter | undefined
    if (head) {
      const fits = held + head.weight <= head.capacity
      const ends = firstEnd === null ? undefined : firstEnd - this.now
      first = { owner: head.owner, blockedMs: fits ? 0 : ends }
    }
    ;(this.#firstWaiters ??= new Map()).set(key, first)
    return first
  }

  #decide(claim: Claim, placeMs: number | undefined, seen: Overview): Answer {
    const { key, owner, ttlMs } = claim
    if (seen.holding > 0) {
      const mine = this.#find(key, owner)
      if (mine) {
        this.#sql.extend.run(key, owner, this.now, ttlMs, null)
        return { granted: true, owner, token: BigInt(mine.token), ttlMs }
      }
    }
    if (claim.steal) {
      this.#evict(key)
    } else if (!this.#admits(claim, seen)) {
      const seq = placeMs === undefined ? undefined : this.#stand(claim, placeMs)
      return this.#refusal(claim, seen, seq)
    }
    if (seen.firstPlaceEnd !== null) this.#leave(key, owner)
    return this.#grant(key, claim, ttlMs)
  }

  /** Whether nobody earlier stands in line and there is room. */
  #admits({ key, owner, weight, capacity }: Claim, seen: Overview): boolean {
    if (seen.held + weight > capacity) return false
    return seen.firstPlaceEnd === null || (this.#sql.head.get(key) as Head).owner === owner
  }

  #grant(key: string, { owner, weight, capacity, value, announce }: Granted, ttlMs: number): Grant {
    // Not the clock alone: it may stand still or go back. Not a counter alone: the file may be lost.
    const token = Math.max((this.lastToken as number) + 1, this.#facts.wallMicros())
    this.lastToken = token
    const { now } = this
    const flag = announce ? 1 : 0
    this.#sql.addHolder.run(key, owner, weight, capacity, now + ttlMs, ttlMs, now, token, flag, value ?? null)
    if (announce) this.#post(key, { type: 'changed' })
    return { granted: true, owner, token: BigInt(token), ttlMs }
  }

  #stand(claim: Claim, placeMs: number): number {
    const { key, owner, weight, capacity, ttlMs, value, announce } = claim
    const end = this.now + placeMs
    const bell = this.#facts.bellFor(key)
    const kept = this.#place(key, owner)
    if (kept !== undefined) {
      this.#sql.keepPlace.run(key, kept, end, bell)
      return kept
    }
    const { seq } = this.#sql.nextPlace.get(key) as { seq: number }
    const flag = announce ? 1 : 0
    const { now } = this
    this.#sql.addPlace.run(key, seq, owner, weight, capacity, end, placeMs, ttlMs, now, flag, bell, value ?? null)
    return seq
  }

  #refusal({ key, owner }: Claim, seen: Overview, standsAt?: number): Answer {
    // `seen` is from before the claim got its own place.
    const nobodyWaits = standsAt === undefined && seen.firstPlaceEnd === null
    const ahead = nobodyWaits ? 0 : this.#ahead(key, standsAt ?? this.#place(key, owner))
    const newest = BigInt(this.lastToken as number)
    if (seen.holding === 0) return { granted: false, ahead, newest }
    const holder = this.#sql.firstToEnd.get(key) as {
      owner: string
      token: number
      value: string | null
      expiresAt: number
    }
    const blocker = {
      owner: holder.owner,
      token: BigInt(holder.token),
      value: holder.value ?? undefined,
      ttlMs: Math.max(holder.expiresAt - this.now, 0),
    }
    return { granted: false, ahead, newest, blocker }
  }

  /** Those who ask together mostly stand one behind the other: count on from where the last count ended. */
  #ahead(key: string, seq = END_OF_LINE): number {
    const last = this.#counted?.get(key)
    const from = last && last.seq <= seq ? last : { seq: 0, ahead: 0 }
    const { n } = this.#sql.countPlaces.get(key, from.seq, seq) as { n: number }
    const ahead = from.ahead + n
    if (seq !== END_OF_LINE) (this.#counted ??= new Map()).set(key, { seq, ahead })
    return ahead
  }

  /** Drops what expired. The head of the line comes by itself when a lease runs out. */
  #look(key: string): Overview {
    const { now } = this
    const seen = this.#overview(key)
    if (this.lastToken === undefined) {
      this.#facts.checkBoot(seen.boot)
      this.lastToken = seen.lastToken
    }
    const holderEnded = seen.firstEnd !== null && seen.firstEnd <= now
    const placeEnded = seen.firstPlaceEnd !== null && seen.firstPlaceEnd <= now
    if (!holderEnded && !placeEnded) return seen
    if (holderEnded) {
      for (const { announce } of this.#sql.expireHolders.all(key, now) as { announce: number }[]) {
        if (announce) this.#post(key, { type: 'changed' })
      }
    }
    if (placeEnded) {
      this.#sql.expirePlaces.run(key, now)
      this.#counted?.delete(key)
    }
    return this.#overview(key)
  }

  /** Everybody who came before this owner and fits now gets it first. */
  #lookAndServe(key: string, owner?: string): Overview {
    const seen = this.#look(key)
    if (seen.firstPlaceEnd === null || !this.#serve(key, seen.held, owner)) return seen
    return this.#overview(key)
  }

  /**
   * Hands the lease to the head of the line while there is room: no second question, no race with newcomers. Stops
   * before the one who is asking right now, who gets more than a hand-over. True if anybody got it.
   */
  #serve(key: string, alreadyHeld?: number, before?: string): boolean {
    let held = alreadyHeld ?? this.#overview(key).held
    for (let served = false; ; served = true) {
      const head = this.#sql.head.get(key) as Head | undefined
      if (!head || head.owner === before || held + head.weight > head.capacity) return served
      this.#leave(key, head.owner)
      // Provisionally: a waiter that has died meanwhile must not block the others for a whole ttl.
      const ttlMs = Math.min(head.placeMs, head.ttlMs)
      const { token } = this.#grant(key, head, ttlMs)
      this.#post(key, { type: 'granted', owner: head.owner, token, ttlMs }, head.bell)
      held += head.weight
    }
  }

  #overview(key: string): Overview {
    return this.#sql.overview.get(key) as Overview
  }

  #evict(key: string): void {
    const evicted = this.#sql.endHolders.all(key) as { owner: string; announce: number; token: number }[]
    for (const { owner, announce, token } of evicted.sort((a, b) => a.token - b.token)) {
      this.#post(key, { type: 'revoked', owner, token: BigInt(token) })
      if (announce) this.#post(key, { type: 'changed' })
    }
  }

  #find(key: string, owner: string): Found | undefined {
    return this.#sql.findHolder.get(key, owner) as Found | undefined
  }

  #place(key: string, owner: string): number | undefined {
    return (this.#sql.findPlace.get(key, owner) as { seq: number } | undefined)?.seq
  }

  #leave(key: string, owner: string): boolean {
    const left = Number(this.#sql.endPlace.run(key, owner).changes) > 0
    if (left) this.#counted?.delete(key)
    return left
  }

  #post(key: string, event: WakeUp, bell?: string | null): void {
    this.letters.push({ key, event, bell: bell ?? undefined })
  }
}
