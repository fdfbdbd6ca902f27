/**
 * Where Redis Cluster keeps a key.
 *
 * @module
 */

export const SLOTS = 16_384

const table: Uint16Array = new Uint16Array(256).map((_, byte) => {
  let crc = byte << 8
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1
  return crc
})

function crc16(bytes: Uint8Array): number {
  let crc = 0
  for (const byte of bytes) crc = ((crc << 8) & 0xffff) ^ (table[(crc >> 8) ^ byte] as number)
  return crc
}

/** The part of a key that decides its slot: between the first `{` and the next `}`, if there is anything between them. */
export function hashTag(key: string): string | undefined {
  const open = key.indexOf('{')
  const close = open < 0 ? -1 : key.indexOf('}', open)
  return close > open + 1 ? key.slice(open + 1, close) : undefined
}

export function slotOf(key: string): number {
  return crc16(Buffer.from(hashTag(key) ?? key)) % SLOTS
}

let tags: string[] | undefined

/** A short text that lies in this slot, for keys that belong to the slot rather than to a name. */
export function tagOf(slot: number): string {
  tags ??= findTags()
  return tags[slot] as string
}

/** Some 170,000 tries, 30 ms, and only on a cluster. */
function findTags(): string[] {
  const found: string[] = []
  let missing = SLOTS
  for (let i = 0; missing > 0; i++) {
    const tag = i.toString(36)
    const slot = slotOf(tag)
    if (found[slot] !== undefined) continue
    found[slot] = tag
    missing--
  }
  return found
}
