/** A deadline is good for this long, so that its text need not be made anew for every question. */
const REUSE_MS = 50

const HEAR_EVERY_MS = 1_000

/**
 * The server's time, as far as its tokens tell it: they are its microseconds. Good enough to say until when a question may
 * be answered, and never used for anything else.
 */
export class ServerClock {
  /** What to add to our clock, in microseconds: rather too much than too little. */
  #ahead: number | undefined
  #heardAt = Number.NEGATIVE_INFINITY
  #made = { at: Number.NEGATIVE_INFINITY, text: '' }

  /** Whether it is time to hear it again. */
  isDue(now: number): boolean {
    return now - this.#heardAt > HEAR_EVERY_MS
  }

  /** `sentAt`: our time before asking. An owner who asks again hears its old token: so only what is more counts. */
  heard(token: number, sentAt: number): void {
    const ahead = token - sentAt * 1_000
    this.#heardAt = sentAt
    if (this.#ahead !== undefined && ahead <= this.#ahead) return
    this.#ahead = ahead
    this.#made.at = Number.NEGATIVE_INFINITY
  }

  /** Our time as the server's, or up to 50 ms more; nothing while it is unknown. */
  deadline(at: number): string {
    if (this.#ahead === undefined) return ''
    if (at < this.#made.at || at - this.#made.at > REUSE_MS)
      this.#made = { at, text: String(Math.ceil((at + REUSE_MS) * 1_000 + this.#ahead)) }
    return this.#made.text
  }
}
