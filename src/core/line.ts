import type { Awaitable, StoreEvent } from '../store.js'
import type { Ask } from './ask.js'
import type { Bell } from './bells.js'
import type { Engine } from './engine.js'
import type { Waiter } from './waiter.js'

/** So many claims that may be held at the same time ask beside each other; the rest wait here. */
const ABREAST = 64

/**
 * Those in this process who wait for one key, in order. Only the first of them stands in the store's line, unless they
 * ask for more: nothing there grows with the number of waiters, and processes take turns.
 */
export class Line {
  readonly key: string
  readonly #engine: Engine
  #first: Waiter | undefined
  #last: Waiter | undefined
  #bell: Bell | undefined
  #arming: Promise<boolean> | undefined
  #pumping = false
  /** How many of them stand in the store's line whoever is before them here. */
  #inStoreLine = 0
  /** What they have to hear of. */
  readonly #only: 'granted' | undefined

  constructor(engine: Engine, { key, onRefusal }: Ask) {
    this.#engine = engine
    this.key = key
    this.#only = onRefusal ? undefined : 'granted'
  }

  /** A bell that rings for whoever asks now would be heard. */
  get armed(): boolean {
    const { bells, store } = this.#engine
    if (this.#bell) return this.#bell.live()
    // Somebody here waited for it a moment ago, and the subscription is still there.
    if (bells.live(this.key, this.#only)) this.#bell = bells.listen(this.key, this.#hear, this.#only)
    return this.#bell !== undefined || (this.#only !== undefined && store.hearsGrants?.() === true)
  }

  /** We let go of it a moment ago, and others who wait may not have been told yet. */
  get justLetGo(): boolean {
    return this.armed && this.#bell?.expected === true
  }

  join(waiter: Waiter): void {
    waiter.previous = this.#last
    if (this.#last) this.#last.next = waiter
    else this.#first = waiter
    this.#last = waiter
    if (waiter.ask.inStoreLine) this.#inStoreLine++
  }

  leave(waiter: Waiter): void {
    const { previous, next } = waiter
    if (previous) previous.next = next
    else if (this.#first === waiter) this.#first = next
    else return
    if (next) next.previous = previous
    else this.#last = previous
    waiter.previous = waiter.next = undefined
    if (waiter.ask.inStoreLine) this.#inStoreLine--
    if (this.#first) this.#pumpSoon()
    else this.#disband()
  }

  /** Not at once: when many leave together, those in between should not ask just before they leave. */
  #pumpSoon(): void {
    if (this.#pumping) return
    this.#pumping = true
    queueMicrotask(() => {
      this.#pumping = false
      this.pump()
    })
  }

  /** Lets those ask whose turn it is. Nobody here is overtaken by one who has to stand in the store's line. */
  pump(): void {
    let abreast = 0
    let toCome = this.#inStoreLine
    for (let waiter = this.#first; waiter; waiter = waiter.next) {
      if (toCome === 0 && abreast > 0 && (waiter.exclusive || abreast >= ABREAST)) return
      if (!waiter.asking) waiter.begin()
      if (waiter.ask.inStoreLine) toCome--
      if (toCome === 0 && waiter.exclusive) return
      abreast++
    }
  }

  /**
   * True if the subscription has just come to life: then what was asked before may be out of date. `wasArmed`: when that
   * was asked.
   */
  arm(wasArmed: boolean): Awaitable<boolean> {
    const { store, bells } = this.#engine
    if (this.#bell || !store.watch) return false
    if (wasArmed && !this.#arming && this.#only && store.hearsGrants?.()) {
      this.#bell = bells.listen(this.key, this.#hear, this.#only)
      if (this.#bell?.live()) return false
      this.#unhang()
    }
    this.#arming ??= this.#hang()
    return this.#arming
  }

  *[Symbol.iterator](): Generator<Waiter> {
    let waiter = this.#first
    while (waiter) {
      const { next } = waiter
      yield waiter
      waiter = next
    }
  }

  async #hang(): Promise<boolean> {
    const bell = this.#engine.bells.listen(this.key, this.#hear, this.#only)
    if (!bell) return false
    const { ready } = bell
    const alive =
      typeof ready === 'boolean'
        ? ready
        : await this.#engine.courier.within(
            () => ready,
            () => false,
          )
    this.#arming = undefined
    this.#bell = bell
    // All left meanwhile.
    if (!this.#first) this.#unhang()
    return alive
  }

  readonly #hear = (event: StoreEvent): void => {
    let waiter = this.#first
    // Those behind have not asked yet, and have nothing to hear.
    while (waiter?.asking) {
      const { next }: Waiter = waiter
      waiter.hear(event)
      waiter = next
    }
  }

  #disband(): void {
    this.#engine.disbanded(this)
    if (!this.#arming) this.#unhang()
  }

  #unhang(): void {
    this.#bell?.remove(this.#hear, this.#engine.world.now())
    this.#bell = undefined
  }
}
