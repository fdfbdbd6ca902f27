import type { Ballot } from './ballot.js'
import type { Candidate } from './candidate.js'

/** What this process knows of one acquisition: an attempt under way, or a grant. */
export interface Entry {
  key: string
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
  readonly #entries = new Map<string, Entry>()
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

  add(claimOwner: string, entry: Entry, now: number): void {
    if (++this.#sinceSweep >= SWEEP_EVERY) this.#sweep(now)
    this.#entries.set(`${entry.key}\0${claimOwner}`, entry)
  }

  /** By the name of the acquisition or by that of its attempt. */
  find(key: string, owner: string): Entry | undefined {
    const mark = owner.lastIndexOf(MARK)
    const byAttempt = mark < 0 ? undefined : this.#entries.get(`${key}\0${owner.slice(0, mark)}`)
    return byAttempt?.owner === owner ? byAttempt : this.#entries.get(`${key}\0${owner}`)
  }

  remove(entry: Entry): void {
    const at = `${entry.key}\0${entry.owner.slice(0, entry.owner.lastIndexOf(MARK))}`
    if (this.#entries.get(at) === entry) this.#entries.delete(at)
  }

  /** Grants that ended without a word from their holder. */
  #sweep(now: number): void {
    this.#sinceSweep = 0
    for (const [at, entry] of this.#entries) if (!entry.attempt && entry.until <= now) this.#entries.delete(at)
  }
}

/** Whether this owner is one of our attempts. Others wrote theirs by themselves. */
export function isAttempt(owner: string): boolean {
  return /#[0-9a-z]{8,}$/.test(owner)
}
