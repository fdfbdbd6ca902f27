import type { World } from '../../kit/world.js'
import type { Holding } from './book.js'
import type { SessionStatements } from './statements.js'
import { pooled } from './trouble.js'
import { limitOf } from './ttl-class.js'
import type { Wire } from './wire.js'

/** The largest value of `idle_session_timeout`. */
export const LONGEST_IDLE_MS: number = 2 ** 31 - 1

/** The server frees what a silent session holds after the ttl; we stop believing in it a little earlier. */
const EARLIER = 0.98

/** What those who work for one session share. */
export interface SessionParts {
  world: World
  wire: Wire
  statements: SessionStatements
  pid: number
  holdings: ReadonlySet<Holding>
  /** Nothing on this session can be trusted any more. Returns what to tell those who asked. */
  die(cause: unknown): Error
}

/** For how long the server bears our silence before it ends the session: the largest ttl of what is held on it. */
export class IdleLimit {
  readonly #world: World
  readonly #wire: Wire
  readonly #statements: SessionStatements
  readonly #holdings: ReadonlySet<Holding>
  readonly #pid: number
  readonly #die: (cause: unknown) => Error
  #ms = 0

  constructor({ world, wire, statements, holdings, pid, die }: SessionParts) {
    this.#world = world
    this.#wire = wire
    this.#statements = statements
    this.#holdings = holdings
    this.#pid = pid
    this.#die = die
  }

  /** As the server was told. 0: for ever. */
  get ms(): number {
    return this.#ms
  }

  /** Until then the server has not ended the session for our silence. */
  get trustedUntil(): number {
    return this.#wire.provenAt + this.#ms * EARLIER
  }

  /** Neither too short for such a lock, nor left over from longer ones that the session held before. */
  covers(ttlMs: number): boolean {
    return this.#ms >= ttlMs && this.#ms <= limitOf(ttlMs)
  }

  /** The server must know before it grants: if we freeze with the grant on its way, nobody else could tell it. */
  async cover(ttlMs: number): Promise<void> {
    if (!this.covers(ttlMs)) await this.#tell(Math.max(Math.ceil(ttlMs), this.#longestLeft()))
  }

  /** Proves that the session lives, and tells the server the largest ttl of what is held on it. When it was sent. */
  async refresh(): Promise<number> {
    const sentAt = this.#world.now()
    await this.#tell(this.#longestLeft())
    return sentAt
  }

  async #tell(ms: number): Promise<void> {
    const [row] = await this.#wire.run(this.#statements.ping, [String(ms)])
    if (Number(row?.[1]) !== this.#pid) throw this.#die(pooled())
    this.#ms = ms
  }

  #longestLeft(): number {
    const now = this.#world.now()
    let longest = 0
    for (const { deadline } of this.#holdings) longest = Math.max(longest, deadline - now, 1)
    return Math.min(Math.ceil(longest), LONGEST_IDLE_MS)
  }
}
