import type { Edit } from './bundle.js'

/**
 * Small mistakes, made in the library by replacing text while it is bundled. Each has to be caught: a simulation that
 * stays silent about them has shown nothing about the original either.
 */
export interface Mutant {
  name: string
  /** The finding that it brings back, if it is one. */
  finding?: string
  /** Where it has to show, and as the violation of one of these rules. */
  workload: string
  shape?: string
  rules: readonly string[]
  edits: readonly Edit[]
}

const LEASE = 'core/lease.ts'
const MEMORY = 'stores/memory/index.ts'

export const MUTANTS: readonly Mutant[] = [
  {
    name: 'isHeld does not look at the clock',
    workload: 'lock',
    rules: ['capacity'],
    edits: [
      {
        file: LEASE,
        find: 'return !this.released && this.loss === undefined && this.engine.world.now(true) < this.deadline',
        replace: 'return !this.released && this.loss === undefined',
      },
    ],
  },
  {
    name: 'a lease counts from its answer',
    workload: 'lock',
    rules: ['capacity'],
    edits: [
      {
        file: LEASE,
        find: 'const until = sentAt + grant.ttlMs - driftOf(grant.ttlMs)',
        replace: 'const until = this.engine.world.now() + grant.ttlMs - driftOf(grant.ttlMs)',
      },
    ],
  },
  {
    name: 'a renewal counts from its answer',
    workload: 'shared',
    rules: ['capacity'],
    edits: [
      {
        file: LEASE,
        find: 'this.deadline = Math.min(sentAt + answer.ttlMs - driftOf(answer.ttlMs), this.holdUntil)',
        replace: 'this.deadline = Math.min(world.now() + answer.ttlMs - driftOf(answer.ttlMs), this.holdUntil)',
      },
    ],
  },
  {
    name: 'no allowance for clocks that run at different speeds',
    workload: 'lock',
    rules: ['capacity'],
    edits: [{ file: LEASE, find: 'return ttlMs * 0.01 + 2', replace: 'return 0' }],
  },
  {
    name: 'a renewal that finds nothing is taken for an outage',
    workload: 'lock',
    rules: ['capacity', 'fence'],
    edits: [
      {
        file: LEASE,
        find: "} else if (answer.outcome === 'gone') this.lose('gone')\n    else this.#retrySoon",
        replace: "} else if (answer.outcome === 'gone') this.deadline = sentAt + this.ttlMs\n    else this.#retrySoon",
      },
    ],
  },
  {
    name: 'the store releases without looking at the owner',
    workload: 'lock',
    rules: ['capacity'],
    edits: [
      {
        file: MEMORY,
        find: 'if (entry.sole) return entry.sole.owner === owner ? entry.sole : undefined',
        replace: 'if (entry.sole) return entry.sole',
      },
    ],
  },
  {
    name: 'the store does not count tokens up',
    workload: 'lock',
    rules: ['token order', 'fence'],
    edits: [
      {
        file: MEMORY,
        find: 'this.#lastToken = Math.max(this.#lastToken + 1, Math.floor(now * 1_000))',
        replace: 'this.#lastToken = 1',
      },
    ],
  },
  {
    name: 'busy is told as an outage',
    workload: 'lock',
    rules: ['busy told as outage'],
    edits: [
      {
        file: 'core/waiter.ts',
        find: 'if (this.#failure || (this.#inFlight && !this.#refusal)) {',
        replace: 'if (this.#failure || this.#inFlight) {',
      },
    ],
  },
  {
    name: 'waiters of one process are served last come, first served',
    workload: 'lock',
    rules: ['overtaken', 'late', 'never settles'],
    edits: [
      {
        file: 'core/line.ts',
        find: 'for (let waiter = this.#first; waiter; waiter = waiter.next) {\n      if (toCome',
        replace: 'for (let waiter = this.#last; waiter; waiter = waiter.previous) {\n      if (toCome',
      },
    ],
  },
  {
    name: 'withLock resolves although the lock was lost',
    workload: 'lock',
    rules: ['resolved without lock'],
    edits: [{ file: 'primitives/lock.ts', find: '  if (lease.loss) throw lease.loss\n', replace: '' }],
  },
  {
    name: 'run-once does not look for a record when it begins to wait',
    workload: 'run-once',
    rules: ['late', 'runs again', 'two results', 'never settles', 'timeout event'],
    edits: [
      {
        file: 'primitives/once.ts',
        find: '    record = recordIn(blocker?.value)\n',
        replace: '',
      },
    ],
  },
  {
    name: 'a term that ended is still led',
    workload: 'election',
    rules: ['capacity', 'fence'],
    edits: [
      {
        file: 'primitives/election.ts',
        find: 'return this.#term?.lock.isHeld === true',
        replace: 'return this.#term !== undefined',
      },
    ],
  },
  {
    name: 'each instance marks a tick for itself',
    workload: 'schedule',
    rules: ['tick twice'],
    edits: [
      {
        file: 'primitives/schedule-tick.ts',
        find: 'key: `${this.#ask.key}@${tick}`',
        replace: 'key: `${this.#ask.key}@${tick}${this.#engine.identity.instance}`',
      },
    ],
  },
  {
    name: 'takes that travel together count once',
    workload: 'limiter',
    rules: ['rate'],
    edits: [
      {
        file: 'primitives/limiter-turn.ts',
        find: 'const outcome = await this.#ask(key, sum)',
        replace: 'const outcome = await this.#ask(key, (takes[0] as Take).cost)',
      },
    ],
  },
  {
    name: 'a holder is not told that its lock was stolen',
    workload: 'web-locks',
    rules: ['stolen and resolved'],
    edits: [
      {
        file: 'primitives/web-locks.ts',
        find: '    // Where a theft is noticed late, letting go may be what tells of it.\n    refuseLoss()\n',
        replace: '',
      },
    ],
  },
]
