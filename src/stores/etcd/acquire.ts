/**
 * EtcdAcquiring: rounds of transactions until every claim is answered. Each decides inside etcd, by comparisons with what was read; a
 * change in between makes it fail, and the claim is decided anew.
 *
 * @module
 */
import { StoreUnavailableError } from '../../errors.js'
import type { Answer, Claim } from '../../store.js'
import { Attempt } from './attempt.js'
import { grantRevisionOf } from './codec.js'
import type { EtcdContext } from './context.js'
import { type Directory, type Entry, refusal } from './directory.js'
import { EtcdError, isFinal, isLeaseGone } from './errors.js'
import type { EtcdLease } from './leases.js'
import type { Header, Operation, TxnResult } from './messages.js'
import type { Prolonging } from './renew.js'
import { areAdmitted, byKey, impossibleTogether, inParts, shareReading, tooManyHolders } from './rounds.js'
import { MOST_BYTES } from './sizes.js'

/** How long a notice of a revoked lease stays, in milliseconds. Longer than any interruption of a watch that goes on without a gap. */
export const NOTICE_MS = 30_000

export class EtcdAcquiring {
  readonly #context: EtcdContext
  readonly #prolonging: Prolonging

  constructor(context: EtcdContext, prolonging: Prolonging) {
    this.#context = context
    this.#prolonging = prolonging
  }

  async each(claims: readonly Claim[]): Promise<Answer[]> {
    const { world, offset, limitMs } = this.#context
    const startedAt = world.now()
    const attempts = claims.map((claim) => new Attempt(this.#context, claim))
    for (const attempt of attempts) if (attempt.impossible) this.#fail(attempt, attempt.impossible)
    for (;;) {
      const open = attempts.filter(({ answer }) => !answer)
      if (open.length === 0) return attempts.map(({ answer }) => answer as Answer)
      if (world.now() - startedAt > limitMs) {
        for (const attempt of open) this.#fail(attempt, tooBusy())
        continue
      }
      try {
        const loading = offset.ready()
        if (loading) await Promise.all([loading, this.#askForLeases(open)])
      } catch (error) {
        for (const attempt of open) this.#fail(attempt, error)
        continue
      }
      const groups = byKey(open)
      await Promise.all(groups.flat().map((attempt) => this.#prepare(attempt)))
      const undecided = groups.map((group) => group.filter(({ answer }) => !answer))
      await Promise.all(inParts(undecided).map((part) => this.#decide(part, startedAt)))
      shareReading(groups, open)
    }
  }

  /**
   * With the first call everything that it may need is asked for side by side. One after the other, offset, lease, try, lease of the
   * queue and queue entry took so long that a short wait ended before it was known that the lock is busy.
   */
  async #askForLeases(attempts: readonly Attempt[]): Promise<void> {
    const { leases } = this.#context
    const wanted = new Set<number>()
    for (const { claim } of attempts) {
      if (!claim.renewed || claim.steal) continue
      wanted.add(claim.ttlMs)
      if (claim.queueMs !== undefined) wanted.add(claim.queueMs)
    }
    // What could not be had is asked for again, by those who need it.
    await Promise.all([...wanted].map((ttlMs) => leases.shared(ttlMs).catch(() => {})))
  }

  /** All or none, in one transaction. No queue entry is added. */
  async together(claims: readonly Claim[]): Promise<Answer[]> {
    const { world, offset, limitMs } = this.#context
    const startedAt = world.now()
    const attempts = claims.map((claim) => new Attempt(this.#context, { ...claim, queueMs: undefined }))
    const impossible = impossibleTogether(attempts)
    if (impossible) return attempts.map((attempt) => this.#fail(attempt, impossible))
    // A lease of its own is asked for only once it is known that it can be used.
    const isPlain = claims.every(({ renewed, steal }) => renewed && !steal)
    if (!isPlain || new Set(claims.map(({ key }) => key)).size < claims.length) await this.#look(attempts)
    while (world.now() - startedAt <= limitMs) {
      await offset.ready()
      const crowded = tooManyHolders(attempts)
      if (crowded.length > 0) {
        await Promise.all(crowded.map((attempt) => this.#evict(attempt, startedAt)))
        const failed = crowded.find(({ answer }) => answer?.granted === 'unknown')?.answer
        if (failed?.granted === 'unknown') return attempts.map((attempt) => this.#fail(attempt, failed.error))
        continue
      }
      for (const attempt of attempts) attempt.step = attempt.directory ? 'take' : 'take-empty'
      const known = attempts.every(({ directory }) => directory)
      if (known && !areAdmitted(attempts)) {
        for (const attempt of attempts) this.#dropLease(attempt)
        return attempts.map(({ directory, claim }) => refusal(directory as Directory, claim.owner, offset.value))
      }
      const taking = attempts.filter((attempt) => attempt.own?.record?.state !== 'held')
      if (known && taking.length === 0) return this.each(claims)
      try {
        await Promise.all(taking.map((attempt) => this.#lease(attempt)))
      } catch (error) {
        return attempts.map((attempt) => this.#fail(attempt, error))
      }
      const answers = await this.#takeTogether(attempts, taking, startedAt)
      if (answers) return answers
    }
    return attempts.map((attempt) => this.#fail(attempt, tooBusy()))
  }

  /** Too many holders to end them in the transaction that takes the key. */
  #evict(attempt: Attempt, startedAt: number): Promise<void> {
    attempt.step = 'evict'
    return this.#decide([attempt], startedAt)
  }

  async #takeTogether(attempts: Attempt[], taking: Attempt[], startedAt: number): Promise<Answer[] | undefined> {
    const { client, offset } = this.#context
    if (!this.#bindAll(taking)) return this.#turn()
    const parts = taking.map((attempt) => attempt.transaction(undefined))
    const reads = attempts.map(({ claim }): Operation => ({ range: this.#context.keys.directory(claim.key) }))
    try {
      const { answer, retried } = await client.txn({
        compare: [offset.unchanged, ...parts.flatMap(({ compare }) => compare.slice(1))],
        success: parts.flatMap(({ success }) => success),
        failure: [...reads, { range: { key: this.#context.keys.offset } }],
      })
      if (retried) for (const attempt of taking) this.#mayArriveLate(attempt)
      if (answer.succeeded) {
        for (const attempt of taking) this.#granted(attempt, answer.header.revision, startedAt)
        const rest = attempts.filter(({ answer: given }) => !given).map(({ claim }) => claim)
        const others = rest.length > 0 ? await this.each(rest) : []
        return attempts.map(({ answer: given }) => given ?? (others.shift() as Answer))
      }
      for (const attempt of taking) this.#unbind(attempt)
      offset.isCurrent(answer.results.at(-1)?.range?.kvs[0])
      for (const [i, attempt] of attempts.entries()) {
        const result = { succeeded: false, results: [answer.results[i] ?? {}] }
        attempt.understand(result, answer.header.revision)
      }
      if (retried) renumber(taking)
    } catch (error) {
      if (!this.#recover(taking, error)) return attempts.map((attempt) => attempt.answer ?? this.#fail(attempt, error))
    }
    return undefined
  }

  async #look(attempts: readonly Attempt[]): Promise<void> {
    const { client, keys } = this.#context
    const reads = attempts.map(({ claim }): Operation => ({ range: keys.directory(claim.key) }))
    const { answer } = await client.txn({ compare: [], success: reads, failure: [] })
    for (const [i, attempt] of attempts.entries()) {
      attempt.understand({ succeeded: true, results: [answer.results[i] ?? {}] }, answer.header.revision)
    }
  }

  /** Looks before it asks for a lease of its own: a refusal must not cost a grant and a revoke. */
  async #prepare(attempt: Attempt): Promise<void> {
    const { queue, leases } = this.#context
    const { claim, directory } = attempt
    try {
      if (!directory) {
        if (claim.steal || !claim.renewed) return void (attempt.step = 'look')
        const queued = queue.createRevision(claim.key, claim.owner) !== undefined
        if (queued && !attempt.isExclusive) return void (attempt.step = 'look')
        attempt.step = queued ? 'take-first' : 'take-empty'
        // Most keys are free: a lease for a queue entry is asked for only when it is needed.
        const mayQueue = !queued && claim.queueMs !== undefined && attempt.size <= MOST_BYTES
        if (mayQueue) attempt.queueLease = leases.sharedAtOnce(claim.queueMs as number)
        await this.#lease(attempt)
      } else if (attempt.own?.record?.state === 'held') await this.#again(attempt, attempt.own)
      else if (attempt.isAdmitted()) {
        attempt.step = attempt.mustEvictFirst ? 'evict' : 'take'
        await this.#lease(attempt)
      } else if (claim.queueMs === undefined) this.#refuse(attempt)
      else if (attempt.own) await this.#keepQueued(attempt, attempt.own, claim.queueMs)
      else {
        attempt.step = 'enqueue'
        attempt.queueLease = await leases.shared(claim.queueMs)
      }
    } catch (error) {
      this.#fail(attempt, error)
    }
  }

  async #lease(attempt: Attempt): Promise<void> {
    const { leases, world } = this.#context
    const { ttlMs, renewed } = attempt.claim
    const known = attempt.lease
    if (renewed) attempt.lease = await leases.shared(ttlMs)
    else if (!known || known.retired || known.validUntil - world.now() < ttlMs / 2) {
      if (known) leases.revoke(known)
      attempt.lease = undefined
      attempt.lease = await leases.own(ttlMs)
    }
  }

  /** From before the write on: a lease that others give up meanwhile must not be revoked under it. */
  #bind({ lease, queueLease }: Attempt): void {
    if (lease) this.#context.leases.bind(lease)
    if (queueLease) this.#context.leases.bind(queueLease)
  }

  /** False: one of the leases was given up after it was chosen, and may be revoked at any moment. It has to be chosen again. */
  #bindAll(round: readonly Attempt[]): boolean {
    for (const attempt of round) this.#bind(attempt)
    if (!round.some(({ lease, queueLease }) => lease?.retired || queueLease?.retired)) return true
    for (const attempt of round) {
      this.#unbind(attempt)
      if (attempt.queueLease?.retired) attempt.queueLease = undefined
      // A round that only queues replaces no lease but that of the queue entry: the retired lease would make every such round fail here.
      if (attempt.lease?.retired) this.#dropLease(attempt)
    }
    return false
  }

  /** Timers run before another round chooses its leases: rounds that need no request would hold up the whole process. */
  #turn(): Promise<undefined> {
    return new Promise((resolve) => void this.#context.world.after(0, () => resolve(undefined), true))
  }

  #unbind({ lease, queueLease }: Attempt): void {
    // A lease of its own is kept for the next round, and revoked with the answer.
    if (lease?.shared) this.#context.leases.unbind(lease)
    else if (lease) lease.keys--
    if (queueLease) this.#context.leases.unbind(queueLease)
  }

  async #decide(round: readonly Attempt[], startedAt: number): Promise<void> {
    if (round.length === 0) return
    const { client, keys, offset, leases } = this.#context
    if (!this.#bindAll(round)) return this.#turn()
    try {
      const notices = round.some(({ claim }) => claim.steal) ? await leases.shared(NOTICE_MS) : undefined
      const parts = round.map((attempt) => attempt.transaction(notices))
      const checkOffset: Operation = { range: { key: keys.offset } }
      const [sole] = parts
      const single = parts.length === 1 && sole
      const { answer, retried } = await client.txn(
        single
          ? { ...single, failure: [...single.failure, checkOffset] }
          : { compare: [], success: [...parts.map((txn): Operation => ({ txn })), checkOffset], failure: [] },
      )
      if (retried) for (const attempt of round) this.#mayArriveLate(attempt)
      if (!single || !answer.succeeded) offset.isCurrent(answer.results.pop()?.range?.kvs[0])
      const results = round.map((_, i) => (single ? answer : (answer.results[i]?.txn as TxnResult)))
      this.#understandAll(round, results, answer.header, startedAt)
      if (retried) renumber(round)
    } catch (error) {
      this.#recover(round, error)
    }
  }

  /** Backwards: of those that entered one queue together, the last one has read it. */
  #understandAll(round: readonly Attempt[], results: readonly TxnResult[], header: Header, startedAt: number): void {
    const readings = new Map<string, Directory>()
    for (let i = round.length - 1; i >= 0; i--) {
      const attempt = round[i] as Attempt
      const { key } = attempt.claim
      if (attempt.understand(results[i] as TxnResult, header.revision))
        this.#granted(attempt, header.revision, startedAt)
      else {
        if (!attempt.readsBack && results[i]?.succeeded) attempt.directory = readings.get(key)
        readings.set(key, attempt.directory as Directory)
        this.#understand(attempt)
      }
    }
  }

  #understand(attempt: Attempt): void {
    const { own, queueLease } = attempt
    const { tracked, leases, world } = this.#context
    const { claim } = attempt
    if (own && queueLease && own.record?.state === 'waiting' && own.record.attempt === attempt.number) {
      leases.bind(queueLease)
      tracked.add({
        key: claim.key,
        owner: claim.owner,
        etcdKey: Buffer.from(own.kv.key),
        createRevision: own.kv.createRevision,
        modRevision: own.kv.modRevision,
        record: own.record,
        grantRevision: 0,
        lease: queueLease,
        renewed: true,
        deadline: world.now() + (claim.queueMs as number),
      })
    }
    // After its queue entry was bound: a lease that was given up would be revoked in between, and the entry with it.
    this.#unbind(attempt)
    attempt.queueLease = undefined
    // Read on purpose, and nothing to write: the answer is there without another round.
    if (attempt.step === 'look' || own?.record?.state === 'held' || attempt.isAdmitted()) return
    if (claim.queueMs === undefined || own?.record?.attempt === attempt.number) this.#refuse(attempt)
  }

  #granted(attempt: Attempt, revision: number, startedAt: number): void {
    const { tracked, queue, offset, world, leases } = this.#context
    const { claim, own } = attempt
    const lease = attempt.lease as EtcdLease
    const { key, owner } = claim
    const created = attempt.step === 'take-first' ? queue.createRevision(key, owner) : own?.kv.createRevision
    queue.granted(key, owner)
    if (attempt.queueLease) leases.unbind(attempt.queueLease)
    // The holder counts from when it asked; the store keeps it from when it was decided, which was later.
    const ttlMs = Math.min(claim.ttlMs, lease.validUntil - startedAt)
    tracked.add({
      key,
      owner,
      etcdKey: attempt.etcdKey,
      createRevision: claim.steal ? revision : (created ?? revision),
      modRevision: revision,
      record: attempt.record('held'),
      grantRevision: revision,
      lease,
      renewed: claim.renewed === true,
      deadline: Math.min(world.now() + claim.ttlMs, lease.validUntil),
    })
    attempt.lease = undefined
    if (ttlMs <= 0)
      this.#fail(attempt, new StoreUnavailableError('etcd: the lease ended before the grant was answered'))
    else attempt.answer = { granted: true, owner, token: offset.tokenOf(revision), ttlMs }
  }

  /** The owner holds it already: its reply was lost, or it asks for more time. */
  async #again(attempt: Attempt, own: Entry): Promise<void> {
    const { offset } = this.#context
    const { claim } = attempt
    const { key, owner, ttlMs } = claim
    const token = offset.tokenOf(grantRevisionOf(own.record as NonNullable<Entry['record']>, own.kv))
    const [renewed] = await this.#prolonging.renew([{ key, owner, token, ttlMs }], claim.renewed)
    this.#dropLease(attempt)
    if (renewed?.outcome === 'ours') attempt.answer = { granted: true, owner, token, ttlMs: renewed.ttlMs }
    else if (renewed?.outcome === 'unknown') this.#fail(attempt, renewed.error)
    else attempt.directory = undefined
    attempt.step = 'look'
  }

  /** The queue entry lives for `queueMs` after its owner last asked. */
  async #keepQueued(attempt: Attempt, own: Entry, queueMs: number): Promise<void> {
    const { key, owner } = attempt.claim
    const kept = await this.#prolonging.prolongQueued(key, owner, queueMs, own)
    if (kept) this.#refuse(attempt)
    else attempt.directory = undefined
    attempt.step = 'look'
  }

  #refuse(attempt: Attempt): void {
    const { offset, queue } = this.#context
    const { claim, own } = attempt
    const directory = attempt.directory as Directory
    if (own) queue.wait(claim.key, claim.owner, own.kv.createRevision, directory)
    attempt.answer = refusal(directory, claim.owner, offset.value)
    this.#dropLease(attempt)
  }

  #fail(attempt: Attempt, error: unknown): Answer {
    this.#dropLease(attempt)
    attempt.answer = { granted: 'unknown', error }
    return attempt.answer
  }

  #dropLease(attempt: Attempt): void {
    if (attempt.lease && !attempt.lease.shared) this.#context.leases.revoke(attempt.lease)
    attempt.lease = undefined
  }

  /** True: nothing was carried out, and it can be tried again. */
  #recover(round: readonly Attempt[], error: unknown): boolean {
    const { leases } = this.#context
    for (const attempt of round) this.#unbind(attempt)
    const nothingDone = error instanceof EtcdError && isFinal(error) && !error.retried
    if (isLeaseGone(error)) {
      if (!nothingDone) for (const attempt of round) this.#mayArriveLate(attempt)
      for (const { lease, queueLease } of round) for (const each of [lease, queueLease]) if (each) leases.retire(each)
      if (!nothingDone) renumber(round)
      return true
    }
    for (const attempt of round) {
      if (!nothingDone) this.#mayArriveLate(attempt)
      this.#fail(attempt, error)
    }
    return false
  }

  /** A server that did not answer may carry the write out at any later time, also after the key was released. */
  #mayArriveLate(attempt: Attempt): void {
    const { tracked } = this.#context
    const { lease, queueLease, claim } = attempt
    if (attempt.step === 'look') return
    if (lease) tracked.orphan(claim, attempt.etcdKey, attempt.number, lease)
    if (queueLease) tracked.orphan(claim, attempt.etcdKey, attempt.number, queueLease)
  }
}

/** The next round writes under another number, because what the unanswered one may still write is removed by its number. */
function renumber(attempts: readonly Attempt[]): void {
  for (const attempt of attempts) if (!attempt.answer) attempt.renumber()
}

const tooBusy = (): StoreUnavailableError =>
  new StoreUnavailableError('etcd: the key was changed by others faster than it could be decided')
