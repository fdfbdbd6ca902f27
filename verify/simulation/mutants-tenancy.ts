import type { Mutant } from './mutants.js'

const LEASE = 'core/lease.ts'
const TENANCY = 'core/tenancy.ts'
const MEMORY_TABLE = 'stores/memory/lease-table.ts'

/** Mistakes of locks that are passed on inside a process. */
export const TENANCY_MUTANTS: readonly Mutant[] = [
  {
    name: 'a lease that was lost or revoked is passed on',
    workload: 'tenancy',
    rules: ['capacity', 'fence', 'events', 'revoked and still held'],
    edits: [
      { file: LEASE, find: 'if (!this.isOpen || this.takenBack ||', replace: 'if (this.released || this.takenBack ||' },
      {
        file: 'core/release.ts',
        find: `  if (lease.loss) {
    // What remains`,
        replace: `  const waiting = host.queueOf(lease.key)
  if (waiting && passOn(host, lease, waiting)) return YES
  if (lease.loss) {
    // What remains`,
      },
      {
        file: 'core/engine.ts',
        find: 'if (this.#queues.size > 0 && !lease.successor) this',
        replace: 'if (lease.successor) this',
      },
    ],
  },
  {
    name: 'a lease that is passed on counts its time anew',
    workload: 'tenancy',
    rules: ['capacity', 'fence'],
    edits: [
      {
        file: LEASE,
        find: 'this.deadline = from.deadline',
        replace: 'this.deadline = now + this.ttlMs',
      },
    ],
  },
  {
    name: 'a lease is passed on with whatever time is left, and counts from there',
    workload: 'tenancy',
    rules: ['capacity', 'fence'],
    edits: [
      {
        file: TENANCY,
        find: 'return deadline - now >= Math.min(ttlMs, QUEUE_MS) * PASS_ON_SHARE',
        replace: 'return deadline > now - now && ttlMs > 0',
      },
      { file: TENANCY, find: '      now < this.#until &&\n', replace: '' },
      {
        file: LEASE,
        find: 'this.deadline = from.deadline',
        replace: 'this.deadline = Math.max(from.deadline, now + Math.min(this.ttlMs, 3_000) / 2)',
      },
    ],
  },
  {
    name: 'locks that share a grant share its token',
    workload: 'tenancy',
    rules: ['token order', 'fence'],
    edits: [
      {
        file: LEASE,
        find: 'return this.turn === 0 ? this.token : this.token + BigInt(this.turn)',
        replace: 'return this.token',
      },
    ],
  },
  {
    name: 'the tokens of a grant are not counted',
    workload: 'tenancy',
    rules: ['token order', 'fence'],
    edits: [
      { file: TENANCY, find: '      this.#left > 0 &&\n', replace: '' },
      { file: TENANCY, find: 'if ((this.#left === 0 && !this.#host.answersAtOnce) || (next', replace: 'if ((next' },
    ],
  },
  {
    name: 'a lease is passed on for as long as its tokens last',
    workload: 'tenancy',
    rules: ['overtaken'],
    edits: [{ file: TENANCY, find: 'export const TENANCY_MS = 15', replace: 'export const TENANCY_MS = 2_000' }],
  },
  {
    name: 'the store is asked for a lease by the token of the lock that had it last',
    workload: 'tenancy',
    rules: ['lost in calm weather', 'resolved without lock', 'stray lease'],
    edits: [{ file: LEASE, find: 'this.token = from.token', replace: 'this.token = from.token + 1n' }],
  },
  {
    name: 'a late answer releases a lease that was passed on since',
    workload: 'tenancy',
    rules: ['capacity', 'fence', 'lost in calm weather'],
    edits: [
      {
        file: 'core/acquire.ts',
        find: 'return this.#lock && leaseOf(this.#lock).latest',
        replace: 'return this.#lock && leaseOf(this.#lock)',
      },
    ],
  },
  {
    name: 'the store grants tokens that it has reserved, where its clock stands still',
    workload: 'tenancy',
    rules: ['token order', 'fence'],
    edits: [
      {
        file: MEMORY_TABLE,
        find: 'const clock = BigInt(Math.floor(now * 1_000))',
        replace: 'const clock = 0n',
      },
      {
        file: MEMORY_TABLE,
        find: 'this.#lastToken = tokens === undefined ? token : token + BigInt(tokens - 1)',
        replace: 'this.#lastToken = token',
      },
    ],
  },
]
