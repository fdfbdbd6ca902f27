/** So many steals are remembered: an answer that they overtook arrives within seconds. */
const MOST_STOLEN = 1_000

/** A lease that a steal may take away. */
interface StealableLease {
  readonly key: string
  readonly token: bigint
  lose(why: 'revoked'): void
}

/**
 * The steals of one instance. Its own holders know of them at once, whatever wake-ups the store has; those whose answer is still on its
 * way, when that comes.
 */
export class Steals {
  /** By key, the token of the last steal: grants with a smaller token were stolen. */
  readonly #tokens = new Map<string, bigint>()

  /** `held`: what the instance believes to hold. */
  took(steal: StealableLease, held: readonly StealableLease[]): void {
    for (const each of held) if (each.key === steal.key && each.token < steal.token) each.lose('revoked')
    if (this.#tokens.size >= MOST_STOLEN) this.#tokens.clear()
    this.#tokens.set(steal.key, steal.token)
  }

  /** The answer to this grant may have been overtaken by that of a steal, which took it away. */
  loseIfStolen(lease: StealableLease): void {
    if (this.#tokens.size > 0 && lease.token < (this.#tokens.get(lease.key) ?? 0n)) lease.lose('revoked')
  }
}
