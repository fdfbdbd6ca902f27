import type { Cancel, World } from '../util/world.js'
import { warn } from './guarded.js'

/**
 * Something that is due at a time. Subclasses are called back: no timer object, no closure, and setting and clearing
 * cost a few pointers, because most leases are released long before anything about them is due.
 */
export abstract class Timed {
  /** @internal */ dueAt = 0
  /** @internal */ before: Timed | undefined = undefined
  /** @internal */ after: Timed | undefined = undefined
  /** @internal */ queue: Queue | undefined = undefined

  abstract due(now: number): void
}

interface Queue {
  readonly delay: number
  /** These may be called up to this much earlier, when others are due anyway, so that they can travel together. */
  earlyMs: number
  first: Timed | undefined
  last: Timed | undefined
}

/** Fewer lists than this are not worth looking for empty ones. */
const FEW_QUEUES = 64

/**
 * One real timer for any number of things that are due. Things with the same delay fall due in the order in which they
 * were set, so a list for each delay keeps them sorted without a heap.
 */
export class Timers {
  readonly #world: World
  readonly #keepAlive: boolean
  readonly #queues = new Map<number, Queue>()
  /** Items without a due time yet. */
  readonly #parked: Queue = { delay: Number.POSITIVE_INFINITY, earlyMs: 0, first: undefined, last: undefined }
  #latestQueue: Queue | undefined
  #cancel: Cancel | undefined
  #armedFor = Number.POSITIVE_INFINITY
  #count = 0
  #mostQueues = FEW_QUEUES

  constructor(world: World, keepAlive = false) {
    this.#world = world
    this.#keepAlive = keepAlive
  }

  /** Call `item` at `dueAt`, instead of whenever it was due before. `delay` is its usual delay, and chooses the list. */
  set(item: Timed, dueAt: number, delay: number, earlyMs = 0): void {
    // No time is before or after NaN: as the next time that is due it would leave all lists without a timer.
    if (Number.isNaN(dueAt)) return this.set(item, this.#world.now(), delay)
    if (item.queue) this.#unlink(item)
    else if (this.#count++ === 0 && this.#keepAlive) this.#cancel?.keepAlive?.(true)
    item.dueAt = dueAt
    const queue = this.#queueFor(delay)
    queue.earlyMs = earlyMs
    item.queue = queue
    let before = queue.last
    while (before && before.dueAt > dueAt) before = before.before
    const after = before ? before.after : queue.first
    item.before = before
    item.after = after
    if (before) before.after = item
    else queue.first = item
    if (after) after.before = item
    else queue.last = item
    if (dueAt < this.#armedFor) this.#arm(dueAt)
  }

  /** Adds it without a due time, which `set` gives later: the real timer, the expensive part, is not touched. */
  park(item: Timed): void {
    this.#count++
    item.queue = this.#parked
    item.before = this.#parked.last
    if (item.before) item.before.after = item
    else this.#parked.first = item
    this.#parked.last = item
  }

  /** Puts `item` where `before` is, which is not due any more. Costs a few pointers, whatever the list. */
  replace(before: Timed, item: Timed): void {
    const { queue, dueAt } = before
    if (!queue) return
    item.dueAt = dueAt
    item.queue = queue
    item.before = before.before
    item.after = before.after
    if (item.before) item.before.after = item
    else queue.first = item
    if (item.after) item.after.before = item
    else queue.last = item
    before.queue = before.before = before.after = undefined
  }

  /**
   * The timer itself is left as it is: it finds nothing to do, which is cheaper than setting it anew for the next. But
   * no process is kept alive for nothing.
   */
  clear(item: Timed): void {
    if (!item.queue) return
    this.#unlink(item)
    if (--this.#count > 0 || !this.#keepAlive) return
    if (this.#cancel?.keepAlive) this.#cancel.keepAlive(false)
    else this.#disarm()
  }

  #unlink(item: Timed): void {
    const { queue, before, after } = item
    if (!queue) return
    if (before) before.after = after
    else queue.first = after
    if (after) after.before = before
    else queue.last = before
    item.queue = item.before = item.after = undefined
  }

  *[Symbol.iterator](): Generator<Timed> {
    for (const queue of [this.#parked, ...this.#queues.values()]) {
      let item = queue.first
      while (item) {
        const { after } = item
        yield item
        item = after
      }
    }
  }

  stop(): void {
    this.#disarm()
    this.#queues.clear()
    this.#latestQueue = undefined
  }

  #queueFor(delay: number): Queue {
    return this.#latestQueue?.delay === delay ? this.#latestQueue : this.#findQueue(delay)
  }

  #findQueue(delay: number): Queue {
    let queue = this.#queues.get(delay)
    if (!queue) {
      if (this.#queues.size >= this.#mostQueues) this.#sweep()
      this.#queues.set(delay, (queue = { delay, earlyMs: 0, first: undefined, last: undefined }))
    }
    this.#latestQueue = queue
    return queue
  }

  /** Callers whose delays all differ, and who never let one pass, would leave an empty list behind for each. */
  #sweep(): void {
    for (const queue of this.#queues.values()) if (!queue.first) this.#queues.delete(queue.delay)
    this.#mostQueues = Math.max(FEW_QUEUES, this.#queues.size * 2)
  }

  #arm(dueAt: number): void {
    this.#cancel?.()
    this.#armedFor = dueAt
    this.#cancel = this.#world.after(Math.max(dueAt - this.#world.now(), 0), () => this.#fire(), this.#keepAlive)
  }

  #disarm(): void {
    this.#cancel?.()
    this.#cancel = undefined
    this.#armedFor = Number.POSITIVE_INFINITY
  }

  #fire(): void {
    this.#cancel = undefined
    this.#armedFor = Number.POSITIVE_INFINITY
    const now = this.#world.now()
    for (const queue of this.#queues.values()) {
      // What is set while these run waits for the next time, or a delay of zero would never end.
      const last = queue.last
      let item = queue.first
      while (item && item.dueAt - queue.earlyMs <= now) {
        this.#unlink(item)
        this.#count--
        // One that throws must not cost the others their time.
        try {
          item.due(now)
        } catch (error) {
          warn(error)
        }
        if (item === last) break
        item = queue.first
      }
    }
    let next = Number.POSITIVE_INFINITY
    for (const queue of this.#queues.values()) {
      if (queue.first) next = Math.min(next, queue.first.dueAt)
      else if (queue !== this.#latestQueue) this.#queues.delete(queue.delay)
    }
    if (next < this.#armedFor) this.#arm(next)
  }
}

/** A callback that is due at a time. */
export class Alarm extends Timed {
  readonly #callback: () => void

  constructor(callback: () => void) {
    super()
    this.#callback = callback
  }

  override due(): void {
    this.#callback()
  }
}
