import { AsyncLocalStorage } from 'node:async_hooks'
import { onAbort } from '../../core/abort-fanout.js'
import { type Lock, leaseOf } from '../../core/lock.js'
import { ClosedError, LeaseholdError, LockLostError } from '../../errors.js'
import { formatDuration } from '../../util/duration.js'
import type { World } from '../../util/world.js'

/** What the work of a leader is given. */
export interface Leadership {
  /** The fencing token of this term: larger than that of every term before. */
  readonly term: bigint
  /**
   * Aborts before another can lead, and when this one should step down. Read from here it is exact at any instant; one
   * that was taken out earlier aborts when the event loop next turns.
   */
  readonly signal: AbortSignal
}

const lockByLeadership = new WeakMap<Leadership, Lock>()

/** The lock of a term, for `leasehold elect`: its watchdog has to know every deadline. */
export function lockOfTerm(leadership: Leadership): Lock {
  return lockByLeadership.get(leadership) as Lock
}

/** How the work of a term may end, and how long it may take. */
export interface TermRules {
  /** Of the election, for messages. */
  name: string
  /** From the abort of the work's signal until the lease is released all the same. */
  drainMs: number
  /** Each of these ends the work when it aborts; the election then waits for it no longer than `drainMs`. */
  ends: readonly AbortSignal[]
}

/** The terms whose work the current call runs in, from the outside in. */
const inside = new AsyncLocalStorage<readonly Term[]>()

/** From the moment the lease was granted until the work has ended. */
export class Term {
  readonly #world: World
  readonly #lock: Lock
  readonly #rules: TermRules
  readonly #controller = new AbortController()
  readonly #stopListening: (() => void)[] = []
  readonly #released: Promise<void>
  #resolveReleased!: () => void
  #toldToEnd = false
  #onOvertime: (() => void) | undefined
  #cancelDrain: (() => void) | undefined
  #onEnd: (() => void) | undefined
  #working = false
  #resigned = false
  /** When the lease was released, or known to be lost. */
  #overAt: number | undefined

  constructor(world: World, lock: Lock, rules: TermRules) {
    this.#world = world
    this.#lock = lock
    this.#rules = rules
    this.#released = new Promise((resolve) => (this.#resolveReleased = resolve))
    const { signal } = lock
    const tell = (): void => {
      if (leaseOf(lock).loss) this.#overAt ??= Math.min(world.now(), leaseOf(lock).deadline)
      this.#controller.abort(signal.reason)
    }
    signal.addEventListener('abort', tell, { once: true })
    if (signal.aborted) tell()
  }

  get lock(): Lock {
    return this.#lock
  }

  /** Work is still going on, whether or not the term is over. */
  get working(): boolean {
    return this.#working
  }

  /** It ends, or ended, because the leader resigned. */
  get resigned(): boolean {
    return this.#resigned
  }

  /** For how long work has been going on although the lease is lost or released. */
  get staleMs(): number {
    if (!this.#working || this.#lock.isHeld) return 0
    const now = this.#world.now(true)
    this.#overAt ??= Math.min(now, leaseOf(this.#lock).deadline)
    return Math.max(now - this.#overAt, 0)
  }

  /** Aborts the work's signal. Settles when the lease has been released; if the work itself asks, at once. */
  async resign(): Promise<void> {
    this.#resigned = true
    this.#stepDown(new LeaseholdError('RESIGNED', `stepping down from "${this.#rules.name}"`))
    if (!inside.getStore()?.includes(this)) await this.#released
  }

  /** Settles when the work has ended, or will not be waited for any longer; rejects with what the work threw. */
  async lead(work: (leadership: Leadership) => unknown): Promise<void> {
    for (const signal of this.#rules.ends) this.#stepDownOn(signal)
    this.#working = true
    const working = inside
      .run([...(inside.getStore() ?? []), this], async () => void (await work(this.#leadership())))
      .finally(() => {
        this.#working = false
      })
    working.catch(() => {})
    try {
      const inTime = await this.#within(working)
      await this.#release()
      if (!inTime) await this.#outlast(working)
    } catch (error) {
      await this.#release()
      if (!this.#isOwnAbort(error)) throw error
    } finally {
      for (const stop of this.#stopListening) stop()
      // The signal aborted while the lease was being released, when there was nothing left to wait for.
      this.#cancelDrain?.()
    }
  }

  #leadership(): Leadership {
    const lock = this.#lock
    const controller = this.#controller
    const { name } = this.#rules
    const leadership: Leadership = {
      term: lock.fencingToken,
      get signal() {
        // Reading the lock's own signal also checks its deadline, which may have passed before any timer could run.
        void lock.signal
        // Released by releaseAll(), not by this term.
        if (leaseOf(lock).released) controller.abort(new LockLostError(name, 'released'))
        return controller.signal
      },
    }
    lockByLeadership.set(leadership, lock)
    return leadership
  }

  #stepDownOn(signal: AbortSignal): void {
    const obey = (): void => {
      this.#stepDown(signal.reason)
      this.#onEnd?.()
    }
    if (signal.aborted) obey()
    else this.#stopListening.push(onAbort(signal, obey))
  }

  #stepDown(reason: unknown): void {
    this.#controller.abort(reason)
    if (this.#toldToEnd) return
    this.#toldToEnd = true
    const { drainMs } = this.#rules
    this.#cancelDrain = this.#world.after(drainMs, () => this.#onOvertime?.(), true)
  }

  /** False: the work did not end within the drain time after its signal aborted. */
  async #within(working: Promise<void>): Promise<boolean> {
    const overtime = new Promise<boolean>((resolve) => (this.#onOvertime = () => resolve(false)))
    try {
      return await Promise.race([working.then(() => true), overtime])
    } finally {
      this.#onOvertime = undefined
      this.#cancelDrain?.()
    }
  }

  /**
   * The lease is gone and the work still runs. A new term would start more work beside it, so the work is awaited, unless
   * the election ends.
   */
  async #outlast(working: Promise<void>): Promise<void> {
    const { name, drainMs, ends } = this.#rules
    const ended = new Promise<void>((resolve) => (this.#onEnd = resolve))
    if (ends.some((signal) => signal.aborted)) this.#onEnd?.()
    await Promise.race([working, ended])
    if (!this.#working) return
    throw new LeaseholdError(
      'DRAIN_TIMEOUT',
      `the work of "${name}" did not end within ${formatDuration(drainMs)} of being told to: it still runs, and another may lead`,
    )
  }

  /** Only when the work has ended or had its time: released earlier, the lease would let two lead at once. */
  async #release(): Promise<void> {
    await this.#lock.release()
    this.#overAt ??= this.#world.now()
    this.#resolveReleased()
  }

  /** Work that throws because its signal aborted has ended as asked. */
  #isOwnAbort(error: unknown): boolean {
    const { signal } = this.#controller
    if (!signal.aborted) return false
    if (error === signal.reason || error === leaseOf(this.#lock).loss) return true
    if (error instanceof LockLostError) return error.lock === this.#rules.name
    return error instanceof ClosedError || (error instanceof Error && error.name === 'AbortError')
  }
}
