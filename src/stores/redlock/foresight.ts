import type { World } from '../../kit/world.js'
import type { Votes } from './node.js'

/** How far ahead of the nodes' clocks to guess: a question is under way for some time. */
const AHEAD_MS = 5

/**
 * Guesses tokens. One that is larger than every token of a majority, and not behind its clocks, is as good as one that was
 * found out by asking, and saves the second round. Guessed wrong, it costs nothing.
 */
export class Foresight {
  readonly #world: World
  /** What each node's clock is ahead of ours, in microseconds. */
  readonly #leads: number[]
  #heard = false
  #largest = 0

  constructor(world: World, nodes: number) {
    this.#world = world
    this.#leads = new Array<number>(nodes).fill(Number.NEGATIVE_INFINITY)
  }

  /** What a node said to a question that was sent at `sentAt`. */
  heard(node: number, { counter, micros }: Votes, sentAt: number): void {
    this.#heard = true
    this.#leads[node] = micros - sentAt * 1_000
    this.made(counter)
  }

  /** There is such a token. */
  made(token: number): void {
    if (token > this.#largest) this.#largest = token
  }

  /** 0: nothing is known of the nodes yet, so there is nothing to guess from. */
  next(): number {
    if (!this.#heard) return 0
    const clock = Math.floor(Math.max(...this.#leads) + (this.#world.now() + AHEAD_MS) * 1_000)
    this.#largest = Math.max(this.#largest + 1, clock)
    return this.#largest
  }
}
