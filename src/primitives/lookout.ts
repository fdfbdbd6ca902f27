import type { Engine } from '../core/engine.js'
import type { Defaults } from '../core/options.js'
import { InvalidOptionError } from '../errors.js'
import { ALL, type HolderView, type WaiterView } from '../store.js'

/** Which space of names to look at. */
export interface LookOptions {
  /** `lock` (the default), `semaphore`, `election`, `once`, `schedule` */
  kind?: string
}

/** Somebody who holds something. */
export interface HolderInfo {
  name: string
  kind: string
  holder: string
  mode: 'exclusive' | 'shared'
  weight: number
  /** Undefined for holders that are not ours. */
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

/** Somebody who waits. */
export interface WaiterInfo {
  name: string
  kind: string
  holder: string
  mode: 'exclusive' | 'shared'
  weight: number
  waitedMs: number | undefined
  metadata: unknown
  detail: Readonly<Record<string, string | number>> | undefined
}

/** One name: who holds it, and who waits for it in which order. */
export interface LockState {
  name: string
  kind: string
  holders: HolderInfo[]
  waiters: WaiterInfo[]
}

/** Looks at a store without taking part. */
export class Lookout {
  readonly #engine: Engine
  readonly #defaults: Defaults

  constructor(engine: Engine, defaults: Defaults) {
    this.#engine = engine
    this.#defaults = defaults
  }

  async holders(prefix: string, options: LookOptions = {}): Promise<HolderInfo[]> {
    const { kind = 'lock' } = options
    if (typeof prefix !== 'string') throw new InvalidOptionError('prefix', prefix, 'a string')
    const views = await this.#engine.look('holders', (store) =>
      store.holders?.(`${kindFrom(kind)}:${this.#defaults.prefix}${prefix}`),
    )
    return views.map((view) => this.#holder(view))
  }

  async waiters(name: string, options?: LookOptions): Promise<WaiterInfo[]> {
    return (await this.inspect(name, options)).waiters
  }

  async inspect(name: string, { kind = 'lock' }: LookOptions = {}): Promise<LockState> {
    const key = this.#defaults.key(kindFrom(kind), name)
    const { holders, waiters } = await this.#engine.look('inspect', (store) => store.inspect?.(key))
    return {
      name,
      kind,
      holders: holders.map((view) => this.#holder(view)),
      waiters: waiters.map((view) => this.#waiter(view)),
    }
  }

  async forceRelease(name: string, { kind = 'lock' }: LookOptions = {}): Promise<HolderInfo[]> {
    const key = this.#defaults.key(kindFrom(kind), name)
    const cut = await this.#engine.revoke(key)
    return cut.map((view) => this.#holder(view))
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
    return { name, kind, holder: owner, mode, weight, metadata: parsed(value), detail }
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
  if (typeof kind === 'string' && /^[a-z]+$/.test(kind)) return kind
  throw new InvalidOptionError('kind', kind, "a word such as 'lock', 'semaphore' or 'election'")
}
