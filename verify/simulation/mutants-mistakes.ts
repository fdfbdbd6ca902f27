import type { Mutant } from './mutants.js'

const LEASE = 'core/lease.ts'
const RENEWAL = 'core/renewal.ts'
const ACQUIRE = 'core/acquire.ts'
const MEMORY_KEY = 'stores/memory/key-state.ts'
const MEMORY_TABLE = 'stores/memory/lease-table.ts'

/** Plain mistakes: what a review would see at once, and the simulation has to see too. */
export const MISTAKES: readonly Mutant[] = [
  {
    name: 'close does not wait for releases that are under way',
    workload: 'lock',
    rules: ['late for close'],
    edits: [
      {
        file: 'core/cleanup.ts',
        find: `      await this.#batcher.released()
`,
        replace: '',
      },
    ],
  },
  {
    name: 'close does not wait for the release of what was granted meanwhile',
    workload: 'semaphore',
    shape: 'no queue, slots',
    rules: ['late for close'],
    edits: [
      {
        file: 'core/cleanup.ts',
        find: `      await new Promise<void>((resolve) => process.nextTick(resolve))
`,
        replace: '',
      },
      // Otherwise it waits for that release as well.
      {
        file: 'core/cleanup.ts',
        find: `      await this.#batcher.released()
`,
        replace: '',
      },
    ],
  },
  {
    name: 'a queue that is empty keeps its use of the grants of all keys',
    workload: 'lock',
    shape: 'pushed grants',
    rules: ['subscription left', 'growth'],
    edits: [
      {
        file: 'core/queue-subscription.ts',
        find: `    this.#grants?.close(now)
`,
        replace: '',
      },
    ],
  },
  {
    name: 'a grant is taken for revoked because an earlier one of its owner was',
    workload: 'web-locks',
    rules: ['stray lease'],
    edits: [
      {
        file: 'core/revocations.ts',
        find: 'if (ended.token === undefined || ended.token >= lease.token) lose(lease, ended.broken)',
        replace: 'lose(lease, ended.broken)',
      },
    ],
  },
  {
    name: 'a release after a shortening extend() is retried for the new ttl only',
    workload: 'lock',
    rules: ['stray lease'],
    edits: [
      {
        file: LEASE,
        find: 'return Math.max(this.ttlMs, this.request.ttlMs, until - this.host.world.now())',
        replace: 'return this.ttlMs',
      },
    ],
  },
  {
    name: 'an acquisition that ended still listens to its signal',
    workload: 'lock',
    rules: ['listener left'],
    edits: [
      {
        file: ACQUIRE,
        find: `    this.stopListening?.()
`,
        replace: '',
      },
    ],
  },
  {
    name: 'a subscription that ends is not closed',
    workload: 'lock',
    rules: ['growth'],
    edits: [
      {
        file: 'core/subscriptions.ts',
        find: `    if (watch) guarded(() => watch.close())
`,
        replace: `    void guarded
    void watch
`,
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
        find: 'return !this.released && this.loss === undefined && this.host.world.now(true) < this.deadline',
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
        find: 'const until = deadlineOf(sentAt, grant.ttlMs)',
        replace: 'const until = deadlineOf(now, grant.ttlMs)',
      },
    ],
  },
  {
    name: 'a renewal counts from its answer',
    workload: 'lock',
    rules: ['capacity'],
    edits: [
      {
        file: RENEWAL,
        find: 'const until = Math.min(deadlineOf(sentAt, ttlMs), lease.holdUntil)',
        replace: 'const until = Math.min(deadlineOf(lease.host.world.now(true), ttlMs), lease.holdUntil)',
      },
    ],
  },
  {
    name: 'a heartbeat counts from its answer',
    workload: 'lock',
    rules: ['capacity'],
    edits: [
      {
        file: 'core/heartbeat.ts',
        find: 'endRenewal(answer, this.#sentAt, now)',
        replace: 'endRenewal(answer, now, now)',
      },
    ],
  },
  {
    name: 'no allowance for clocks that run at different speeds',
    workload: 'lock',
    rules: ['capacity'],
    edits: [
      {
        file: 'core/deadline.ts',
        find: 'return ttlMs * 0.01 + 2',
        replace: 'return 0',
      },
    ],
  },
  {
    name: 'a renewal that finds nothing is taken for an outage',
    workload: 'taken',
    rules: ['revoked and still held'],
    edits: [
      {
        file: RENEWAL,
        find: `else if (answer.outcome === 'gone') lease.lose('gone')
    else this.#retrySoon((`,
        replace: `else if (answer.outcome === 'gone') lease.deadline = sentAt + lease.ttlMs
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
        file: MEMORY_KEY,
        find: 'if (state.sole) return state.sole.owner === owner ? state.sole : undefined',
        replace: 'if (state.sole) return state.sole',
      },
    ],
  },
  {
    name: 'the store does not count tokens up',
    workload: 'lock',
    rules: ['token order', 'fence', 'capacity'],
    edits: [
      {
        file: MEMORY_TABLE,
        find: 'const token = this.#nextToken(now)',
        replace: 'const token = now > 0 ? 1n : this.#nextToken(now)',
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
        find: `    acquisition.previous = this.#last
    if (this.#last) this.#last.next = acquisition
    else this.#first = acquisition
    this.#last = acquisition
`,
        replace: `    const head = this.#first
    acquisition.previous = head
    acquisition.next = head?.next
    if (head?.next) head.next.previous = acquisition
    else this.#last = acquisition
    if (head) head.next = acquisition
    else this.#first = acquisition
`,
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
        file: 'primitives/election/election.ts',
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
        file: 'primitives/schedule/tick.ts',
        find: 'key: `${this.#request.key}@${tick}`',
        replace: 'key: `${this.#request.key}@${tick}${this.#engine.identity.instance}`',
      },
    ],
  },
  {
    name: 'takes that travel together count once',
    workload: 'limiter',
    rules: ['rate'],
    edits: [
      {
        file: 'primitives/limiter/coalescer.ts',
        find: 'const outcome = await this.#takeFromStore(key, sum)',
        replace: 'const outcome = await this.#takeFromStore(key, (takes[0] as Take).cost)',
      },
    ],
  },
  {
    name: 'request() resolves although its lock was stolen',
    workload: 'web-locks',
    rules: ['stolen and resolved'],
    edits: [
      {
        file: 'primitives/web-locks.ts',
        find: '    // Where a steal is noticed late, the release may be what reveals it.\n    refuseLoss()\n',
        replace: '',
      },
    ],
  },
  {
    name: 'Redlock: a minority of the nodes is enough',
    workload: 'lock',
    shape: 'redlock',
    rules: ['capacity'],
    edits: [
      {
        file: 'stores/redlock/store.ts',
        find: 'majority: Math.floor(connections.length / 2) + 1',
        replace: 'majority: Math.floor(connections.length / 2)',
      },
    ],
  },
  {
    name: 'Redlock: a lease is trusted for longer than the nodes keep it',
    workload: 'lock',
    shape: 'redlock',
    rules: ['capacity'],
    edits: [
      {
        file: 'stores/redlock/cluster.ts',
        find: 'return ttlMs - (ttlMs * drift + 2)',
        replace: 'return ttlMs * (1.5 + drift)',
      },
    ],
  },
  {
    name: 'Redlock: a token is not larger than what the nodes know of',
    workload: 'lock',
    shape: 'redlock',
    rules: ['token order', 'fence'],
    edits: [
      {
        file: 'stores/redlock/ballot.ts',
        find: 'attempt.token = Math.max(attempt.counter + 1, attempt.micros)',
        replace: 'attempt.token = Math.max(attempt.counter - 999_999, attempt.micros)',
      },
    ],
  },
]
