import { realWorld } from '../../util/world.js'

/** REUSE_MS: how long the text of a deadline is used again. Making it anew for every request shows in the price of a lock. */
const REUSE_MS = 50

/** HEAR_EVERY_MS: how old what is known of the server's time may be before the token of a grant is used to correct it. */
const HEAR_EVERY_MS = 1_000

/**
 * The time of one server, as far as its answers tell it. Good enough to say until when a request may be carried out, and how
 * much is left of a grant that was pushed; never used for anything else.
 */
export class ServerClock {
  /** What to add to our clock, in microseconds: rather too much than too little, since it was read after we sent. */
  #ahead: number | undefined
  #heardAt = Number.NEGATIVE_INFINITY
  #made = { at: Number.NEGATIVE_INFINITY, text: '' }
  readonly #timeoutMs: number

  /** `timeoutMs`: for how long a request may be under way. */
  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs
  }

  get known(): boolean {
    return this.#ahead !== undefined
  }

  /** Whether it is time to hear it again. */
  isDue(now: number): boolean {
    return now - this.#heardAt > HEAR_EVERY_MS
  }

  /**
   * `sentAt`: our time before asking, by a clock that goes on while the machine is suspended: by one that stands still, a grant that was
   * pushed afterwards would seem to last longer by as much. An answer that took too long says too little: with the time of a server
   * that was frozen meanwhile, later requests could be carried out when their process is long dead.
   */
  heard(micros: number, sentAt: number): void {
    if (realWorld.now() - sentAt > this.#timeoutMs) return
    this.#heardAt = sentAt
    this.#set(micros - sentAt * 1_000)
  }

  /** Tokens are times too. An owner who asks again hears its old token: so only what is more counts. */
  heardToken(token: number, sentAt: number): void {
    if (realWorld.now() - sentAt > this.#timeoutMs) return
    const ahead = token - sentAt * 1_000
    this.#heardAt = sentAt
    if (this.#ahead === undefined || ahead > this.#ahead) this.#set(ahead)
  }

  /** Our time as the server's, or more: by up to 50 ms and the time that the answer took. Only while it is known. */
  deadline(at: number): string {
    if (at < this.#made.at || at - this.#made.at > REUSE_MS)
      this.#made = { at, text: String(Math.ceil((at + REUSE_MS) * 1_000 + (this.#ahead as number))) }
    return this.#made.text
  }

  /** How many milliseconds are left until this time of the server: rather too few than too many. */
  leftMs(endMs: number, now: number): number {
    return this.#ahead === undefined ? 0 : endMs - now - this.#ahead / 1_000
  }

  #set(ahead: number): void {
    if (ahead === this.#ahead) return
    this.#ahead = ahead
    this.#made.at = Number.NEGATIVE_INFINITY
  }
}
