import type { Cancel, World } from '../../src/util/world.js'
import { type Faults, mix, Random } from './random.js'
import type { Simulation } from './simulation.js'
import type { Weather } from './weather.js'

/** 17 November 2026, some time in the night: clocks begin near this. */
export const EPOCH = 1_795_000_000_000

/** Real timers are at least this late: without it a process that is called a hair too early would ask for the rest for ever. */
const LEAST_LATENESS_MS = 0.01

/** Answers and pushes come by different connections. */
export type Kind = 'answer' | 'push' | 'timer'
const KINDS: readonly Kind[] = ['answer', 'push', 'timer']

interface Waiting {
  kind: Kind
  run: () => void
  cancelled: () => boolean
}

/** A process with its own clocks. It sees messages and timers one by one, and may freeze between any two of them. */
export class SimProcess {
  readonly label: string
  readonly world: World
  crashed = false
  /** The moment of true time that its code has reached: ahead of the simulation if it lost its processor meanwhile. */
  local = 0
  /** Timers that the library has set and that are still to fire. */
  libraryTimers = 0
  /** How much time it has lost by freezing or without its processor. */
  pausedMs = 0
  readonly #pauses: { at: number; ms: number }[] = []
  /** When anything happened to this process that may excuse a late or failed operation, in true time. */
  readonly disturbances: { from: number; to: number }[] = []

  readonly #sim: Simulation
  readonly #rate: number
  readonly #offset: number
  readonly #random: Random
  readonly #clockFaults: Faults
  readonly #eventFaults: Faults
  readonly #weather: Weather
  #wallOffset = 0
  #busyUntil = 0
  #backlog: Waiting[] = []
  #wakePlanned = false

  constructor(sim: Simulation, index: number, seed: number, weather: Weather) {
    this.#sim = sim
    this.label = `P${index + 1}`
    this.#weather = weather
    this.#random = new Random(mix(seed, 101 + index))
    this.#rate = weather.drift ? this.#random.between(0.996, 1.004) : 1
    this.#offset = weather.calm ? 0 : this.#random.between(-2_000, 2_000)
    this.#clockFaults = sim.faults(`${this.label}.clock`, mix(seed, 201 + index))
    this.#eventFaults = sim.faults(`${this.label}.event`, mix(seed, 301 + index))
    this.world = {
      now: () => this.#now(),
      date: () => this.#now() + this.#wallOffset,
      after: (ms, run) => this.#after(ms, run),
      random: () => this.#random.next(),
      // Code takes no time here: whenever time passes without an event, the process was frozen.
      cpu: () => 0,
      bytes: () => Uint8Array.from({ length: 16 }, () => this.#random.below(256)),
    }
  }

  /** What its monotonic clock shows at a moment of true time. */
  clockAt(time: number): number {
    return EPOCH + this.#offset + time * this.#rate
  }

  /** How much true time passes while its clock advances by `ms`. */
  trueMs(ms: number): number {
    return ms / this.#rate
  }

  get frozen(): boolean {
    return this.#busyUntil > this.#sim.now
  }

  /** A timer of the code under the library: its user sleeps. */
  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => this.#timer(ms, resolve))
  }

  /** The longest time without its processor since then. */
  longestPause(since: number): number {
    return Math.max(0, ...this.#pauses.filter(({ at }) => at >= since).map(({ ms }) => ms))
  }

  /** How much time it has lost since then, pauses that had begun before included. */
  pausedSince(since: number): number {
    return this.#pauses.filter(({ at, ms }) => at + ms > since).reduce((sum, { ms }) => sum + ms, 0)
  }

  #paused(ms: number): void {
    this.pausedMs += ms
    this.#pauses.push({ at: this.local, ms })
  }

  /** Whatever it does is over. Messages that it has sent still arrive. */
  crash(): void {
    this.crashed = true
    this.#backlog = []
    this.libraryTimers = 0
    this.#sim.note(this, 'crashes')
  }

  /** Something reaches the process at `at`: it sees it then, or when it wakes up. */
  deliver(at: number, kind: Kind, run: () => void, cancelled: () => boolean = never): void {
    this.#sim.plan(at, () => this.#see({ kind, run, cancelled }))
  }

  #see(event: Waiting): void {
    if (this.crashed) return
    if (this.#busyUntil <= this.#sim.now && this.#backlog.length === 0) return this.#execute(event)
    this.#backlog.push(event)
    this.#planWake()
  }

  #planWake(): void {
    if (this.#wakePlanned) return
    this.#wakePlanned = true
    this.#sim.plan(Math.max(this.#busyUntil, this.#sim.now), () => this.#wake())
  }

  /** Timers keep their order among themselves, and so do answers and pushes. Which of them come first is the adversary's choice. */
  #wake(): void {
    this.#wakePlanned = false
    const first = this.#random.pick(KINDS)
    const second = this.#random.pick(KINDS)
    while (this.#backlog.length > 0 && !this.crashed) {
      if (this.#busyUntil > this.#sim.now) return this.#planWake()
      let index = this.#backlog.findIndex(({ kind }) => kind === first)
      if (index < 0) index = this.#backlog.findIndex(({ kind }) => kind === second)
      if (index < 0) index = 0
      const [event] = this.#backlog.splice(index, 1)
      if (event) this.#execute(event)
    }
  }

  #execute(event: Waiting): void {
    if (event.cancelled()) return
    const sim = this.#sim
    this.local = Math.max(this.local, sim.now)
    sim.enter(this, event.run)
    if (this.crashed) return
    this.#busyUntil = this.local
    const strike = this.#eventFaults.draw([
      ['freeze', this.#weather.freeze],
      ['wall', this.#weather.setWallClock],
    ])
    if (strike?.kind === 'freeze') {
      const ms = strike.random.spread(...this.#weather.freezeMs)
      this.#busyUntil = this.local + ms
      this.#paused(ms)
      this.disturbances.push({ from: this.local, to: this.#busyUntil })
      sim.note(this, `freezes for ${ms.toFixed(1)} ms [${strike.id}]`)
    } else if (strike?.kind === 'wall') {
      this.#wallOffset = strike.random.between(-3_600_000, 3_600_000)
      sim.note(this, `wall clock is set to ${Math.round(this.#wallOffset)} ms off [${strike.id}]`)
    }
    sim.seen(this)
  }

  #now(): number {
    const sim = this.#sim
    if (sim.probing || sim.current !== this) return this.clockAt(Math.max(sim.now, this.local))
    const strike = this.#weather.jump > 0 ? this.#clockFaults.draw([['jump', this.#weather.jump]]) : undefined
    if (strike) {
      const ms = strike.random.spread(...this.#weather.jumpMs)
      this.disturbances.push({ from: this.local, to: this.local + ms })
      this.local += ms
      this.#paused(ms)
      sim.note(this, `loses its processor for ${ms.toFixed(1)} ms while reading the clock [${strike.id}]`)
    }
    return this.clockAt(this.local)
  }

  #after(ms: number, run: () => void): Cancel {
    this.libraryTimers++
    let pending = true
    const cancel = this.#timer(ms, () => {
      pending = false
      this.libraryTimers--
      run()
    })
    return () => {
      if (!pending) return
      pending = false
      this.libraryTimers--
      cancel()
    }
  }

  #timer(ms: number, run: () => void): () => void {
    let cancelled = false
    const at = this.local + this.trueMs(Math.max(ms, 0) + LEAST_LATENESS_MS)
    // Beyond the end of every schedule: it would only keep the event queue long.
    if (at < Number.MAX_SAFE_INTEGER) this.deliver(at, 'timer', run, () => cancelled)
    return () => {
      cancelled = true
    }
  }
}

function never(): boolean {
  return false
}
