/**
 * Protocol Buffers, as much of them as etcd's API needs: variable-length integers, and fields with a length.
 *
 * @module
 */

/** Wire types: how the value of a field is laid out. */
const VARINT = 0
const FIXED64 = 1
const BYTES = 2
const FIXED32 = 5

const FIRST_SIZE = 512

/** Writes one message. Fields with the default value are left out, as the format asks for. */
export class ProtoWriter {
  #bytes = Buffer.allocUnsafe(FIRST_SIZE)
  #length = 0

  #reserve(size: number): void {
    if (this.#length + size <= this.#bytes.length) return
    const larger = Buffer.allocUnsafe(Math.max(this.#bytes.length * 2, this.#length + size))
    this.#bytes.copy(larger, 0, 0, this.#length)
    this.#bytes = larger
  }

  #varint(value: number): void {
    this.#reserve(10)
    let rest = value
    while (rest > 0x7f) {
      this.#bytes[this.#length++] = (rest % 128) | 0x80
      rest = Math.floor(rest / 128)
    }
    this.#bytes[this.#length++] = rest
  }

  /** A number from 0 to 2^53. */
  number(field: number, value: number): this {
    if (value === 0) return this
    this.#varint(field * 8 + VARINT)
    this.#varint(value)
    return this
  }

  flag(field: number, value: boolean | undefined): this {
    return value ? this.number(field, 1) : this
  }

  int64(field: number, value: bigint): this {
    if (value === 0n) return this
    this.#varint(field * 8 + VARINT)
    this.#reserve(10)
    // In halves: arithmetic with bigints for each byte would cost more than all the rest of a keep-alive.
    let low = Number(BigInt.asUintN(32, value))
    let high = Number(BigInt.asUintN(32, value >> 32n))
    while (high > 0 || low > 0x7f) {
      this.#bytes[this.#length++] = (low & 0x7f) | 0x80
      low = ((low >>> 7) | (high << 25)) >>> 0
      high >>>= 7
    }
    this.#bytes[this.#length++] = low
    return this
  }

  bytes(field: number, value: Uint8Array | undefined): this {
    if (value === undefined || value.length === 0) return this
    this.#varint(field * 8 + BYTES)
    this.#varint(value.length)
    this.#reserve(value.length)
    this.#bytes.set(value, this.#length)
    this.#length += value.length
    return this
  }

  text(field: number, value: string): this {
    return this.bytes(field, Buffer.from(value))
  }

  /** A message inside this one, also if it is empty. Written in place, and moved by the size of its length prefix. */
  message(field: number, write: (writer: this) => void): this {
    this.#varint(field * 8 + BYTES)
    const start = this.#length
    write(this)
    const size = this.#length - start
    let prefix = 1
    for (let rest = size; rest > 0x7f; rest = Math.floor(rest / 128)) prefix++
    this.#reserve(prefix)
    this.#bytes.copyWithin(start + prefix, start, this.#length)
    this.#length = start
    this.#varint(size)
    this.#length = start + prefix + size
    return this
  }

  finish(): Buffer {
    return this.#bytes.subarray(0, this.#length)
  }
}

/** Reads one message field by field: `while (reader.next()) switch (reader.field) …`. Fields that are not read are skipped. */
export class ProtoReader {
  readonly #bytes: Buffer
  readonly #end: number
  #at: number
  #wire = -1
  /** Where the present field begins. */
  #fieldAt = 0
  field = 0

  constructor(bytes: Buffer, from = 0, to: number = bytes.length) {
    this.#bytes = bytes
    this.#at = from
    this.#end = to
  }

  next(): boolean {
    if (this.#wire >= 0) this.#skip()
    if (this.#at >= this.#end) return false
    this.#fieldAt = this.#at
    const tag = this.#varint()
    this.field = tag >>> 3
    this.#wire = tag & 7
    return true
  }

  #byte(): number {
    const byte = this.#at < this.#end ? this.#bytes[this.#at++] : undefined
    if (byte === undefined) throw new Error('a message from the server ends too early')
    return byte
  }

  #varint(): number {
    let value = 0
    for (let factor = 1; ; factor *= 128) {
      const byte = this.#byte()
      value += (byte & 0x7f) * factor
      if (byte < 0x80) return value
    }
  }

  /** Exact up to 2^53. */
  number(): number {
    this.#wire = -1
    return this.#varint()
  }

  int64(): bigint {
    this.#wire = -1
    // Groups of seven bits, collected in three numbers: arithmetic with bigints for each byte costs more.
    let low = 0
    let middle = 0
    let high = 0
    for (let group = 0; ; group++) {
      const byte = this.#byte()
      const bits = byte & 0x7f
      if (group < 4) low |= bits << (7 * group)
      else if (group < 8) middle |= bits << (7 * (group - 4))
      else if (group < 10) high |= bits << (7 * (group - 8))
      else throw new Error('a message from the server has a number that is too long')
      if (byte < 0x80) break
    }
    return BigInt.asIntN(64, BigInt(low) | (BigInt(middle) << 28n) | (BigInt(high) << 56n))
  }

  bytes(): Buffer {
    const end = this.#fieldEnd()
    const value = this.#bytes.subarray(this.#at, end)
    this.#at = end
    return value
  }

  text(): string {
    return this.bytes().toString()
  }

  message(): ProtoReader {
    const end = this.#fieldEnd()
    const reader = new ProtoReader(this.#bytes, this.#at, end)
    this.#at = end
    return reader
  }

  /** The present field, with its number, and all that follow. */
  rest(): Buffer {
    this.#wire = -1
    this.#at = this.#end
    return this.#bytes.subarray(this.#fieldAt, this.#end)
  }

  #fieldEnd(): number {
    this.#wire = -1
    const size = this.#varint()
    if (this.#at + size > this.#end) throw new Error('a message from the server ends too early')
    return this.#at + size
  }

  #skip(): void {
    const wire = this.#wire
    if (wire === VARINT) this.number()
    else if (wire === BYTES) this.bytes()
    else if (wire === FIXED64) this.#at += 8
    else if (wire === FIXED32) this.#at += 4
    else throw new Error(`a message from the server has a field of unknown layout ${wire}`)
    this.#wire = -1
  }
}
