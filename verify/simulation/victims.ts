import type { Belief } from './judge.js'
import type { IsBack } from './server.js'
import type { Simulation } from './simulation.js'

/** A heartbeat comes after this share of the ttl. */
const HEARTBEAT = 1 / 3
/** The clock of a process may run slower than true time by this factor. */
const SLOWEST_CLOCK = 1.01
/** Timers, and the microtasks of an answer. */
const PROMPT_MS = 3

/**
 * How soon a holder whose lease was revoked (`forceRelease`, a steal) has to notice.
 *
 * Whatever happens, its time runs out: nobody can have renewed it since. If nothing goes wrong, the push tells it at once
 * where there is one, and its next heartbeat where there is none.
 */
export class Victims {
  readonly #sim: Simulation
  readonly #accuse: (rule: string, text: string) => void

  constructor(sim: Simulation, accuse: (rule: string, text: string) => void) {
    this.#sim = sim
    this.#accuse = accuse
  }

  /**
   * `early`: it was taken away before its holder knew of the grant. A push may have come before anybody listened. `isBack`:
   * the store holds it again for the same owner, so nothing is believed wrongly.
   */
  add(belief: Belief, { early, isBack }: { early: boolean; isBack: IsBack | undefined }): void {
    const { ttlMs, actor } = belief
    const at = early ? belief.process.local : this.#sim.now
    // Its holder stops trusting it earlier than the store by what clocks may differ.
    this.#plan(belief, at + ttlMs, () => (isBack?.() ? undefined : 'its whole ttl'))
    const soon = early || !this.#isListening(belief, at) ? undefined : this.#pushMs(belief)
    const trip = 2 * actor.weather.latency[1] + PROMPT_MS
    const bound = soon ?? (belief.renews ? ttlMs * HEARTBEAT * SLOWEST_CLOCK + trip : undefined)
    if (bound === undefined) return
    const since = at - actor.shape.timeoutMs - (soon === undefined ? ttlMs : 0)
    this.#plan(belief, at + bound, () => {
      const disturbed = belief.process.disturbances.some(({ from, to }) => to >= since && from <= this.#sim.now)
      return disturbed || isBack?.() ? undefined : `${Math.round(bound)} ms in which nothing went wrong`
    })
  }

  /** The instance subscribed when it got its first lock, and all its subscriptions have reached the server. */
  #isListening({ actor, start }: Belief, at: number): boolean {
    const { inProcess, watchesHeld } = actor.shape
    if (inProcess) return true
    return watchesHeld && start < at - 4 * actor.weather.latency[1] && actor.connection?.hearsRevocations === true
  }

  #pushMs({ actor }: Belief): number {
    return actor.shape.inProcess ? 0 : actor.weather.latency[1] + PROMPT_MS
  }

  /** `after` says what it was given, or undefined if that is excused. */
  #plan(belief: Belief, at: number, after: () => string | undefined): void {
    if (at === Number.POSITIVE_INFINITY) return
    this.#sim.plan(at, () => {
      if (belief.over || belief.process.crashed || !this.#sim.probe(belief.held)) return
      const given = after()
      if (given === undefined) return
      const { actor, key, what } = belief
      this.#accuse('revoked and still held', `${actor.label} ${key} (${what}) is believed to be held after ${given}`)
    })
  }
}
