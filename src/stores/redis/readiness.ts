import type { Adapter } from '../../clients/redis/adapter.js'
import { Eviction } from './eviction.js'
import type { Index, Keys } from './keys.js'
import type { Scripts } from './scripts.js'
import { ServerClock } from './server-clock.js'
import type { Transport } from './transport.js'

const DAY_MS = 86_400_000
const HOUR_MS = 3_600_000
/** ANNOUNCE_EVERY_MS: how often the directory is told of an index in use. Listings need it, and it lasts for a day. */
const ANNOUNCE_EVERY_MS = 600_000

/** What has to be known of a server before it is asked for a lock: its time, and that it evicts nothing. */
export class Readiness {
  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #scripts: Scripts
  readonly #transport: Transport
  readonly #eviction: Eviction | undefined
  /** By the address of the server. */
  readonly #clocks = new Map<string, ServerClock>()

  constructor(
    adapter: Adapter,
    options: { keys: Keys; scripts: Scripts; transport: Transport; allowEviction: boolean; timeoutMs: number },
  ) {
    this.#adapter = adapter
    this.#keys = options.keys
    this.#scripts = options.scripts
    this.#transport = options.transport
    this.#eviction = options.allowEviction ? undefined : new Eviction(adapter, options.timeoutMs)
  }

  /** The servers of these slots may be others than before, or know nothing any more. */
  forget(affected?: (slot: number) => boolean): void {
    for (const index of this.#keys.indexes) {
      if (affected && !affected(index.slot)) continue
      index.warmUntil = index.announcedUntil = 0
      index.clock = undefined
    }
    this.#clocks.clear()
    this.#eviction?.forget()
  }

  /** What has to be settled before the first request, and now and then; undefined, as nearly always, when nothing has. */
  prepare(index: Index, ttlMs: number, now: number): Promise<void> | undefined {
    if (!this.#adapter.ready()) {
      return this.#transport.whenReady().then(() => this.prepare(index, ttlMs, performance.now()))
    }
    if (now < index.warmUntil && ttlMs <= DAY_MS) return undefined
    this.announce(index, ttlMs, now)
    const address = this.#adapter.addressOf(index.slot)
    // A request without a deadline may lie in a frozen server, and be granted when whoever sent it is long dead.
    const heard = this.clockOf(index).known ? undefined : this.#hearClock(index, now)
    const judged = address === undefined ? undefined : this.#eviction?.check(address, now)
    if (heard || judged) return Promise.all([heard, judged]).then(() => {})
    const dueAt = address === undefined ? undefined : this.#eviction?.dueAt(address)
    index.warmUntil = Math.min(dueAt ?? index.announcedUntil, index.announcedUntil)
    return undefined
  }

  clockOf(index: Index): ServerClock {
    if (index.clock) return index.clock
    const address = this.#adapter.addressOf(index.slot) ?? ''
    let clock = this.#clocks.get(address)
    if (!clock) this.#clocks.set(address, (clock = new ServerClock()))
    index.clock = clock
    return clock
  }

  async #hearClock(index: Index, sentAt: number): Promise<void> {
    const micros = Number(await this.#transport.run(this.#scripts.time, [index.name], []))
    this.clockOf(index).heard(micros, sentAt)
  }

  /** Tells the directory that this index is in use. Only those who list depend on it, so nobody waits for the answer. */
  announce(index: Index, ttlMs: number, now: number): void {
    const neededMs = Math.max(DAY_MS, ttlMs)
    if (index.announcedUntil > now + neededMs - DAY_MS) return
    index.announcedUntil = now + neededMs - DAY_MS + ANNOUNCE_EVERY_MS
    const args = [index.name, String(Math.ceil(neededMs + HOUR_MS))]
    this.#transport.run(this.#scripts.index, [this.#keys.directory], args).catch(() => {
      index.announcedUntil = index.warmUntil = 0
    })
  }
}
