import { type Adapter, text } from '../../clients/redis/adapter.js'
import { StoreUnavailableError } from '../../errors.js'
import { realWorld } from '../../util/world.js'
import type { Index, Keys } from './keys.js'
import { ServerClock } from './server-clock.js'
import { type RedisScripts, type Transport, settledWithin } from './transport.js'

const DAY_MS = 86_400_000
const HOUR_MS = 3_600_000
/** ANNOUNCE_EVERY_MS: how often the directory is told of an index in use. Listings need it, and it lasts for a day. */
const ANNOUNCE_EVERY_MS = 600_000

/** What has to be known of a server before it is asked for a lock: its time, and that it evicts nothing. */
export class Readiness {
  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #scripts: RedisScripts
  readonly #transport: Transport
  readonly #eviction: Eviction | undefined
  /** By the address of the server. */
  readonly #clocks = new Map<string, ServerClock>()
  readonly #timeoutMs: number
  readonly #announcing = new Set<Promise<unknown>>()

  constructor(
    adapter: Adapter,
    options: { keys: Keys; scripts: RedisScripts; transport: Transport; allowEviction: boolean; timeoutMs: number },
  ) {
    this.#adapter = adapter
    this.#keys = options.keys
    this.#scripts = options.scripts
    this.#transport = options.transport
    this.#timeoutMs = options.timeoutMs
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
      return this.#transport.whenReady().then(() => this.prepare(index, ttlMs, realWorld.now()))
    }
    if (now < index.warmUntil && ttlMs <= DAY_MS) return undefined
    this.announce(index, ttlMs, now)
    const address = this.#adapter.addressOf(index.slot)
    // A request without a deadline may lie in a frozen server, and be granted when the process that sent it is long dead.
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
    if (!clock) this.#clocks.set(address, (clock = new ServerClock(this.#timeoutMs)))
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
    const announcing = this.#transport
      .run(this.#scripts.index, [this.#keys.directory], args)
      .catch(() => {
        index.announcedUntil = index.warmUntil = 0
      })
      .finally(() => this.#announcing.delete(announcing))
    this.#announcing.add(announcing)
  }

  /** Settles when the directory knows of every index that this store has used so far. On a cluster it may be on another server. */
  async announced(): Promise<void> {
    while (this.#announcing.size > 0) await Promise.all(this.#announcing)
  }
}

/** LOOK_EVERY_MS, LOOK_CLOSELY_MS: how long an answer counts, of a server whose settings forbid eviction, and of one that may begin at any moment. */
const LOOK_EVERY_MS = 10_000
const LOOK_CLOSELY_MS = 1_000
/** NEARLY_FULL: the share of maxmemory from which on a server counts as evicting. */
const NEARLY_FULL = 0.95

/** What is known of one server. */
interface Look {
  /** When it was last begun. */
  at: number
  /** The one under way. */
  pending: Promise<void> | undefined
  answered: boolean
  /** Until when, counted from `at`, its answer counts. */
  everyMs: number
  /** Why locks are refused there. */
  reason: string | undefined
  evicted: number | undefined
}

/**
 * A server that evicts keys evicts locks too, without notice. So an acquire fails while its server evicts, instead of getting a
 * lock that may vanish. Nothing is granted before the first look at the server has answered.
 */
class Eviction {
  readonly #adapter: Adapter
  readonly #timeoutMs: number
  readonly #looks = new Map<string, Look>()
  /** This user may not ask: then nothing is known, and nothing refused. */
  #forbidden = false

  constructor(adapter: Adapter, timeoutMs: number) {
    this.#adapter = adapter
    this.#timeoutMs = timeoutMs
  }

  /** Until when, by our clock, what is known of this server counts. */
  dueAt(address: string): number {
    if (this.#forbidden) return Number.POSITIVE_INFINITY
    const look = this.#looks.get(address)
    // A look that is not answered yet must not count as one that found nothing.
    if (!look?.answered || look.pending || look.reason !== undefined) return Number.NEGATIVE_INFINITY
    return look.at + look.everyMs
  }

  /** Looks again if it is time to. Throws, or for the very first look rejects, if something speaks against granting. */
  check(address: string, now: number): Promise<void> | undefined {
    if (this.#forbidden) return undefined
    let look = this.#looks.get(address)
    if (!look) {
      look = {
        at: Number.NEGATIVE_INFINITY,
        pending: undefined,
        answered: false,
        everyMs: 0,
        reason: undefined,
        evicted: undefined,
      }
      this.#looks.set(address, look)
    }
    if (!look.pending && now >= look.at + look.everyMs) this.#begin(look, address, now)
    if (!look.answered && look.pending) return this.#first(look)
    judge(look)
    return undefined
  }

  /** The servers are others, or know nothing any more. */
  forget(): void {
    this.#looks.clear()
  }

  async #first(look: Look): Promise<void> {
    await settledWithin(this.#timeoutMs, look.pending as Promise<void>)
    judge(look)
  }

  #begin(look: Look, address: string, now: number): void {
    look.at = now
    // Should it fail, look again soon.
    look.everyMs = LOOK_CLOSELY_MS
    look.pending = this.#ask(address)
      .then((info) => this.#learn(look, info))
      .catch((error: unknown) => {
        if (error instanceof Error && error.message.startsWith('NOPERM')) this.#forbidden = true
      })
      .finally(() => {
        look.pending = undefined
      })
  }

  /** Undefined: that server is not among the masters any more. */
  async #ask(address: string): Promise<ReadonlyMap<string, string> | undefined> {
    const server = (await this.#adapter.masters()).find((each) => each.address === address)
    return server && facts(text(await server.send('INFO')))
  }

  #learn(look: Look, info: ReadonlyMap<string, string> | undefined): void {
    if (!info) return
    look.answered = true
    const policy = info.get('maxmemory_policy')
    const most = Number(info.get('maxmemory') ?? 0)
    const evicted = Number(info.get('evicted_keys') ?? 0)
    const before = look.evicted ?? evicted
    look.evicted = evicted
    look.reason = undefined
    look.everyMs = LOOK_EVERY_MS
    if (policy === undefined || policy === 'noeviction' || !(most > 0)) return
    look.everyMs = LOOK_CLOSELY_MS
    const share = Number(info.get('used_memory') ?? 0) / most
    if (evicted > before) look.reason = `${policy}, ${evicted - before} keys since the last look`
    else if (share > NEARLY_FULL) look.reason = `${policy}, and ${Math.round(share * 100)} % of maxmemory is used`
  }
}

function judge({ reason }: Look): void {
  if (reason === undefined) return
  throw new StoreUnavailableError(
    `redis evicts keys and would drop locks without a word: ${reason}; ` +
      'set maxmemory-policy noeviction, keep locks elsewhere, or pass { allowEviction: true }',
  )
}

function facts(info: string): Map<string, string> {
  return new Map(info.split(/\r?\n/).map((line) => line.split(/:(.*)/, 2) as [string, string]))
}
