/**
 * The memory store behind a simulated network, in virtual time: a test decides the fate of each call and pushes events.
 */
import type { World } from '../../src/util/world.js'
import { Locks } from '../../src/locks.js'
import type { LocksOptions } from '../../src/core/options.js'
import type { LeaseId, Store, StoreEvent, Watch } from '../../src/store.js'
import { type MemoryStore, memory } from '../../src/stores/memory/index.js'
import { VirtualWorld } from '../../testbed/virtual-world.js'

type Method = 'acquire' | 'renew' | 'release'

/** The fate of one call. `lose`: it never arrives. `loseReply`, `breakReply`: it is executed, and never answered or fails. */
export type CallFate = 'lose' | 'loseReply' | 'break' | 'breakReply' | { requestMs?: number; replyMs?: number }

export class RemoteMemory {
  readonly world: VirtualWorld = new VirtualWorld(1)
  readonly real: MemoryStore = memory({ world: this.world })
  readonly store: Store
  /** Decides the fate of the n-th call of each method, counted from 1. Absent: answered later in the same instant. */
  fate: (method: Method, n: number, items: readonly LeaseId[]) => CallFate | undefined = () => undefined
  /** Returns false to lose the event. */
  passes: (event: StoreEvent) => boolean = () => true
  openSubscriptions = 0
  readonly calls: { method: Method; items: readonly LeaseId[] }[] = []
  readonly #counts = { acquire: 0, renew: 0, release: 0 }
  readonly #listeners = new Map<string, Set<(event: StoreEvent) => void>>()

  constructor(changes: Partial<Store> = {}) {
    const { real } = this
    this.store = {
      name: 'remote',
      expiry: 'timed',
      features: real.features,
      timeoutMs: 2_000,
      acquire: (claims, options) => this.#call('acquire', claims, () => real.acquire(claims, options)),
      renew: (renewals) => this.#call('renew', renewals, () => real.renew(renewals)),
      release: (leases) => this.#call('release', leases, () => real.release(leases)),
      watch: (key, listener) => this.#watch(key, listener),
      watchRevoked: (listener) => real.watchRevoked?.(listener) as Watch,
      holders: async (prefix) => real.holders(prefix),
      inspect: async (key) => real.inspect(key),
      revoke: async (key) => real.revoke(key),
      now: async () => this.world.date(),
      close: async () => {},
      ...changes,
    }
  }

  locks(options: LocksOptions = {}, world: World = this.world): Locks {
    return new Locks(this.store, options, world)
  }

  /** Sends the pending requests, and then lets this much time pass. */
  async pass(ms: number): Promise<void> {
    await this.world.settle()
    await this.world.pass(ms)
  }

  /** Delivers an event as a server could: late, or for the second time. */
  push(key: string, event: StoreEvent): void {
    for (const listener of [...(this.#listeners.get(key) ?? [])]) listener(event)
  }

  #watch(key: string, listener: (event: StoreEvent) => void): Watch {
    this.openSubscriptions++
    let listeners = this.#listeners.get(key)
    if (!listeners) this.#listeners.set(key, (listeners = new Set()))
    listeners.add(listener)
    const inner = (this.real.watch as NonNullable<Store['watch']>)(key, (event) => {
      if (this.passes(event)) listener(event)
    })
    let open = true
    const close = (): void => {
      if (open) this.openSubscriptions--
      open = false
      listeners.delete(listener)
      inner.close()
    }
    return { ready: Promise.resolve(true), live: () => open, close }
  }

  #call<T>(method: Method, items: readonly LeaseId[], run: () => T): Promise<T> {
    this.calls.push({ method, items })
    const fate = this.fate(method, ++this.#counts[method], items)
    const pause = (ms: number | undefined): Promise<void> =>
      ms ? new Promise((resolve) => this.world.after(ms, resolve)) : Promise.resolve()
    return new Promise((resolve, reject) => {
      if (fate === 'lose') return
      if (fate === 'break') return reject(new Error('ECONNRESET'))
      const delays = typeof fate === 'object' ? fate : {}
      void pause(delays.requestMs)
        .then(async () => {
          const answer = run()
          await pause(delays.replyMs)
          if (fate === 'breakReply') throw new Error('ECONNRESET')
          if (fate !== 'loseReply') resolve(answer)
        })
        .catch(reject)
    })
  }
}
