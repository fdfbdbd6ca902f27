/**
 * RENEW_AFTER: entries that are added before the map is made anew, beside twice as many as it holds. Smaller values copy more
 * often, larger ones let more garbage survive.
 */
const RENEW_AFTER = 32

/**
 * A map whose entries come and go all the time. V8 gives a `Map` a new table whenever entries have come and gone, and lets the
 * old table point at the new one. If one old table has been promoted to the old generation, every table that follows, and
 * whatever was in it, outlives all minor collections: with 64 locks in flight that was a fifth of the client's time. So the
 * whole `Map` is replaced now and then, which ends the chain.
 */
export class TransientMap<K, V> {
  #map = new Map<K, V>()
  #added = 0

  get size(): number {
    return this.#map.size
  }

  get(key: K): V | undefined {
    return this.#map.get(key)
  }

  set(key: K, value: V): void {
    if (++this.#added > RENEW_AFTER + 2 * this.#map.size) {
      this.#map = new Map(this.#map)
      this.#added = 0
    }
    this.#map.set(key, value)
  }

  delete(key: K): void {
    this.#map.delete(key)
  }

  /** As they are now: what is added or deleted meanwhile may be missed. */
  values(): Iterable<V> {
    return this.#map.values()
  }
}
