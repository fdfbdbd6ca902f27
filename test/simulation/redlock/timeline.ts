/** Virtual time: what is planned happens in order, and nothing takes any time by itself. */
export class Timeline {
  now = 0
  #events: Planned[] = []

  at(time: number, run: () => void): Planned {
    const event = { time: Math.max(time, this.now), run, cancelled: false }
    const heap = this.#events
    let i = heap.length
    heap.push(event)
    while (i > 0) {
      const parent = (i - 1) >> 1
      if ((heap[parent] as Planned).time <= event.time) break
      heap[i] = heap[parent] as Planned
      i = parent
    }
    heap[i] = event
    return event
  }

  /** Until nothing is left to happen, or so much time has passed. */
  run(until: number): void {
    for (;;) {
      const event = this.#next()
      if (!event || event.time > until) return
      if (event.cancelled) continue
      this.now = event.time
      event.run()
    }
  }

  #next(): Planned | undefined {
    const heap = this.#events
    const first = heap[0]
    const last = heap.pop()
    if (!first || !last || heap.length === 0) return first
    let i = 0
    for (;;) {
      let child = 2 * i + 1
      if (child >= heap.length) break
      if (child + 1 < heap.length && (heap[child + 1] as Planned).time < (heap[child] as Planned).time) child++
      if ((heap[child] as Planned).time >= last.time) break
      heap[i] = heap[child] as Planned
      i = child
    }
    heap[i] = last
    return first
  }
}

export interface Planned {
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
