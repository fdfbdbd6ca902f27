/**
 * Chance that repeats itself. Every decision of a schedule is a function of the seed, the name of its stream and its
 * index in that stream, so that leaving out one operation or one fault does not change all decisions after it.
 *
 * @module
 */

/** Mixes two whole numbers into one of 32 bits. */
export function mix(a: number, b: number): number {
  let h = Math.imul(a ^ 0x9e3779b9, 0x85ebca6b) ^ Math.imul(b + 0x7f4a7c15, 0xc2b2ae35)
  h ^= h >>> 15
  h = Math.imul(h, 0x2c1b3c6d)
  h ^= h >>> 12
  h = Math.imul(h, 0x297a2d39)
  return (h ^ (h >>> 15)) >>> 0
}

export class Random {
  readonly #seed: number
  #index = 0

  constructor(seed: number) {
    this.#seed = seed >>> 0
  }

  /** 0 ≤ x < 1 */
  next(): number {
    return mix(this.#seed, this.#index++) / 4_294_967_296
  }

  chance(probability: number): boolean {
    return this.next() < probability
  }

  /** A whole number from 0 to n − 1. */
  below(n: number): number {
    return Math.floor(this.next() * n)
  }

  between(least: number, most: number): number {
    return least + this.next() * (most - least)
  }

  /** Each order of magnitude is equally likely. */
  spread(least: number, most: number): number {
    return least * (most / least) ** this.next()
  }

  pick<T>(list: readonly T[]): T {
    return list[this.below(list.length)] as T
  }
}

/** A fault that struck: `id` names the decision, so that a replay can leave it out. */
export interface Strike {
  id: string
  /** Chance of this fault alone, for how long it lasts. */
  random: Random
}

/** The faults of one part of a schedule, such as the calls of one process. */
export class Faults {
  readonly #stream: string
  readonly #seed: number
  readonly #suppressed: ReadonlySet<string>
  readonly #struck: string[]
  #index = 0
  /** Set when the weather has cleared up: nothing strikes any more. */
  over = false

  constructor(stream: string, seed: number, suppressed: ReadonlySet<string>, struck: string[]) {
    this.#stream = stream
    this.#seed = seed
    this.#suppressed = suppressed
    this.#struck = struck
  }

  /** One decision: at most one of these kinds strikes, each with its probability. */
  draw<K extends string>(kinds: readonly (readonly [K, number])[]): (Strike & { kind: K }) | undefined {
    const index = this.#index++
    if (this.over) return undefined
    let left = mix(this.#seed, index) / 4_294_967_296
    for (const [kind, probability] of kinds) {
      if (left < probability) return this.#strike(kind, index)
      left -= probability
    }
    return undefined
  }

  #strike<K extends string>(kind: K, index: number): (Strike & { kind: K }) | undefined {
    const id = `${this.#stream}.${index}.${kind}`
    if (this.#suppressed.has(id)) return undefined
    this.#struck.push(id)
    return { id, kind, random: new Random(mix(this.#seed ^ 0x51ed270b, index)) }
  }
}
