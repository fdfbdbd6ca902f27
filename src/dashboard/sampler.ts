import { guarded } from '../core/guarded.js'
import type { HolderInfo } from '../primitives/inspect.js'
import type { Locks } from '../locks.js'
import { reasonOf } from '../util/reason.js'
import { redact } from '../util/redact.js'
import { Contention, SLOT_MS } from './contention.js'
import { LocalProcesses } from './health.js'
import { ElectionHistory, LossHistory, schedulesOf } from './history.js'
import { GAP_MS, TrackedHolders } from './holders.js'
import { Processes, instanceOf } from './processes.js'
import type { DashboardFacts, HeldPoint, HolderChanges, ReleaseAction } from './protocol.js'

/**
 * EVERY_MS: pause between samples. A change has to be on the page within a second. After a sample that took longer, the store
 * is left alone for as long as it took.
 */
const EVERY_MS = 300
/** OUTAGE_PAUSE_MS: pause after a sample that failed. */
const OUTAGE_PAUSE_MS = 1_000
/** STATS_PAUSE_MS: pause between readings of what processes publish, for each of them: one may have written 20 KB. */
const STATS_PAUSE_MS = 20
/** SCHEDULES_EVERY_MS: the records of schedules change seldom, and may be many. */
const SCHEDULES_EVERY_MS = 4_000
/** MOST_HOLDERS: read at most in one sample of one kind: bounds the memory of this process and of every page. */
const MOST_HOLDERS = 20_000
/** What may be looked at by name and held by somebody. Records of runOnce are not: there may be millions. */
const HELD_KINDS = ['lock', 'semaphore', 'election']

/** Reads the store for all pages at once, and only while somebody watches. */
export class Sampler {
  readonly contention: Contention = new Contention()
  readonly losses: LossHistory = new LossHistory()
  readonly processes: Processes = new Processes()
  readonly holders: TrackedHolders
  readonly #locks: Locks
  readonly #onSample: (changes: HolderChanges) => void
  readonly #local = new LocalProcesses()
  readonly #elections = new ElectionHistory()
  readonly #actions: () => readonly ReleaseAction[]
  #watchers = 0
  #timer: NodeJS.Timeout | undefined
  #sampling: Promise<void> | undefined
  #sampledAt = 0
  #statsAt = 0
  #schedulesAt = 0
  #scheduleHolders: HolderInfo[] = []
  #outage: { since: number; error: string } | undefined
  #tookMs = 0
  #everyMs = EVERY_MS
  #truncated: number | undefined
  #point: HeldPoint = [0, 0, 0]
  #closed = false

  constructor(
    locks: Locks,
    options: { sessions: boolean; actions: () => readonly ReleaseAction[]; onSample: (changes: HolderChanges) => void },
  ) {
    this.#locks = locks
    this.#onSample = options.onSample
    this.#actions = options.actions
    this.holders = new TrackedHolders({
      publishedAt: (holder) => this.processes.publishedAt(instanceOf(holder) ?? '', Date.now()),
      publishingEndedAt: (holder) => this.processes.endedAt(instanceOf(holder) ?? ''),
      process: (holder) => this.#local.find(holder),
      atRisk: (row) => this.processes.isAtRisk(row, Date.now()),
      sessions: options.sessions,
    })
  }

  /** Samples from now on. Returns how to stop: with the last watcher the store is left alone. */
  watch(): () => void {
    this.#watchers++
    if (this.#watchers === 1) {
      if (!this.isFresh) {
        this.holders.clear()
        this.#elections.forgetOpen()
      }
      this.#next(0)
    }
    let isWatching = true
    return () => {
      if (isWatching) this.#watchers--
      isWatching = false
      if (this.#watchers > 0) return
      clearTimeout(this.#timer)
      this.contention.pause()
    }
  }

  /** A sample that is no older than this, taken now if there is none. */
  async fresh(oldestMs: number): Promise<void> {
    if (!this.#sampling && Date.now() - this.#sampledAt <= oldestMs && !this.#outage) return
    await this.#sample()
  }

  /** Whether what is known is from just now. */
  get isFresh(): boolean {
    return Date.now() - this.#sampledAt <= GAP_MS
  }

  get isReachable(): boolean {
    return this.#outage === undefined
  }

  close(): void {
    this.#closed = true
    this.#watchers = 0
    clearTimeout(this.#timer)
  }

  facts(): DashboardFacts {
    const now = Date.now()
    const publishing = [...this.processes.publishing.values()]
    return {
      now,
      store: {
        reachable: !this.#outage,
        ...this.#outage,
        everyMs: Math.round(this.#everyMs),
        tookMs: Math.round(this.#tookMs),
      },
      truncated: this.#truncated,
      point: this.#point,
      publishing: publishing.length,
      processes: this.processes.views(this.holders.rows(), now),
      slotMs: SLOT_MS,
      slots: this.contention.published(publishing, now),
      sampledSlots: this.contention.sampled(),
      names: this.contention.names(this.holders.rows(), publishing),
      losses: this.losses.views(now),
      terms: this.#elections.views(),
      schedules: schedulesOf(this.#scheduleHolders, this.processes.schedules()),
      limiters: this.processes.limiters(),
      actions: this.#actions().slice(-50).toReversed(),
    }
  }

  #next(ms: number): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      void this.#sample().finally(() => {
        if (this.#watchers > 0 && !this.#closed) this.#next(this.#everyMs)
      })
    }, ms)
    this.#timer.unref()
  }

  /** One sample at a time, for all pages. Never rejects: an outage is shown. */
  #sample(): Promise<void> {
    this.#sampling ??= this.#sampleOnce().finally(() => {
      this.#sampling = undefined
    })
    return this.#sampling
  }

  async #sampleOnce(): Promise<void> {
    const begun = performance.now()
    let changes: HolderChanges
    try {
      await this.#readStats()
      const holders: HolderInfo[] = []
      this.#truncated = undefined
      for (const kind of HELD_KINDS) holders.push(...(await this.#list(kind)))
      await this.#readSchedules()
      this.#outage = undefined
      changes = this.#take(holders)
    } catch (error) {
      // The reason may change: a server that starts refuses at first, and then may not know the user.
      this.#outage = { since: this.#outage?.since ?? Date.now(), error: redact(reasonOf(error)) }
      this.contention.pause()
      changes = { now: Date.now(), rows: [], gone: [], renewed: [] }
    }
    // Outside of the try: a mistake while pages are written to would be shown as an outage of the store.
    guarded(() => this.#onSample(changes))
    this.#tookMs = performance.now() - begun
    this.#everyMs = this.#outage ? OUTAGE_PAUSE_MS : Math.max(EVERY_MS, this.#tookMs)
  }

  #take(holders: readonly HolderInfo[]): HolderChanges {
    const now = Date.now()
    this.#sampledAt = now
    this.#local.refresh()
    const { changes, ended: missing, begun } = this.holders.update(holders, now)
    // Of a listing that was cut off, nobody knows what is missing.
    const ended = this.#truncated === undefined ? missing : []
    this.#elections.update(begun, ended)
    this.losses.published(this.processes.publishing.values())
    this.losses.ended(ended, now)
    this.#point = this.contention.update(this.holders.rows(), ended, now)
    return changes
  }

  /** First of all: a holder is judged by what its process published. */
  async #readStats(): Promise<void> {
    const now = Date.now()
    if (now - this.#statsAt < STATS_PAUSE_MS * this.processes.publishing.size) return
    this.processes.update(await this.#list('stats'), Date.now())
    this.#statsAt = now
  }

  async #readSchedules(): Promise<void> {
    const now = Date.now()
    if (now - this.#schedulesAt < SCHEDULES_EVERY_MS) return
    this.#scheduleHolders = await this.#list('schedule')
    this.#schedulesAt = now
  }

  async #list(kind: string): Promise<HolderInfo[]> {
    const holders: HolderInfo[] = []
    for await (const page of this.#locks.holderPages('', { kind })) {
      holders.push(...page)
      if (holders.length < MOST_HOLDERS) continue
      this.#truncated = MOST_HOLDERS
      break
    }
    return holders
  }
}
