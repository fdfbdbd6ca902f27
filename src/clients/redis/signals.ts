import type { Adapter, Dedicated } from './adapter.js'

interface Emitter {
  on(event: string, listener: (...args: never[]) => void): unknown
  off(event: string, listener: (...args: never[]) => void): unknown
}

/** Which slots are concerned; absent: all. */
export type Affected = (slot: number) => boolean

/** What one user of a client wants to be told of it. */
export type Told = Pick<SharedAdapter, 'turn' | 'doubt' | 'shock'>

/** DOUBT_PAUSE_MS: between two doubts about one server. One that accepts connections and drops them would be renewed on without end. */
const DOUBT_PAUSE_MS = 1_000

/**
 * The listeners on a client that is not ours: one set of them per client, however many stores use it. Node warns of a leak
 * at eleven listeners of one event.
 */
export abstract class Signals {
  lastError: unknown
  /** Weak, because a store that nobody closed must not live for as long as the client does. */
  readonly #users = new Set<WeakRef<Told>>()
  readonly #paused = new Map<string, { again: boolean }>()
  readonly #heard = new Set<{ emitter: Emitter; event: string; listener: (...args: never[]) => void }>()
  #listening = true

  /** While nobody uses it, there is no listener on the client. */
  add(user: Told): () => void {
    const ref = new WeakRef(user)
    this.#users.add(ref)
    this.#listen(true)
    return () => {
      this.#users.delete(ref)
      if (this.#live().length === 0) this.#listen(false)
    }
  }

  /** Listens again after a while in which nodes may have come and gone. */
  protected resumed(): void {}

  on(emitter: Emitter, event: string, listener: (...args: never[]) => void): () => void {
    const entry = { emitter, event, listener }
    this.#heard.add(entry)
    if (this.#listening) emitter.on(event, listener)
    return () => {
      this.#heard.delete(entry)
      emitter.off(event, listener)
    }
  }

  /** Whenever it is ready again, nobody knows what happened meanwhile. */
  doubtWhenReadyAgain(emitter: Emitter, isReady: boolean): void {
    let wasReady = isReady
    this.on(emitter, 'ready', () => {
      if (wasReady) this.doubt()
      wasReady = true
    })
  }

  shock(): void {
    for (const user of this.#live()) user.shock()
  }

  turn(): void {
    for (const user of this.#live()) user.turn()
  }

  doubt(affected?: Affected): void {
    for (const user of this.#live()) user.doubt(affected)
  }

  /** At once, and then at most once a second for each server: but the last one of a burst is told in any case. */
  doubtServer(address: string, affected: Affected): void {
    const paused = this.#paused.get(address)
    if (paused) {
      paused.again = true
      return
    }
    const pause = { again: false }
    this.#paused.set(address, pause)
    setTimeout(() => {
      this.#paused.delete(address)
      if (pause.again) this.doubtServer(address, affected)
    }, DOUBT_PAUSE_MS).unref()
    this.doubt(affected)
  }

  #live(): Told[] {
    const live: Told[] = []
    for (const ref of this.#users) {
      const user = ref.deref()
      if (user) live.push(user)
      else this.#users.delete(ref)
    }
    return live
  }

  #listen(listening: boolean): void {
    if (listening === this.#listening) return
    this.#listening = listening
    for (const { emitter, event, listener } of this.#heard) {
      if (listening) emitter.on(event, listener)
      else emitter.off(event, listener)
    }
    if (listening) this.resumed()
  }
}

/** What is left to be said of a client, besides its events. */
export type Core = Signals & Omit<Adapter, 'onTurn' | 'onDoubt' | 'onShock' | 'rest' | 'attend' | 'detach'>

const cores = new WeakMap<object, Core>()

/** The adapter of one store: all stores of one client share what listens to it. */
export function shared(client: object, make: () => Core): Adapter {
  let core = cores.get(client)
  if (!core) {
    core = make()
    cores.set(client, core)
  }
  return new SharedAdapter(core)
}

class SharedAdapter implements Adapter {
  readonly #core: Core
  readonly #turns = new Set<() => void>()
  readonly #doubts = new Set<(affected?: Affected) => void>()
  readonly #shocks = new Set<() => void>()
  #remove: (() => void) | undefined
  readonly cluster: boolean
  readonly keyPrefix: string

  constructor(core: Core) {
    this.#core = core
    this.cluster = core.cluster
    this.keyPrefix = core.keyPrefix
    this.attend()
  }

  rest(): void {
    this.#remove?.()
    this.#remove = undefined
  }

  attend(): void {
    this.#remove ??= this.#core.add(this)
  }

  get lastError(): unknown {
    return this.#core.lastError
  }

  ready(): boolean {
    return this.#core.ready()
  }

  closed(): boolean {
    return this.#core.closed()
  }

  trouble(): unknown {
    return this.#core.trouble()
  }

  wake(): void {
    this.#core.wake()
  }

  evalsha: Adapter['evalsha'] = (sha, keys, args) => this.#core.evalsha(sha, keys, args)
  eval: Adapter['eval'] = (source, keys, args) => this.#core.eval(source, keys, args)
  masters: Adapter['masters'] = () => this.#core.masters()
  addressOf: Adapter['addressOf'] = (slot) => this.#core.addressOf(slot)
  compareMasters: Adapter['compareMasters'] = () => this.#core.compareMasters()
  listen: Adapter['listen'] = (address, on) => this.#core.listen(address, on)

  get dedicate(): Adapter['dedicate'] {
    const core = this.#core
    return core.dedicate && ((address) => (core as Required<Core>).dedicate?.(address) as Dedicated)
  }

  onTurn(listener: () => void): () => void {
    this.attend()
    this.#turns.add(listener)
    return () => this.#turns.delete(listener)
  }

  onDoubt(listener: (affected?: Affected) => void): () => void {
    this.#doubts.add(listener)
    return () => this.#doubts.delete(listener)
  }

  onShock(listener: () => void): () => void {
    this.#shocks.add(listener)
    return () => this.#shocks.delete(listener)
  }

  turn(): void {
    for (const listener of [...this.#turns]) listener()
  }

  doubt(affected?: Affected): void {
    for (const listener of [...this.#doubts]) listener(affected)
  }

  shock(): void {
    for (const listener of [...this.#shocks]) listener()
  }

  detach(): void {
    this.#turns.clear()
    this.#doubts.clear()
    this.#shocks.clear()
    this.rest()
  }
}

/** Who serves which slot of a cluster, and which slots changed hands since the last look. */
export class SlotMasters {
  readonly #addressOf: (slot: number) => string | undefined
  #known: (string | undefined)[] = []

  constructor(addressOf: (slot: number) => string | undefined) {
    this.#addressOf = addressOf
    this.changed()
  }

  /** Slots without a master in between count with the last one they had. */
  changed(): Set<number> {
    const changed = new Set<number>()
    for (let slot = 0; slot < 16_384; slot++) {
      const address = this.#addressOf(slot)
      const before = this.#known[slot]
      if (address === undefined || address === before) continue
      this.#known[slot] = address
      if (before !== undefined) changed.add(slot)
    }
    return changed
  }

  servedBy(address: string): Affected {
    return (slot) => this.#known[slot] === address
  }
}
