import type { World } from '../util/world.js'
import type { Renewal, Renewed, Store } from '../store.js'
import { batchSize } from './batch-size.js'
import type { Batcher } from './batcher.js'
import { QUEUE_HEARTBEAT_MS, QUEUE_MS } from './retry-delay.js'
import { isThenable } from './thenable.js'
import { Alarm, Timers } from './timers.js'
import { isRenewed } from './well-formed.js'

/** Queue entries renewed in one call at most, or `maxBatch` of the store if that is less: long calls block a server. */
const MOST_PER_CALL = 500

/** A queue entry of this process, and who has to hear what became of it. */
export interface Queued {
  readonly key: string
  readonly owner: string
  renewed: (answer: Renewed, sentAt: number) => void
}

/**
 * Keeps the queue entries of this process alive: one batched call per store object and heartbeat, whatever the number of
 * waiters and of `createLocks` instances. A waiter that is not first sends no requests of its own.
 */
export class QueueHeartbeat {
  readonly #batcher: Batcher
  readonly #world: World
  readonly #entries = new Map<string, Queued>()
  /** Pending acquisitions keep the process alive, and those that wait for ever have no other timer. */
  readonly #timers: Timers
  readonly #alarm = new Alarm(() => this.#renew())

  /** All instances of one store object share one: the server is asked once for all of them. */
  static of(store: Store, batcher: Batcher, world: World): QueueHeartbeat {
    let heartbeat = heartbeats.get(store)
    if (!heartbeat) heartbeats.set(store, (heartbeat = new QueueHeartbeat(batcher, world)))
    return heartbeat
  }

  private constructor(batcher: Batcher, world: World) {
    this.#batcher = batcher
    this.#world = world
    this.#timers = new Timers(world, true)
  }

  add(entry: Queued): void {
    this.#entries.set(entry.owner, entry)
    // Also while the renewal of an entry that has left since is under way: its alarm was cleared with it.
    if (this.#entries.size === 1) this.#schedule()
  }

  remove(entry: Queued): void {
    if (this.#entries.get(entry.owner) !== entry) return
    this.#entries.delete(entry.owner)
    if (this.#entries.size === 0) this.#timers.clear(this.#alarm)
  }

  #schedule(): void {
    this.#timers.set(this.#alarm, this.#world.now() + QUEUE_HEARTBEAT_MS, QUEUE_HEARTBEAT_MS)
  }

  #renew(): void {
    if (this.#entries.size === 0) return
    // The next heartbeat does not wait for this one's answers: a call that hangs must not cost the other entries.
    this.#schedule()
    for (const batch of this.#batches()) this.#send(batch)
  }

  #send(batch: readonly Queued[]): void {
    const sentAt = this.#world.now()
    const renewals = batch.map(({ key, owner }): Renewal => ({ key, owner, ttlMs: QUEUE_MS, queued: true }))
    const unknown = (error: unknown): Renewed[] => batch.map(() => ({ outcome: 'unknown', error }))
    const answers = this.#batcher.within<Renewed[]>(
      { call: 'renew', items: batch.length },
      () => this.#batcher.store.renew(renewals),
      unknown,
    )
    if (isThenable(answers)) void answers.then((settled) => this.#answered(batch, settled, sentAt))
    else this.#answered(batch, answers, sentAt)
  }

  #answered(batch: readonly Queued[], answers: Renewed[], sentAt: number): void {
    const complete = Array.isArray(answers) && answers.length === batch.length
    for (const [i, entry] of batch.entries()) {
      const answer = complete ? answers[i] : undefined
      // It may have been granted or have given up since.
      if (isRenewed(answer) && this.#entries.get(entry.owner) === entry) entry.renewed(answer, sentAt)
    }
  }

  /** By partition, as every call, and never too many at once. */
  #batches(): Queued[][] {
    const { store } = this.#batcher
    const groups = new Map<string | number, Queued[]>()
    for (const entry of this.#entries.values()) {
      const partition = store.partition?.(entry.key) ?? 0
      const group = groups.get(partition)
      if (group) group.push(entry)
      else groups.set(partition, [entry])
    }
    const most = Math.min(batchSize(store, 'renew'), MOST_PER_CALL)
    const batches: Queued[][] = []
    for (const group of groups.values()) {
      for (let i = 0; i < group.length; i += most) batches.push(group.slice(i, i + most))
    }
    return batches
  }
}

const heartbeats = new WeakMap<Store, QueueHeartbeat>()
