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
const ACQUISITION = 'core/acquisition.ts'
const MEMORY = 'stores/memory/index.ts'

export const MUTANTS: readonly Mutant[] = [
  {
    name: 'clean-up of a stale grant releases whatever its owner has by then',
    finding: 'A1',
    workload: 'shared',
    shape: 'pool',
    rules: ['capacity'],
    edits: [
      {
        file: ACQUISITION,
        find: `void this.#engine.cleanup.release({ key: this.key, owner, token }, ttlMs)
      this.#useFreshOwner()
`,
        replace: `void this.#engine.cleanup.release({ key: this.key, owner }, ttlMs)
`,
      },
    ],
  },
  {
    name: 'a pushed grant is new if it is newer than one of the holders',
    finding: 'A2',
    workload: 'semaphore',
    rules: ['capacity'],
    edits: [
      {
        file: ACQUISITION,
        find: 'const isNewer = this.#newest !== undefined && token > this.#newest',
        replace: 'const isNewer = token > (this.#refusal?.blocker?.token ?? token)',
      },
    ],
  },
  {
    name: 'a signal read after the release never aborts',
    finding: 'A4',
    workload: 'lock',
    rules: ['signal after release'],
    edits: [
      {
        file: LEASE,
        find: 'if (this.released && !this.takenBack) return this.#releasedSignal()',
        replace: '',
      },
    ],
  },
  {
    name: 'each try of a tick has an owner of its own',
    finding: 'B5',
    workload: 'schedule',
    rules: ['tick nobody ran'],
    edits: [
      {
        file: 'primitives/schedule-tick.ts',
        find: 'this.#retries ? this.#untilDone(times, owner) : this.#forGood(times, owner)',
        replace: 'this.#retries ? this.#untilDone(times, owner) : this.#forGood(times, this.#engine.identity.next())',
      },
    ],
  },
  {
    name: 'a lock counts its time from the last request that was refused',
    finding: 'B8',
    workload: 'lock',
    rules: ['acquiredAt'],
    edits: [
      {
        file: LEASE,
        find: 'this.acquiredAt = now',
        replace: 'this.acquiredAt = sentAt',
      },
    ],
  },
  {
    name: 'a waiter that was granted in the same turn is told to listeners as timed out',
    finding: 'B9',
    workload: 'semaphore',
    shape: 'in-process',
    rules: ['timeout event'],
    edits: [
      {
        file: ACQUISITION,
        find: `override due(): void {
    if (this.settled) return
`,
        replace: `override due(): void {
`,
      },
    ],
  },
  {
    name: 'a subscription that nobody uses stays',
    finding: 'D1',
    workload: 'lock',
    rules: ['subscription left'],
    edits: [
      {
        file: 'core/subscriptions.ts',
        find: `    this.#timers.set(this.#linger, now + LINGER_MS, LINGER_MS, LINGER_MS / 2)
`,
        replace: '',
      },
    ],
  },
  {
    name: 'a late answer erases the record of a run',
    finding: 'H1',
    workload: 'run-once',
    rules: ['runs again', 'two results'],
    edits: [
      {
        file: ACQUISITION,
        find: 'if (lease && (lease.isHere || lease.staysInStore)) return undefined',
        replace: 'if (lease?.isHere) return undefined',
      },
    ],
  },
  {
    name: 'close and releaseAll erase a record that is being written',
    finding: 'H2',
    workload: 'run-once',
    rules: ['runs again', 'two results'],
    edits: [
      {
        file: 'core/engine.ts',
        find: `    if (lease.staysInStore) return this.#releaseRecorded(lease)
`,
        replace: '',
      },
    ],
  },
  {
    name: 'a grant to a request that was called back is believed',
    finding: 'H3',
    workload: 'semaphore',
    shape: 'blocking, counting',
    rules: ['capacity'],
    edits: [
      {
        file: ACQUISITION,
        find: `if (this.#calledBack) {
      // The release`,
        replace: `if (this.#calledBack && this.settled) {
      // The release`,
      },
    ],
  },
  {
    name: 'a hand-off of a short ttl is taken although its time is nearly over',
    finding: 'H4',
    workload: 'lock',
    rules: ['lost in calm weather'],
    edits: [
      {
        file: ACQUISITION,
        find: 'const enough = this.#remaining(ttlMs, this.#contactAt) >= ttlMs * ENOUGH_LEFT',
        replace: 'const enough = this.#remaining(ttlMs, this.#contactAt) > 0',
      },
      {
        file: LEASE,
        find: 'beats.set(this, now + Math.min(CONFIRM_MS, Math.max(this.deadline - now, 0) / 4), CONFIRM_MS)',
        replace: 'beats.set(this, Math.min(now + CONFIRM_MS, this.deadline), CONFIRM_MS)',
      },
    ],
  },
  {
    name: 'a waiter behind others of its process is told of an outage',
    finding: 'H5',
    workload: 'semaphore',
    rules: ['busy told as outage'],
    edits: [
      {
        file: ACQUISITION,
        find: 'const refusal = this.#refusal ?? this.#queue.latestRefusal ?? (isBehind ? { granted: false as const } : undefined)',
        replace:
          "const refusal = this.#state === 'queued' ? { granted: false as const, blocker: undefined } : this.#refusal; void isBehind",
      },
    ],
  },
  {
    name: 'withLock resolves although releaseAll took the lock',
    finding: 'H7',
    workload: 'lock',
    rules: ['resolved without lock'],
    edits: [
      {
        file: 'primitives/lock.ts',
        find: 'const loss = leases.find((lease) => lease.loss)?.loss ?? takenBack',
        replace: 'const loss = leases.find((lease) => lease.loss)?.loss; void takenBack',
      },
    ],
  },
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
        replace: 'const until = now + grant.ttlMs - driftOf(grant.ttlMs)',
      },
    ],
  },
  {
    name: 'a renewal counts from its answer',
    workload: 'lock',
    rules: ['capacity'],
    edits: [
      {
        file: LEASE,
        find: 'const until = Math.min(sentAt + answer.ttlMs - driftOf(answer.ttlMs), this.holdUntil)',
        replace: 'const until = Math.min(world.now() + answer.ttlMs - driftOf(answer.ttlMs), this.holdUntil)',
      },
    ],
  },
  {
    name: 'no allowance for clocks that run at different speeds',
    workload: 'lock',
    rules: ['capacity'],
    edits: [
      {
        file: LEASE,
        find: 'return ttlMs * 0.01 + 2',
        replace: 'return 0',
      },
    ],
  },
  {
    name: 'a renewal that finds nothing is taken for an outage',
    workload: 'lock',
    rules: ['capacity', 'fence'],
    edits: [
      {
        file: LEASE,
        find: `} else if (answer.outcome === 'gone') this.lose('gone')
    else this.#retrySoon((`,
        replace: `} else if (answer.outcome === 'gone') this.deadline = sentAt + this.ttlMs
    else this.#retrySoon((`,
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
    rules: ['token order', 'fence', 'capacity'],
    edits: [
      {
        file: MEMORY,
        find: 'this.#lastToken = Math.max(this.#lastToken + 1, Math.floor(now * 1_000))',
        replace: 'this.#lastToken = 1',
      },
    ],
  },
  {
    name: 'waiters of one process are served last come, first served',
    workload: 'lock',
    rules: ['overtaken', 'late', 'never settles'],
    edits: [
      {
        file: 'core/wait-queue.ts',
        find: 'for (let acquisition = this.#first; acquisition; acquisition = acquisition.next) {',
        replace: 'for (let acquisition = this.#last; acquisition; acquisition = acquisition.previous) {',
      },
    ],
  },
  {
    name: 'withLock resolves although the lock was lost',
    workload: 'lock',
    rules: ['resolved without lock'],
    edits: [
      {
        file: 'primitives/lock.ts',
        find: `  if (loss) throw loss
`,
        replace: `  void loss
`,
      },
    ],
  },
  {
    name: 'run-once does not look for a record when it begins to wait',
    workload: 'run-once',
    rules: ['record not found', 'runs again', 'two results'],
    edits: [
      {
        file: 'primitives/run-once.ts',
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
