import type { Engine } from '../core/engine.js'
import { type Defaults, optionsOf } from '../core/options.js'
import { InvalidOptionError } from '../errors.js'
import { knownOptions, unknownWord } from '../util/options.js'
import { ALL, type HolderView, type WaiterView } from '../store.js'
import { isSlotOf, slotPrefix } from './semaphore/slots.js'

/** Every kind of name has a space of its own. */
export const LOCK_KINDS: readonly string[] = ['lock', 'semaphore', 'election', 'run-once', 'schedule', 'stats']

/** Which kind of names to read. */
export interface InspectOptions {
  /** `lock` (the default), `semaphore`, `election`, `run-once`, `schedule`, `stats` (what processes publish) */
  kind?: string | undefined
}

/** A holder of a lock. */
export interface HolderInfo {
  name: string
  kind: string
  holder: string
  mode: 'exclusive' | 'shared'
  /** How many permits of a semaphore. Undefined for exclusive holders and waiters. */
  weight: number | undefined
  /** How many permits the semaphore has. Undefined for everything else. */
  capacity: number | undefined
  /** Undefined for holders that are not leasehold's. */
  fencingToken: bigint | undefined
  acquiredAt: Date | undefined
  /** Undefined: it never expires by itself. */
  expiresAt: Date | undefined
  metadata: unknown
  /** Not taken through leasehold. */
  foreign: boolean
  /** How many wait for the same name. */
  waiting: number
  /** What else the store knows, such as the client's address. */
  detail: Readonly<Record<string, string | number>> | undefined
}

/** A waiter for a lock. */
export interface WaiterInfo {
  name: string
  kind: string
  holder: string
  mode: 'exclusive' | 'shared'
  /** How many permits of a semaphore. Undefined for exclusive holders and waiters. */
  weight: number | undefined
  /** How many permits the semaphore has. Undefined for everything else. */
  capacity: number | undefined
  waitedMs: number | undefined
  metadata: unknown
  detail: Readonly<Record<string, string | number>> | undefined
}

/** The holders of one name, and its waiters in the order of the queue. */
export interface LockState {
  name: string
  kind: string
  holders: HolderInfo[]
  waiters: WaiterInfo[]
}

/** Holders that `holderPages` yields at once, and the most that a page of a store has: bounds memory and the time of a page. */
const PAGE = 1_000

const byKey = (a: HolderView, b: HolderView): number => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0)

/** Reads holders and waiters of a store without acquiring anything. */
export class Inspector {
  readonly #engine: Engine
  readonly #defaults: Defaults

  constructor(engine: Engine, defaults: Defaults) {
    this.#engine = engine
    this.#defaults = defaults
  }

  async holders(prefix: string, options: InspectOptions = {}): Promise<HolderInfo[]> {
    const views: HolderView[] = []
    for await (const page of this.#pages(this.#prefixOf(prefix, options))) {
      // A store without pages answers everything at once, which may be more than a call has room for as arguments.
      for (const view of page) views.push(view)
    }
    return views.sort(byKey).map((view) => this.#holder(view))
  }

  /** As they arrive, each page in the order of names. */
  async *holderPages(prefix: string, options: InspectOptions = {}): AsyncGenerator<HolderInfo[]> {
    let page: HolderView[] = []
    const ready = (): HolderInfo[] => {
      const infos = page.sort(byKey).map((view) => this.#holder(view))
      page = []
      return infos
    }
    for await (const views of this.#pages(this.#prefixOf(prefix, options))) {
      for (const view of views) {
        page.push(view)
        if (page.length === PAGE) yield ready()
      }
    }
    if (page.length > 0) yield ready()
  }

  #prefixOf(prefix: string, options: InspectOptions): string {
    const { kind = 'lock' } = knownOptions(options, optionsOf.inspect)
    // No name begins with such text, and a server that cannot even read it would look as if it were unavailable.
    if (typeof prefix !== 'string' || !prefix.isWellFormed() || prefix.includes('\0')) {
      throw new InvalidOptionError('prefix', prefix, 'well-formed Unicode without NUL')
    }
    return `${kindFrom(kind)}:${this.#defaults.prefix}${prefix}`
  }

  /** The time limit of the store counts for each page: a listing of a hundred thousand holders takes longer than that. */
  async *#pages(prefix: string): AsyncGenerator<HolderView[]> {
    const pages = this.#engine.store.holderPages?.(prefix)[Symbol.asyncIterator]()
    if (!pages) return yield await this.#engine.read('holders', (store) => store.holders?.(prefix))
    try {
      for (;;) {
        const { done, value } = await this.#engine.read('holders', () => pages.next())
        if (done) return
        yield value
      }
    } finally {
      // The caller did not read to the end, or a page came too late.
      pages.return?.().catch(() => {})
    }
  }

  async waiters(name: string, options?: InspectOptions): Promise<WaiterInfo[]> {
    return (await this.inspect(name, options)).waiters
  }

  async inspect(name: string, options: InspectOptions = {}): Promise<LockState> {
    const { kind = 'lock' } = knownOptions(options, optionsOf.inspect)
    const keys = await this.#keysOf(name, kindFrom(kind))
    const states = await Promise.all(keys.map((key) => this.#engine.read('inspect', (store) => store.inspect?.(key))))
    return {
      name,
      kind,
      holders: states.flatMap(({ holders }) => holders.map((view) => this.#holder(view))),
      waiters: states.flatMap(({ waiters }) => waiters.map((view) => this.#waiter(view))),
    }
  }

  async forceRelease(name: string, options: InspectOptions = {}): Promise<HolderInfo[]> {
    const { kind = 'lock' } = knownOptions(options, optionsOf.inspect)
    const keys = await this.#keysOf(name, kindFrom(kind))
    const cut = await Promise.all(keys.map((key) => this.#engine.revoke(key)))
    return cut.flat().map((view) => this.#holder(view))
  }

  /** On a store that cannot count, a semaphore is made of slots, each with a key of its own, and the plain key has no holder. */
  async #keysOf(name: string, kind: string): Promise<string[]> {
    const key = this.#defaults.key(kind, name)
    if (kind !== 'semaphore' || this.#engine.store.features.counting) return [key]
    const views = await this.#engine.read('holders', (store) => store.holders?.(slotPrefix(key)))
    return [...new Set([key, ...views.map((view) => view.key).filter((slot) => isSlotOf(key, slot))])]
  }

  #holder(view: HolderView): HolderInfo {
    const now = this.#engine.world.date()
    return {
      ...this.#common(view),
      fencingToken: view.token,
      acquiredAt: view.heldMs === undefined ? undefined : new Date(now - view.heldMs),
      expiresAt: view.ttlMs === undefined ? undefined : new Date(now + view.ttlMs),
      foreign: view.foreign === true,
      waiting: view.waiting ?? 0,
    }
  }

  #waiter(view: WaiterView): WaiterInfo {
    return { ...this.#common(view), waitedMs: view.waitedMs }
  }

  #common({ key, owner, weight, capacity, value, detail }: HolderView | WaiterView): Omit<WaiterInfo, 'waitedMs'> {
    const colon = key.indexOf(':')
    const kind = key.slice(0, colon)
    const full = key.slice(colon + 1)
    const { prefix } = this.#defaults
    const name = full.startsWith(prefix) ? full.slice(prefix.length) : full
    const mode = weight === 1 && capacity === ALL ? 'shared' : 'exclusive'
    return {
      name,
      kind,
      holder: owner,
      mode,
      weight: weight === ALL ? undefined : weight,
      capacity: capacity === ALL ? undefined : capacity,
      metadata: parsed(value),
      detail,
    }
  }
}

/** Other writers may have put anything there. */
function parsed(value: string | undefined): unknown {
  if (value === undefined) return undefined
  try {
    return JSON.parse(value)
  } catch {
    return value
  }
}

function kindFrom(kind: unknown): string {
  if (typeof kind === 'string' && LOCK_KINDS.includes(kind)) return kind
  throw unknownWord('kind', kind, LOCK_KINDS)
}
