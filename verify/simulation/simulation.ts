import { EventQueue, type SimEvent } from './event-queue.js'
import type { SimProcess } from './process.js'
import { Faults } from './random.js'

/** One line of a timeline. */
export interface TraceLine {
  at: number
  /** A process, or undefined for the server. */
  who: string
  text: string
}

/** Runs microtasks and `process.nextTick` callbacks until none is left, promise rejections included. */
const drain = (process as unknown as { _tickCallback: () => void })._tickCallback

/** One virtual time for all processes and the server. */
export class Simulation {
  /** True time since the beginning, in milliseconds. */
  now = 0
  /** The process whose code runs. */
  current: SimProcess | undefined
  /** The judge looks: clocks stand still meanwhile. */
  probing = false
  events = 0
  /** Calls for every event that a process has seen, when all that follows from it has happened. */
  onSeen: (process: SimProcess) => void = () => {}
  /** Somebody threw where nobody can catch. */
  onThrow: (process: SimProcess | undefined, error: unknown) => void = () => {}
  /** Ids of the faults that struck. */
  readonly struck: string[] = []
  readonly trace: TraceLine[] | undefined
  readonly #suppressed: ReadonlySet<string>
  readonly #queue = new EventQueue()
  readonly #faults: Faults[] = []

  constructor(options: { trace: boolean; suppressed: ReadonlySet<string> }) {
    this.trace = options.trace ? [] : undefined
    this.#suppressed = options.suppressed
  }

  faults(stream: string, seed: number): Faults {
    const faults = new Faults(stream, seed, this.#suppressed, this.struck)
    this.#faults.push(faults)
    return faults
  }

  /** From now on nothing goes wrong any more. */
  clearUp(): void {
    for (const faults of this.#faults) faults.over = true
  }

  /** The next round: things go wrong again. */
  roughen(): void {
    for (const faults of this.#faults) faults.over = false
  }

  plan(at: number, run: () => void): SimEvent {
    return this.#queue.plan(Math.max(at, this.now), run)
  }

  note(who: SimProcess | undefined, text: string): void {
    this.trace?.push({ at: who ? Math.max(who.local, this.now) : this.now, who: who?.label ?? 'server', text })
  }

  /** Lets everything happen that is planned until then. */
  run(until: number, mostEvents: number): boolean {
    for (let event = this.#queue.next(until); event; event = this.#queue.next(until)) {
      if (++this.events > mostEvents) return false
      this.now = event.at
      event.run()
    }
    this.now = until
    return true
  }

  /** Runs code of a process, and all that follows from it without waiting for time or messages. */
  enter(process: SimProcess, run: () => void): void {
    this.current = process
    try {
      run()
    } catch (error) {
      this.onThrow(process, error)
    }
    drain()
    this.current = undefined
  }

  seen(process: SimProcess): void {
    this.onSeen(process)
  }

  /** Looks at what a process believes at this moment, without any effect on it. */
  probe<T>(look: () => T): T {
    const before = this.probing
    this.probing = true
    try {
      return look()
    } finally {
      this.probing = before
    }
  }
}

/** Throws unless `drain` leaves nothing behind: a schedule would not be the same twice. Call it outside of any promise. */
export function checkDrain(): void {
  const seen: number[] = []
  void Promise.resolve().then(() => {
    seen.push(1)
    process.nextTick(() => {
      seen.push(2)
      queueMicrotask(() => {
        seen.push(3)
        process.nextTick(async () => {
          await undefined
          seen.push(4)
        })
      })
    })
  })
  drain()
  if (seen.join() !== '1,2,3,4') throw new Error(`this version of Node cannot drain its queues: ${seen.join()}`)
}
