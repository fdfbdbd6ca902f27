/** Something that happens at a moment of true time. */
export interface SimEvent {
  at: number
  /** Of two events at the same moment, the one that was planned first happens first. */
  order: number
  run: () => void
  cancelled: boolean
}

/** A binary heap: the earliest event first. */
export class EventQueue {
  readonly #heap: SimEvent[] = []
  #planned = 0

  plan(at: number, run: () => void): SimEvent {
    const event: SimEvent = { at, order: this.#planned++, run, cancelled: false }
    const heap = this.#heap
    let i = heap.length
    heap.push(event)
    while (i > 0) {
      const parent = (i - 1) >> 1
      const above = heap[parent] as SimEvent
      if (!earlier(event, above)) break
      heap[i] = above
      i = parent
    }
    heap[i] = event
    return event
  }

  /** The earliest event that nobody cancelled, if it is due by then. */
  next(until: number): SimEvent | undefined {
    for (;;) {
      const first = this.#heap[0]
      if (!first || (first.at > until && !first.cancelled)) return undefined
      this.#removeFirst()
      if (!first.cancelled) return first
    }
  }

  #removeFirst(): void {
    const heap = this.#heap
    const last = heap.pop() as SimEvent
    if (heap.length === 0) return
    let i = 0
    for (;;) {
      let child = 2 * i + 1
      if (child >= heap.length) break
      if (child + 1 < heap.length && earlier(heap[child + 1] as SimEvent, heap[child] as SimEvent)) child++
      if (!earlier(heap[child] as SimEvent, last)) break
      heap[i] = heap[child] as SimEvent
      i = child
    }
    heap[i] = last
  }
}

function earlier(a: SimEvent, b: SimEvent): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order)
}
