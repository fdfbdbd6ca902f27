import type { Ballot } from './ballot.js'
import type { Candidate } from './candidate.js'

/** What this process knows of one acquisition: an attempt under way, or a grant. */
export interface Entry {
  key: string
  /** The owner of the acquisition, as the core knows it. */
  claimedBy: string
  /** The owner of the attempt, as the nodes know it. */
  owner: string
  shared: boolean
  token: bigint
  /** When nobody can trust it any more, by our clock. */
  until: number
  /** Of the value kept beside the lease. */
  version: number
  /** Still being decided. */
  attempt: { ballot: Ballot; candidate: Candidate } | undefined
}

/** Between an owner and its attempt. Owners may hold this too; attempts never do behind the last one. */
const MARK = '#'
const SWEEP_EVERY = 1_000

/**
 * Every attempt has an owner of its own. This remembers which attempt belongs to whom: whoever asks again gets its grant
 * again, and whoever gives up under its own name gives up the attempt.
 */
export class Register {
  /** By the name of the acquisition and by that of its attempt. Mostly one each; a list where it asked for several keys. */
  readonly #entries = new Map<string, Entry[]>()
  readonly #instance: string
  #attempts = 0
  #sinceSweep = 0

  constructor(random: () => number) {
    // Eight digits or more: what `isAttempt` knows our own by.
    const digits = (): string => Math.floor((1 + random()) * 36 ** 4).toString(36)
    this.#instance = digits() + digits()
  }

  freshOwner(owner: string): string {
    return `${owner}${MARK}${this.#instance}${(this.#attempts++).toString(36)}`
  }

  add(entry: Entry, now: number): void {
    if (++this.#sinceSweep >= SWEEP_EVERY) this.#sweep(now)
    const before = this.find(entry.key, entry.claimedBy)
    if (before) this.remove(before)
    for (const name of [entry.claimedBy, entry.owner]) {
      const entries = this.#entries.get(name)
      if (entries) entries.push(entry)
      else this.#entries.set(name, [entry])
    }
  }

  find(key: string, name: string): Entry | undefined {
    const entries = this.#entries.get(name)
    if (entries) for (const entry of entries) if (entry.key === key) return entry
    return undefined
  }

  remove(entry: Entry): void {
    for (const name of [entry.claimedBy, entry.owner]) {
      const entries = this.#entries.get(name)
      const at = entries ? entries.indexOf(entry) : -1
      if (!entries || at < 0) continue
      if (entries.length === 1) this.#entries.delete(name)
      else entries.splice(at, 1)
    }
  }

  /** Grants that ended without a word from their holder. */
  #sweep(now: number): void {
    this.#sinceSweep = 0
    for (const entry of [...this.#entries.values()].flat()) {
      if (!entry.attempt && entry.until <= now) this.remove(entry)
    }
  }
}

/** Whether this owner is one of our attempts. Others wrote theirs by themselves. */
export function isAttempt(owner: string): boolean {
  return /#[0-9a-z]{8,}$/.test(owner)
}
