import type { BatchSizes, Store } from '../store.js'

/** How many items may travel in one call of this kind. */
export function batchSize({ maxBatch = Number.POSITIVE_INFINITY }: Store, call: keyof BatchSizes): number {
  return typeof maxBatch === 'number' ? maxBatch : maxBatch[call]
}
