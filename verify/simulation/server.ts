import type { World } from '../../src/util/world.js'
import type { Answer, Claim, LeaseId, StoreEvent } from '../../src/store.js'
import { memory, type MemoryStore } from '../../src/stores/memory/index.js'
import { EPOCH, type SimProcess } from './process.js'
import type { Shape } from './shape.js'
import type { Simulation } from './simulation.js'

/** What a process has subscribed to at the server. */
export interface Subscriber {
  process: SimProcess
  key: string
  push: (event: StoreEvent) => void
}

export type IsBack = () => boolean

/** The server reports its decisions to the judge. */
export interface Witness {
  decided: (claim: Claim, answer: Answer, process: SimProcess) => void
  /** A request that the server may hold open has arrived. */
  requestOpened: (claim: Claim, process: SimProcess) => void
  pushedGrant: (key: string, owner: string, token: bigint, tokens?: number) => void
  /** `isBack`: whether the same owner holds it again. Redlock's requests may get votes again that were cut off. */
  revoked: (key: string, owner: string, isBack?: IsBack) => void
}

/** What holds the leases, as the judge inspects it. */
export interface Place {
  readonly keys: ReadonlySet<string>
  readonly subscriptions: number
  readonly openRequests: number
  /** Owners of requests that were carried out when nobody waited for them any more, and whose answer was lost. */
  readonly unheard: ReadonlySet<string>
  inspect(key: string): { holders: { owner: string; token?: bigint | undefined }[]; waiters: unknown[] }
}

/** A request that the server holds open (`blockMs`). */
interface OpenRequest {
  claim: Claim
  process: SimProcess
  reply: (answer: Answer) => void
}

/** What `watchRevoked` subscribes to: no key of a lock has this name. */
export const REVOCATIONS = '(revocations)'

/** An open request keeps its queue entry for a little longer than it is open, so that its end is decided here. */
const OPEN_MARGIN_MS = 1_000

/** The rule of the memory store by a clock of its own, and its subscribers. */
export class Server implements Place {
  readonly store: MemoryStore
  readonly keys: Set<string> = new Set()
  readonly unheard: Set<string> = new Set()
  readonly subscribers: Set<Subscriber> = new Set()
  /** Where to push grants if every grant is pushed. */
  readonly grantChannels: Map<SimProcess, (key: string, event: StoreEvent) => void> = new Map()
  readonly #sim: Simulation
  readonly #shape: Shape
  readonly #witness: Witness
  readonly #asked = new Map<string, SimProcess>()
  readonly #open = new Map<string, OpenRequest>()
  readonly #rate: number

  constructor(sim: Simulation, shape: Shape, witness: Witness, rate: number) {
    this.#sim = sim
    this.#shape = shape
    this.#witness = witness
    this.#rate = rate
    const now = (): number => EPOCH + sim.now * rate
    const world: World = {
      now,
      date: now,
      // What has expired is dropped when somebody asks for it; the sweep in between changes nothing that can be seen.
      after: () => () => {},
      random: () => 0.5,
      bytes: () => new Uint8Array(16),
    }
    this.store = memory({ world })
    this.store.watchRevoked?.(({ key, owner, token }) => {
      witness.revoked(key, owner)
      const event = { type: 'revoked', key, owner, token } as unknown as StoreEvent
      for (const subscriber of this.subscribers) if (subscriber.key === REVOCATIONS) subscriber.push(event)
    })
  }

  /** One call, answered at once. What the contract adds to claims, leases and answers passes through. */
  handle(process: SimProcess, method: string, args: unknown[]): unknown {
    if (method === 'acquire') return this.#acquire(process, args[0] as Claim[], args[1] as { atomic?: boolean })
    const store = this.store as unknown as Record<string, (...args: unknown[]) => unknown>
    const answer = (store[method] as (...args: unknown[]) => unknown).apply(this.store, args)
    if (method === 'release') this.#afterRelease(args[0] as LeaseId[], answer as { outcome: string }[], process)
    if (method === 'revoke' && !this.#shape.queue) this.#announceFree(args[0] as string)
    return copy(answer)
  }

  /** Holds the request open for `blockMs` before it is refused. */
  block(process: SimProcess, claim: Claim, reply: (answer: Answer) => void): void {
    const { blockMs = 0 } = claim
    // A request that is held open, or granted just before its release arrives, ends as a LockTimeoutError.
    this.#witness.requestOpened(claim, process)
    const [answer] = this.#acquire(process, [{ ...claim, queueMs: blockMs + OPEN_MARGIN_MS }], {}, true)
    if (answer?.granted !== false || blockMs === 0) return reply(answer as Answer)
    const request: OpenRequest = { claim, process, reply }
    this.#open.set(claim.owner, request)
    this.#sim.plan(this.#sim.now + blockMs / this.#rate, () => this.#end(request))
  }

  /** Subscriptions and open requests are forgotten, leases are not. */
  restart(): void {
    this.#sim.note(undefined, 'restarts')
    this.subscribers.clear()
    for (const { claim } of this.#open.values()) this.#dequeue(claim)
    this.#open.clear()
  }

  get subscriptions(): number {
    return this.subscribers.size
  }

  inspect(key: string): ReturnType<Place['inspect']> {
    return this.store.inspect(key)
  }

  get openRequests(): number {
    return this.#open.size
  }

  #acquire(process: SimProcess, claims: Claim[], options: { atomic?: boolean }, queues = this.#shape.queue): Answer[] {
    for (const { key, owner } of claims) {
      this.#asked.set(owner, process)
      this.#listenTo(key)
    }
    const heard = queues ? claims : claims.map((claim) => ({ ...claim, queueMs: undefined }))
    const answers = this.store.acquire(heard, options).map((answer): Answer => {
      const sent = { ...answer } as Answer & { ahead?: number }
      if (!queues) delete sent.ahead
      return sent
    })
    for (const [i, answer] of answers.entries()) this.#witness.decided(claims[i] as Claim, answer, process)
    return answers
  }

  #afterRelease(leases: LeaseId[], answers: { outcome: string; hasWaiters?: boolean }[], process: SimProcess): void {
    for (const [i, { key, owner }] of leases.entries()) {
      const request = this.#open.get(owner)
      if (request) {
        this.#open.delete(owner)
        request.reply({ granted: false })
      }
      const answer = answers[i]
      if (this.#shape.queue || this.#shape.blocks || answer?.outcome !== 'released') continue
      const others = [...this.subscribers].some((each) => each.key === key && each.process !== process)
      if (others) answers[i] = { ...answer, hasWaiters: true }
      this.#announceFree(key)
    }
  }

  #announceFree(key: string): void {
    this.#tell(key, { type: 'freed' })
  }

  /** The time of an open request is up. */
  #end(request: OpenRequest): void {
    const { claim, process } = request
    if (this.#open.get(claim.owner) !== request) return
    this.#open.delete(claim.owner)
    this.#dequeue(claim)
    const [answer] = this.#acquire(process, [claim], {}, false)
    request.reply(answer as Answer)
  }

  /** Another request of the same owner may have been granted meanwhile: the end of this one must not release that lease. */
  #dequeue(claim: Claim): void {
    const { holders } = this.store.inspect(claim.key)
    if (!holders.some(({ owner }) => owner === claim.owner)) this.store.release([claim])
  }

  #listenTo(key: string): void {
    if (this.keys.has(key)) return
    this.keys.add(key)
    this.store.watch?.(key, (event) => this.#hear(key, event))
  }

  #hear(key: string, event: StoreEvent): void {
    if (event.type === 'granted') {
      this.#witness.pushedGrant(key, event.owner, event.token, event.tokens)
      const request = this.#open.get(event.owner)
      if (request) {
        this.#open.delete(event.owner)
        const [answer] = this.#acquire(request.process, [request.claim], {}, false)
        return request.reply(answer as Answer)
      }
    }
    this.#tell(key, event)
  }

  #tell(key: string, event: StoreEvent): void {
    if (event.type === 'granted' && this.#shape.allGrants) {
      const process = this.#asked.get(event.owner)
      if (process) this.grantChannels.get(process)?.(key, event)
      return
    }
    for (const subscriber of this.subscribers) if (subscriber.key === key) subscriber.push({ ...event })
  }
}

/** Messages are copies, so that processes share no object with the server. Instances of classes travel as their plain fields. */
export function copy<T>(value: T): T {
  if (Array.isArray(value)) return value.map((item: unknown) => copy(item)) as T
  if (typeof value !== 'object' || value === null) return value
  if (Object.getPrototypeOf(value) === Object.prototype) {
    const copied: Record<string, unknown> = {}
    for (const key in value) copied[key] = copy(value[key])
    return copied as T
  }
  const { key, owner, token, ttlMs } = value as unknown as Record<string, unknown>
  return { key, owner, token, ttlMs } as T
}
