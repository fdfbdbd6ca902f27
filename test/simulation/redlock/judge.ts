/** What must never happen, whatever the schedule. */
export type Violation = 'two hold at once' | 'duplicate token' | 'inverted token'

export interface Grant {
  key: string
  shared: boolean
  token: bigint
  /** When its attempt began, and when it was granted. */
  startedAt: number
  grantedAt: number
  /** Until when its holder believes in it. Renewals move it, a release ends it. */
  until: number
}

/** Sees all clients at once, as none of them can. */
export class Judge {
  readonly violations: Violation[] = []
  grants = 0
  readonly #history = new Map<string, Grant[]>()
  readonly #exclusion: boolean

  /** `exclusion`: nothing expires before its time in this schedule, so two may never hold at once. */
  constructor(exclusion: boolean) {
    this.#exclusion = exclusion
  }

  granted(grant: Grant): void {
    this.grants++
    let history = this.#history.get(grant.key)
    if (!history) this.#history.set(grant.key, (history = []))
    for (const earlier of history) {
      if (earlier.shared && grant.shared) continue
      if (earlier.token === grant.token) this.violations.push('duplicate token')
      else if (earlier.grantedAt < grant.startedAt && earlier.token > grant.token)
        this.violations.push('inverted token')
    }
    history.push(grant)
    this.believed(grant)
  }

  /** Whoever believes in its lease now must be the only one, but for readers among themselves. */
  believed(grant: Grant, now: number = grant.grantedAt): void {
    if (!this.#exclusion || grant.until <= now) return
    for (const other of this.#history.get(grant.key) as Grant[]) {
      if (other === grant || (other.shared && grant.shared)) continue
      if (other.until > now) this.violations.push('two hold at once')
    }
  }
}
