/**
 * What etcd takes in one request: 1.5 MiB unless it was started with another `--max-request-bytes`.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'

/** Bytes of values and keys in one request. Below etcd's limit, because what surrounds them is not counted. */
export const MOST_BYTES = 1_000_000
/**
 * Bytes of one record, which then travels once and in a request of its own. A request that takes a key or else enters
 * its queue carries the record twice: it is not sent for a large one (`mayQueue` in acquire.ts).
 */
const LARGEST_VALUE = 1_560_000

/** Parts of at most so many items, and of at most so many bytes unless an item alone has more. In order. */
export function inPartsOf<T>(items: readonly T[], most: number, sizeOf: (item: T) => number): T[][] {
  const parts: T[][] = []
  let bytes = 0
  for (const item of items) {
    const size = sizeOf(item)
    const last = parts.at(-1)
    if (last && last.length < most && bytes + size <= MOST_BYTES) {
      last.push(item)
      bytes += size
    } else {
      parts.push([item])
      bytes = size
    }
  }
  return parts
}

/** Undefined: etcd can carry it. Refused here, because etcd would refuse all that travels with it, and only after it was sent. */
export function tooLarge(option: string, record: Buffer): InvalidOptionError | undefined {
  if (record.length <= LARGEST_VALUE) return undefined
  return new InvalidOptionError(option, record.length, `at most ${LARGEST_VALUE} bytes, which etcd takes in a request`)
}
