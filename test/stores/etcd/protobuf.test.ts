import fc from 'fast-check'
import { expect, test } from 'vitest'
import { type KeyCheck, decodeCheck, encodeCheck } from '../../../src/stores/etcd/checks.js'
import { EtcdKeys } from '../../../src/stores/etcd/keys.js'
import {
  decodeLease,
  decodeRange,
  decodeWatch,
  encodeLeaseGrant,
  encodeLeaseId,
} from '../../../src/stores/etcd/messages.js'
import { ProtoReader, ProtoWriter } from '../../../src/stores/etcd/protobuf.js'

const field = fc.integer({ min: 1, max: 200 })
const bytes = fc.uint8Array({ minLength: 1, maxLength: 300 })

test('whatever is written is read again, in order, nested messages included', () => {
  fc.assert(
    fc.property(
      fc.array(
        fc.oneof(
          fc.record({ field, number: fc.integer({ min: 1, max: Number.MAX_SAFE_INTEGER }) }),
          fc.record({ field, int64: fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }).filter((n) => n !== 0n) }),
          fc.record({ field, bytes }),
          fc.record({ field, inner: fc.array(bytes, { maxLength: 5 }) }),
        ),
      ),
      (parts) => {
        const writer = new ProtoWriter()
        for (const part of parts) {
          if ('number' in part) writer.number(part.field, part.number)
          else if ('int64' in part) writer.int64(part.field, part.int64)
          else if ('bytes' in part) writer.bytes(part.field, part.bytes)
          else writer.message(part.field, (inner) => part.inner.forEach((each) => void inner.bytes(1, each)))
        }
        const reader = new ProtoReader(writer.finish())
        for (const part of parts) {
          expect(reader.next()).toBe(true)
          expect(reader.field).toBe(part.field)
          if ('number' in part) expect(reader.number()).toBe(part.number)
          else if ('int64' in part) expect(reader.int64()).toBe(part.int64)
          else if ('bytes' in part) expect(new Uint8Array(reader.bytes())).toEqual(part.bytes)
          else {
            const inner = reader.message()
            for (const each of part.inner) {
              expect(inner.next()).toBe(true)
              expect(new Uint8Array(inner.bytes())).toEqual(each)
            }
            expect(inner.next()).toBe(false)
          }
        }
        expect(reader.next()).toBe(false)
      },
    ),
  )
})

test('fields that are not known are skipped', () => {
  const writer = new ProtoWriter().bytes(77, Buffer.from('new')).int64(2, 12n).number(99, 5).number(3, 7)
  expect(decodeLease(Buffer.from(writer.finish()))).toMatchObject({ id: 12n, ttlS: 7 })
})

test('a message that ends too early is an error, never a wrong answer or an endless loop', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 60 }), (noise) => {
      for (const decode of [decodeRange, decodeLease, decodeWatch]) {
        try {
          decode(Buffer.from(noise))
        } catch (error) {
          expect((error as Error).message).toMatch(/a message from the server/)
        }
      }
    }),
  )
  const cut = new ProtoWriter().bytes(2, Buffer.from('a key')).finish()
  expect(() => decodeRange(cut.subarray(0, cut.length - 2))).toThrow('ends too early')
})

test('the ids of leases keep all their bits', () => {
  const id = 0x7123_4567_89ab_cdefn
  expect(decodeLease(Buffer.from(new ProtoWriter().int64(2, id).finish())).id).toBe(id)
  expect(encodeLeaseId(id).length).toBe(10)
  expect(encodeLeaseGrant(id, 30).subarray(0, 2)).toEqual(Buffer.of(8, 30))
})

test('any key and owner is found again in its key in etcd, and no key lies in the directory of another', () => {
  const keys = new EtcdKeys('leasehold/')
  const text = fc.string({ unit: 'binary', minLength: 1, maxLength: 20 }).filter((each) => !each.includes('\0'))
  fc.assert(
    fc.property(text, text, text, text, (name, owner, otherName, otherOwner) => {
      const key = `lock:${name}`
      expect(keys.parse(keys.entry(key, owner))).toEqual({ key, owner, stolen: false })
      expect(keys.parse(keys.stolenEntry(key, owner))).toEqual({ key, owner, stolen: true })
      const { key: from, end } = keys.directory(key)
      const isInside = (entry: Buffer): boolean => from.compare(entry) <= 0 && entry.compare(end) < 0
      expect(isInside(keys.entry(key, owner))).toBe(true)
      if (otherName !== name) expect(isInside(keys.entry(`lock:${otherName}`, otherOwner))).toBe(false)
    }),
  )
})

/** The answer to a check whose reads found so many keys, and so many of them written since. */
function answerOf(succeeded: boolean, reads: readonly { count: number; written: number }[]): Buffer {
  const writer = new ProtoWriter().message(1, (header) => void header.number(3, 77).number(4, 5))
  writer.flag(2, succeeded)
  for (const { count, written } of reads) {
    writer.message(3, (operation) =>
      operation.message(1, (range) => {
        range.message(1, (header) => void header.number(3, 77))
        for (let i = 0; i < written; i++) range.message(2, (kv) => void kv.bytes(1, Buffer.from('key')).number(3, 78))
        range.number(4, count)
      }),
    )
  }
  return Buffer.from(writer.finish())
}

test('a check finds all unchanged only if its conditions hold and each key that it reads is there and was not written', () => {
  const read = fc.oneof(
    { weight: 9, arbitrary: fc.constant({ count: 1, written: 0 }) },
    {
      weight: 1,
      arbitrary: fc.record({ count: fc.integer({ min: 0, max: 2 }), written: fc.integer({ min: 0, max: 1 }) }),
    },
  )
  fc.assert(
    fc.property(
      fc.boolean(),
      fc.array(read, { maxLength: 20 }),
      fc.integer({ min: -1, max: 1 }),
      (held, reads, more) => {
        const check: KeyCheck = { message: Buffer.alloc(0), read: Math.max(reads.length + more, 0) }
        const isWhole = check.read === 0 ? reads.length > 0 : reads.length === check.read
        const isSame = check.read === 0 || reads.every(({ count, written }) => count === 1 && written === 0)
        const checked = decodeCheck(answerOf(held, reads), check)
        expect(checked).toEqual({ header: { revision: 77, raftTerm: 5 }, unchanged: held && isWhole && isSame })
      },
    ),
  )
})

test('a check of 250 keys compares the first half and reads the others, and one of less only compares', () => {
  const written = Array.from({ length: 250 }, (_, i) => ({ etcdKey: Buffer.from(`key:${i}`), modRevision: i + 1 }))
  expect(encodeCheck(written, Buffer.from('offset')).read).toBe(125)
  expect(encodeCheck(written.slice(0, 125), Buffer.from('offset')).read).toBe(0)
})
