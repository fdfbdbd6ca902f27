/** Virtual time: planned events happen in order, and nothing takes any time by itself. */
export class VirtualTimeline {
  now = 0
  #events: PlannedEvent[] = []

  at(time: number, run: () => void): PlannedEvent {
    const event = { time: Math.max(time, this.now), run, cancelled: false }
    const heap = this.#events
    let i = heap.length
    heap.push(event)
    while (i > 0) {
      const parent = (i - 1) >> 1
      if ((heap[parent] as PlannedEvent).time <= event.time) break
      heap[i] = heap[parent] as PlannedEvent
      i = parent
    }
    heap[i] = event
    return event
  }

  /** Runs until no event is left, or until this time. */
  run(until: number): void {
    for (;;) {
      const event = this.#next()
      if (!event || event.time > until) return
      if (event.cancelled) continue
      this.now = event.time
      event.run()
    }
  }

  #next(): PlannedEvent | undefined {
    const heap = this.#events
    const first = heap[0]
    const last = heap.pop()
    if (!first || !last || heap.length === 0) return first
    let i = 0
    for (;;) {
      let child = 2 * i + 1
      if (child >= heap.length) break
      if (child + 1 < heap.length && (heap[child + 1] as PlannedEvent).time < (heap[child] as PlannedEvent).time)
        child++
      if ((heap[child] as PlannedEvent).time >= last.time) break
      heap[i] = heap[child] as PlannedEvent
      i = child
    }
    heap[i] = last
    return first
  }
}

export interface PlannedEvent {
  time: number
  run: () => void
  cancelled: boolean
}

/** The same seed gives the same numbers, 0 ≤ x < 1. (mulberry32) */
export function chance(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
