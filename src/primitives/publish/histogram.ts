/** Buckets per doubling: neighbours differ by 19 %, which is more exact than any percentile is read. */
const PER_DOUBLING = 4
/** The last bucket: two days. Longer times count as that. */
const LAST = 110

/** Counts of durations in buckets that grow by 19 %. As JSON: bucket, count, bucket, count, … without the empty ones. */
export class Histogram {
  readonly #counts = new Map<number, number>()
  /** Of all durations that were added one by one, in milliseconds. */
  sumMs = 0
  total = 0

  add(ms: number): void {
    const bucket = bucketOf(ms)
    this.#counts.set(bucket, (this.#counts.get(bucket) ?? 0) + 1)
    this.sumMs += Math.max(ms, 0)
    this.total++
  }

  /** Adds what another one counted, from its JSON. Whatever is no bucket or no count is left out. */
  merge(sparse: readonly number[]): void {
    for (let i = 0; i + 1 < sparse.length; i += 2) {
      const [bucket, count] = [sparse[i] as number, sparse[i + 1] as number]
      if (!Number.isInteger(bucket) || bucket < 0 || bucket > LAST || !(count > 0)) continue
      this.#counts.set(bucket, (this.#counts.get(bucket) ?? 0) + count)
      this.total += count
    }
  }

  /** The duration that this share stayed below: `percentile(0.95)`. Undefined without any. */
  percentile(share: number): number | undefined {
    if (this.total === 0) return undefined
    let left = share * this.total
    for (const bucket of this.#sorted()) {
      left -= this.#counts.get(bucket) as number
      if (left <= 1e-9) return upperBound(bucket)
    }
    return upperBound(LAST)
  }

  /** How many stayed at or below this. Exact if it is the bound of a bucket, such as a power of two. */
  countUpTo(ms: number): number {
    let count = 0
    for (const [bucket, n] of this.#counts) if (upperBound(bucket) <= ms) count += n
    return count
  }

  toJSON(): number[] {
    return this.#sorted().flatMap((bucket) => [bucket, this.#counts.get(bucket) as number])
  }

  #sorted(): number[] {
    return [...this.#counts.keys()].sort((a, b) => a - b)
  }
}

/** Bucket 0 holds everything up to a millisecond. */
function bucketOf(ms: number): number {
  if (!(ms > 1)) return 0
  return Math.min(Math.ceil(Math.log2(ms) * PER_DOUBLING - 1e-9), LAST)
}

function upperBound(bucket: number): number {
  return 2 ** (bucket / PER_DOUBLING)
}
