import type { Cancel, World } from '../util/world.js'

/**
 * How often the event loop is looked at while locks are held. Shorter wakes an idle process more often for nothing; longer
 * makes the beginning of a stall, and the processor time used during it, less certain.
 */
const TICK_MS = 250

/** A tick that is late by less is not remembered: timers are a few milliseconds late on every busy machine. */
const NOTABLE_MS = 20

/** Stalls remembered at most. Each is longer than all after it: only ever shorter ones need more than one place. */
const MOST_STALLS = 16

/**
 * BUSY_SHARE: a process that used this share of a stall as processor time was busy, not frozen. In a long stall
 * STARVED_SHARE is enough, because on a machine with ten other busy processes, or in a small container, a busy
 * process gets no more; but not less than STARVED_MS of processor time, which may all come from the tick before the
 * stall.
 */
const BUSY_SHARE = 0.1
const STARVED_SHARE = 0.03
const STARVED_MS = 150

/** A time during which the event loop did not turn. */
export interface Stall {
  from: number
  to: number
  /** Undefined: nobody knows. */
  busy: boolean | undefined
}

/**
 * Notices how long the event loop does not turn, while this instance holds locks: one timer for all of them, which ends by
 * itself when nothing is held. Sequential locks find it running, and pay for one comparison.
 */
export class StallMonitor {
  readonly #world: World
  readonly #isNeeded: () => boolean
  #cancel: Cancel | undefined
  #tickedAt = 0
  #cpuAtTick = 0
  /** Share of processor time between the last two ticks that were on time. */
  #usualShare = 0
  /** The oldest first, each longer than the ones after it. */
  readonly #stalls: Stall[] = []

  constructor(world: World, isNeeded: () => boolean) {
    this.#world = world
    this.#isNeeded = isNeeded
  }

  /** Something is held from now on. */
  watch(): void {
    if (!this.#cancel) this.#start(this.#world.now())
  }

  stop(): void {
    this.#cancel?.()
    this.#cancel = undefined
  }

  /**
   * The longest stall after `since`, the present one included: this may be asked by the code that blocks.
   * `dueAt`: another timer was due then, which has not fired or fires now.
   */
  longestSince(since: number, now: number, dueAt: number): Stall | undefined {
    const current = this.#cancel && this.#stallUntil(now, dueAt)
    let longest: Stall | undefined
    for (const stall of current ? [...this.#stalls, current] : this.#stalls) {
      // The loop turned at `since`, when something was sent.
      const from = Math.max(stall.from, since)
      if (stall.to - from > (longest ? longest.to - longest.from : 0)) longest = { ...stall, from }
    }
    return longest
  }

  #start(now: number): void {
    this.#tickedAt = now
    this.#cpuAtTick = this.#world.cpu?.() ?? 0
    this.#cancel = this.#world.after(TICK_MS, this.#tick)
  }

  readonly #tick = (): void => {
    const now = this.#world.now()
    const stall = this.#stallUntil(now, Number.POSITIVE_INFINITY)
    if (stall) this.#remember(stall)
    else this.#usualShare = this.#cpuSinceTick() / (now - this.#tickedAt)
    if (this.#isNeeded()) this.#start(now)
    else this.#cancel = undefined
  }

  #cpuSinceTick(): number {
    return (this.#world.cpu?.() ?? 0) - this.#cpuAtTick
  }

  #stallUntil(now: number, dueAt: number): Stall | undefined {
    const from = Math.min(this.#tickedAt + TICK_MS, Math.max(dueAt, this.#tickedAt))
    if (now - from < NOTABLE_MS) return undefined
    // The time before the stall belongs to the everyday work of the process.
    const cpu = this.#cpuSinceTick() - this.#usualShare * (from - this.#tickedAt)
    return { from, to: now, busy: this.#world.cpu && isBusy(cpu, now - from) }
  }

  #remember(stall: Stall): void {
    const stalls = this.#stalls
    for (let last = stalls.at(-1); last && last.to - last.from <= stall.to - stall.from; last = stalls.at(-1))
      stalls.pop()
    stalls.push(stall)
    if (stalls.length > MOST_STALLS) stalls.shift()
  }
}

function isBusy(cpuMs: number, stallMs: number): boolean {
  return cpuMs >= Math.min(stallMs * BUSY_SHARE, Math.max(stallMs * STARVED_SHARE, STARVED_MS))
}
