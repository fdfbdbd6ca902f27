import type { Mutant } from './mutants.js'

const LEASE = 'core/lease.ts'
const ACQUIRE = 'core/acquire.ts'
const ANSWER_LOG = 'core/answer-log.ts'

/** Each finding of the review, brought back. */
export const FINDINGS: readonly Mutant[] = [
  {
    name: 'clean-up of a stale grant releases whatever its owner has by then',
    finding: 'A1',
    workload: 'lock',
    shape: 'pool',
    rules: ['capacity'],
    edits: [
      {
        file: ACQUIRE,
        find: `void cleanup.release({ key: this.key, owner, token }, ttlMs)
      this.#useFreshOwner()
`,
        replace: `void cleanup.release({ key: this.key, owner }, ttlMs)
`,
      },
    ],
  },
  {
    name: 'a pushed grant is new if it is newer than one of the holders',
    finding: 'A2',
    workload: 'semaphore',
    shape: 'queue',
    rules: ['capacity'],
    edits: [
      {
        file: ANSWER_LOG,
        find: 'const isNewer = this.#newest !== undefined && token > this.#newest',
        replace: 'const isNewer = token > (this.refusal?.blocker?.token ?? token)',
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
        find: 'if (this.released && !this.takenBack) return releasedSignal(this.request.name, this.#tracker)',
        replace: 'void releasedSignal',
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
        file: 'primitives/schedule/tick.ts',
        find: 'this.#retries ? this.#claimUntilDone(times, owner) : this.#claimOnce(times, owner)',
        replace:
          'this.#retries ? this.#claimUntilDone(times, owner) : this.#claimOnce(times, this.#engine.identity.next())',
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
        find: `    this.acquiredAt = now
    this.waitedMs = now - since
    const until`,
        replace: `    this.acquiredAt = sentAt
    this.waitedMs = now - since
    const until`,
      },
    ],
  },
  {
    name: 'a waiter that is granted when its time is up also emits a timeout',
    finding: 'B9',
    workload: 'semaphore',
    shape: 'in-process',
    rules: ['timeout event'],
    edits: [
      {
        file: ACQUIRE,
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
        file: 'core/late-answer.ts',
        find: 'if (lease?.staysInStore) return undefined',
        replace: '',
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
        file: 'core/release.ts',
        find: `  if (lease.staysInStore) return releaseRecorded(lease)
`,
        replace: '',
      },
    ],
  },
  {
    name: 'a grant to a request that was already ended is believed',
    finding: 'H3',
    workload: 'semaphore',
    shape: 'blocking, counting',
    rules: ['capacity'],
    edits: [
      {
        file: ACQUIRE,
        find: `if (this.#asks.calledBack) {
      // The release`,
        replace: `if (this.#asks.calledBack && this.settled) {
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
        file: ANSWER_LOG,
        find: 'const enough = isEnoughLeft(this.contactAt, ttlMs, world.now())',
        replace: 'const enough = deadlineOf(this.contactAt, ttlMs) > world.now()',
      },
      {
        file: 'core/renewal-times.ts',
        find: 'heartbeats.set(lease, now + Math.min(CONFIRM_MS, Math.max(lease.deadline - now, 0) / 4), CONFIRM_MS)',
        replace: 'heartbeats.set(lease, Math.min(now + CONFIRM_MS, lease.deadline), CONFIRM_MS)',
      },
    ],
  },
  {
    name: 'a waiter behind others of its process gets an outage error',
    finding: 'H5',
    workload: 'impatient',
    rules: ['busy reported as outage'],
    edits: [
      {
        file: 'core/wait-queue.ts',
        find: 'const known = this.latestRefusal ?? this.#busyHere(since)',
        replace: 'const known = begun ? undefined : { granted: false as const, blocker: undefined }',
      },
    ],
  },
  {
    name: 'a holder ignores the push that its lease was revoked',
    finding: 'A6',
    workload: 'taken',
    rules: ['revoked and still held'],
    edits: [
      {
        file: 'core/revocations.ts',
        find: 'else if (token === undefined || token === lease.token) lose(lease, broken)',
        replace: '',
      },
    ],
  },
  {
    name: 'a release in the background is tried once',
    finding: 'H6',
    workload: 'lock',
    rules: ['stray lease'],
    edits: [
      {
        file: 'core/cleanup.ts',
        find: "if (outcome !== 'unknown' || this.#hurried || this.#world.now() >= until) return",
        replace: 'return void (outcome && until)',
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
    name: 'malformed answers of a store are believed',
    finding: 'B11',
    workload: 'lock',
    shape: 'odd',
    rules: ['unhandled rejection', 'uncaught', 'never settles', 'operation', 'wrong error', 'capacity', 'timer left'],
    edits: [
      {
        file: 'core/well-formed.ts',
        find: `  const granted = answer?.granted
`,
        replace: `  const granted = answer?.granted
  if (answer) return true
`,
      },
    ],
  },
  {
    name: 'nobody handles the rejection of a subscription',
    finding: 'B11',
    workload: 'lock',
    shape: 'odd',
    rules: ['unhandled rejection'],
    edits: [
      {
        file: 'core/revocations.ts',
        find: `      ignoreRejection(this.#watch.ready)
`,
        replace: '',
      },
    ],
  },
  {
    name: 'a stall from before the last renewal is a reason for the loss',
    workload: 'shared',
    rules: ['wrong reason'],
    edits: [
      {
        file: 'core/stall-monitor.ts',
        find: 'const from = Math.max(stall.from, since)',
        replace: 'const { from } = stall',
      },
    ],
  },
  {
    name: 'a single attempt waits for each call before it, although none is answered',
    workload: 'web-locks',
    shape: 'batches of two',
    rules: ['late'],
    edits: [
      {
        file: 'core/attempt.ts',
        find: 'ordered.failure === undefined || world.now() < until',
        replace: 'until > 0',
      },
    ],
  },
]
