import type { Adapter, DedicatedConnection } from './adapter.js'

interface ClientEmitter {
  on(event: string, listener: (...args: never[]) => void): unknown
  off(event: string, listener: (...args: never[]) => void): unknown
}

/** Which slots are concerned; absent: all. */
export type Affected = (slot: number) => boolean

/** What one user of a client wants to be told of it. */
export type ClientUser = Pick<SharedAdapter, 'notifyStateChange' | 'notifyPossibleLoss' | 'notifyConnectionLost'>

/** LOSS_PAUSE_MS: pause between two reports about one server. One that accepts connections and drops them would cause renewals without end. */
const LOSS_PAUSE_MS = 1_000

/**
 * The listeners on a client that is not ours: one set of them per client, however many stores use it. Node warns of a leak
 * at eleven listeners of one event.
 */
export abstract class ClientEvents {
  lastError: unknown
  /** Weak, because a store that nobody closed must not live for as long as the client does. */
  readonly #users = new Set<WeakRef<ClientUser>>()
  readonly #paused = new Map<string, { again: boolean }>()
  readonly #registered = new Set<{ emitter: ClientEmitter; event: string; listener: (...args: never[]) => void }>()
  #listening = true

  /** While nobody uses it, there is no listener on the client. */
  add(user: ClientUser): () => void {
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

  on(emitter: ClientEmitter, event: string, listener: (...args: never[]) => void): () => void {
    const entry = { emitter, event, listener }
    this.#registered.add(entry)
    if (this.#listening) emitter.on(event, listener)
    return () => {
      this.#registered.delete(entry)
      emitter.off(event, listener)
    }
  }

  /** Whenever it is ready again, nobody knows what happened meanwhile. */
  reportLossWhenReadyAgain(emitter: ClientEmitter, isReady: boolean): void {
    let wasReady = isReady
    this.on(emitter, 'ready', () => {
      if (wasReady) this.notifyPossibleLoss()
      wasReady = true
    })
  }

  notifyConnectionLost(): void {
    for (const user of this.#live()) user.notifyConnectionLost()
  }

  notifyStateChange(): void {
    for (const user of this.#live()) user.notifyStateChange()
  }

  notifyPossibleLoss(affected?: Affected): void {
    for (const user of this.#live()) user.notifyPossibleLoss(affected)
  }

  /** At once, and then at most once a second for each server: but the last one of a burst is told in any case. */
  reportPossibleLossAt(address: string, affected: Affected): void {
    const paused = this.#paused.get(address)
    if (paused) {
      paused.again = true
      return
    }
    const pause = { again: false }
    this.#paused.set(address, pause)
    setTimeout(() => {
      this.#paused.delete(address)
      if (pause.again) this.reportPossibleLossAt(address, affected)
    }, LOSS_PAUSE_MS).unref()
    this.notifyPossibleLoss(affected)
  }

  #live(): ClientUser[] {
    const live: ClientUser[] = []
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
    for (const { emitter, event, listener } of this.#registered) {
      if (listening) emitter.on(event, listener)
      else emitter.off(event, listener)
    }
    if (!listening) return
    // The last error is from before the pause: the client may have connected since, and Redlock would take it for down.
    this.lastError = undefined
    this.resumed()
  }
}

/** What is left to be said of a client, besides its events. */
export type ClientCore = ClientEvents &
  Omit<Adapter, 'identity' | 'onStateChange' | 'onPossibleLoss' | 'onConnectionLost' | 'rest' | 'attend' | 'detach'>

const cores = new WeakMap<object, ClientCore>()

/** The adapter of one store: all stores of one client share what listens to it. */
export function shared(client: object, make: () => ClientCore): Adapter {
  let core = cores.get(client)
  if (!core) {
    core = make()
    cores.set(client, core)
  }
  return new SharedAdapter(core)
}

class SharedAdapter implements Adapter {
  readonly #core: ClientCore
  readonly #stateListeners = new Set<() => void>()
  readonly #lossListeners = new Set<(affected?: Affected) => void>()
  readonly #lostListeners = new Set<() => void>()
  #remove: (() => void) | undefined
  readonly identity: object
  readonly cluster: boolean
  readonly keyPrefix: string

  constructor(core: ClientCore) {
    this.#core = core
    this.identity = core
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

  whyNotReady(): unknown {
    return this.#core.whyNotReady()
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
    return core.dedicate && ((address) => (core as Required<ClientCore>).dedicate?.(address) as DedicatedConnection)
  }

  onStateChange(listener: () => void): () => void {
    this.attend()
    this.#stateListeners.add(listener)
    return () => this.#stateListeners.delete(listener)
  }

  onPossibleLoss(listener: (affected?: Affected) => void): () => void {
    this.#lossListeners.add(listener)
    return () => this.#lossListeners.delete(listener)
  }

  onConnectionLost(listener: () => void): () => void {
    this.#lostListeners.add(listener)
    return () => this.#lostListeners.delete(listener)
  }

  notifyStateChange(): void {
    for (const listener of [...this.#stateListeners]) listener()
  }

  notifyPossibleLoss(affected?: Affected): void {
    for (const listener of [...this.#lossListeners]) listener(affected)
  }

  notifyConnectionLost(): void {
    for (const listener of [...this.#lostListeners]) listener()
  }

  detach(): void {
    this.#stateListeners.clear()
    this.#lossListeners.clear()
    this.#lostListeners.clear()
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
