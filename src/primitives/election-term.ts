import { AsyncLocalStorage } from 'node:async_hooks'
import { onAbort } from '../core/cancel.js'
import { type Lock, leaseOf } from '../core/lock.js'
import { ClosedError, LeaseholdError, LockLostError } from '../errors.js'
import { formatDuration } from '../kit/duration.js'
import type { World } from '../kit/world.js'

/** What the one who leads is given. */
export interface Leadership {
  /** The fencing token of this term: larger than that of every term before. */
  readonly term: bigint
  /**
   * Aborts before another can lead, and when this one should step down. Read from here it is exact at any instant; one
   * that was taken out earlier aborts when the event loop next turns.
   */
  readonly signal: AbortSignal
}

/** How the work of a term may end, and how long it may take. */
export interface TermRules {
  /** Of the election, for messages. */
  name: string
  /** From being told to end until the lease is let go all the same. */
  drainMs: number
  /** These tell the work to end, and afterwards nobody waits for it any longer than `drainMs`. */
  ends: readonly AbortSignal[]
}

/** The terms whose work we are in, from the outside in. */
const inside = new AsyncLocalStorage<readonly Term[]>()

/** From the moment the lease was granted until the work has ended. */
export class Term {
  readonly #world: World
  readonly #lock: Lock
  readonly #rules: TermRules
  readonly #controller = new AbortController()
  readonly #stopListening: (() => void)[] = []
  readonly #letGo: Promise<void>
  #tellLetGo!: () => void
  #toldToEnd = false
  #onOvertime: (() => void) | undefined
  #cancelDrain: (() => void) | undefined
  #onEnd: (() => void) | undefined
  #working = false
  #resigned = false
  /** When the lease was let go, or known to be lost. */
  #overAt: number | undefined

  constructor(world: World, lock: Lock, rules: TermRules) {
    this.#world = world
    this.#lock = lock
    this.#rules = rules
    this.#letGo = new Promise((resolve) => (this.#tellLetGo = resolve))
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

  /** It ends, or ended, because the leader said so. */
  get resigned(): boolean {
    return this.#resigned
  }

  /** For how long work has been going on although the lease is not ours any more. */
  get staleMs(): number {
    if (!this.#working || this.#lock.isHeld) return 0
    const now = this.#world.now(true)
    this.#overAt ??= Math.min(now, leaseOf(this.#lock).deadline)
    return Math.max(now - this.#overAt, 0)
  }

  /** Tells the work to end. Settles when the lease has been let go; if the work itself asks, at once. */
  async resign(): Promise<void> {
    this.#resigned = true
    this.#stepDown(new LeaseholdError('RESIGNED', `stepping down from "${this.#rules.name}"`))
    if (!inside.getStore()?.includes(this)) await this.#letGo
  }

  /** Settles when the work has ended, or will not be waited for any longer; rejects with what the work threw. */
  async lead(work: (leadership: Leadership) => unknown): Promise<void> {
    for (const signal of this.#rules.ends) this.#obey(signal)
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
      if (!this.#isObedience(error)) throw error
    } finally {
      for (const stop of this.#stopListening) stop()
      // Told to end while the lease was being let go, when there was nothing left to wait for.
      this.#cancelDrain?.()
    }
  }

  #leadership(): Leadership {
    const lock = this.#lock
    const controller = this.#controller
    const { name } = this.#rules
    return {
      term: lock.fencingToken,
      get signal() {
        // Looking at the lock's own signal settles a deadline that has passed before any timer could say so.
        void lock.signal
        // Let go behind our back, by releaseAll().
        if (leaseOf(lock).released) controller.abort(new LockLostError(name, 'released'))
        return controller.signal
      },
    }
  }

  #obey(signal: AbortSignal): void {
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

  /** False: the work was told to end, and did not do so within the drain time. */
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
   * The lease is gone and the work is not. A new campaign would set more work beside it, so it is waited for; but not by
   * somebody who wants to end.
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

  /** Only when the work has ended or had its time: a lease let go before would let two lead at once. */
  async #release(): Promise<void> {
    await this.#lock.release()
    this.#overAt ??= this.#world.now()
    this.#tellLetGo()
  }

  /** Work that was told to stop and throws for that reason has done what it was told. */
  #isObedience(error: unknown): boolean {
    const { signal } = this.#controller
    if (!signal.aborted) return false
    if (error === signal.reason || error === leaseOf(this.#lock).loss) return true
    if (error instanceof LockLostError) return error.lock === this.#rules.name
    return error instanceof ClosedError || (error instanceof Error && error.name === 'AbortError')
  }
}
