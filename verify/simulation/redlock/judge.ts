/** What must never happen, whatever the schedule. */
export type RedlockViolation = 'two hold at once' | 'duplicate token' | 'inverted token' | 'inverted on the nodes'

export interface SimulatedGrant {
  key: string
  /** The owner of the attempt, as the nodes know it. */
  owner: string
  shared: boolean
  token: bigint
  /** When its attempt began, and when it was granted. */
  startedAt: number
  grantedAt: number
  /** Until when its holder believes in it. Renewals move it, a release ends it. */
  until: number
}

/** Knows all clients and all nodes at once, as none of them can. */
export class RedlockJudge {
  readonly violations: RedlockViolation[] = []
  grants = 0
  readonly #history = new Map<string, SimulatedGrant[]>()
  readonly #exclusion: boolean
  /** By owner of an attempt and key: when each node first held it, as a number that grows. */
  readonly #held = new Map<string, Map<string, number>>()
  #moment = 0

  /** `exclusion`: nothing expires before its time in this schedule, so two may never hold at once. */
  constructor(exclusion: boolean) {
    this.#exclusion = exclusion
  }

  /** A node holds this key for this owner from now on. */
  held(node: string, key: string, owner: string): void {
    const id = `${owner}\0${key}`
    let nodes = this.#held.get(id)
    if (!nodes) this.#held.set(id, (nodes = new Map()))
    if (!nodes.has(node)) nodes.set(node, this.#moment++)
  }

  granted(grant: SimulatedGrant): void {
    this.grants++
    let history = this.#history.get(grant.key)
    if (!history) this.#history.set(grant.key, (history = []))
    for (const earlier of history) {
      if (earlier.shared && grant.shared) continue
      if (earlier.token === grant.token) this.violations.push('duplicate token')
      else if (earlier.grantedAt < grant.startedAt && earlier.token > grant.token)
        this.violations.push('inverted token')
      else if (this.#isInvertedOnNodes(earlier, grant)) this.violations.push('inverted on the nodes')
    }
    history.push(grant)
    this.believed(grant)
  }

  /** A holder that trusts its lease now must be the only one, except for readers among themselves. */
  believed(grant: SimulatedGrant, now: number = grant.grantedAt): void {
    if (!this.#exclusion || grant.until <= now) return
    for (const other of this.#history.get(grant.key) as SimulatedGrant[]) {
      if (other === grant || (other.shared && grant.shared)) continue
      if (other.until > now) this.violations.push('two hold at once')
    }
  }

  /**
   * Requests of one batch, or requests that overlap, have no order by their clients' clocks. The nodes have one: where each
   * node that held both held the one first, the other is the later holder, and a resource must be able to tell by the token.
   */
  #isInvertedOnNodes(one: SimulatedGrant, other: SimulatedGrant): boolean {
    const [before, after] = one.token < other.token ? [one, other] : [other, one]
    const first = this.#held.get(`${before.owner}\0${before.key}`)
    const second = this.#held.get(`${after.owner}\0${after.key}`)
    if (!first || !second) return false
    let common = 0
    for (const [node, moment] of first) {
      const others = second.get(node)
      if (others === undefined) continue
      if (moment < others) return false
      common++
    }
    return common > 0
  }
}
