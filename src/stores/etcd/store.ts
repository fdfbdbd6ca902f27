import { randomBytes } from 'node:crypto'
import type {
  Answer,
  Claim,
  Features,
  HolderView,
  LeaseId,
  Released,
  Renewal,
  Renewed,
  Store,
  StoreEvent,
  WaiterView,
  Watch,
} from '../../store.js'
import type { World } from '../../util/world.js'
import { EtcdAcquiring } from './acquire.js'
import { LeaseCanaries } from './canaries.js'
import { type Credentials, EtcdClient } from './client.js'
import type { Endpoint } from './connection.js'
import type { EtcdContext } from './context.js'
import { EtcdError, refused } from './errors.js'
import { register } from './guard.js'
import { holderPages, inspectKey } from './inspect.js'
import { EtcdKeys } from './keys.js'
import { EtcdLeases } from './leases.js'
import { OpenRequests } from './open-requests.js'
import { QueueWatches } from './queue-watches.js'
import { release } from './release.js'
import { Prolonging } from './renew.js'
import { revoke } from './revoke.js'
import { TokenOffset } from './tokens.js'
import { TrackedEntries } from './tracked.js'
import { EtcdWakeups } from './wakeups.js'
import { WatchStream } from './watch-stream.js'

/** How long a call may take, in milliseconds: a leader election takes one to two seconds, and three endpoints one and a half each. */
const TIMEOUT_MS = 6_000
/** How much earlier our own time limit ends than the core's, so that its error, which names the endpoints, is the one that is seen. */
const MARGIN_MS = 500
/** Items in one call. More would keep a heartbeat of thousands of locks from sharing requests. */
const MAX_BATCH = 500
/** Claims in one transaction: two comparisons each, and etcd takes 128. */
const MAX_TOGETHER = 50

export interface EtcdSettings {
  endpoints: readonly Endpoint[]
  credentials: Credentials | undefined
  prefix: string
  world: World
}

export class EtcdStore implements Store {
  readonly name = 'etcd'
  readonly expiry = 'timed'
  readonly features: Features = { queue: true, counting: true, atomic: MAX_TOGETHER, values: true }
  readonly timeoutMs: number = TIMEOUT_MS
  readonly maxBatch: number = MAX_BATCH

  readonly #client: EtcdClient
  readonly #stream: WatchStream
  readonly #wakeups: EtcdWakeups
  readonly #context: EtcdContext
  readonly #acquiring: EtcdAcquiring
  readonly #prolonging: Prolonging
  readonly #open = new OpenRequests()
  readonly #endpoints: string
  readonly #unregister: () => void
  #closing: Promise<void> | undefined

  constructor({ endpoints, credentials, prefix, world }: EtcdSettings) {
    const limitMs = TIMEOUT_MS - MARGIN_MS
    const client = new EtcdClient(endpoints, credentials, world, limitMs)
    const keys = new EtcdKeys(prefix)
    const session = randomBytes(9).toString('base64url')
    const offset = new TokenOffset(client, keys, world)
    const canaries = new LeaseCanaries(client, keys, session, () => this.#wakeups.hearsLosses)
    const leases = new EtcdLeases(client, keys, world, canaries)
    const tracked = new TrackedEntries(client, leases, world, session, ({ key, owner }) => queue.end(key, owner))
    this.#client = client
    this.#endpoints = endpoints.map(({ name }) => name).join(',')
    this.#stream = new WatchStream(client, world)
    this.#wakeups = new EtcdWakeups(this.#stream, keys, session, {
      tokenOf: (revision) => offset.tokenOf(revision),
      affectedBy: (etcdKey) => {
        const lease = canaries.ended(etcdKey)
        if (!lease) return undefined
        leases.ended(lease)
        return (key) => tracked.isBoundTo(key, lease)
      },
    })
    const queue = new QueueWatches(client, this.#stream, keys, {
      onFreed: (key, owner) => this.#wakeups.freed(key, owner),
      hasListeners: (key) => this.#wakeups.hasListeners(key),
    })
    let attempts = 0
    const nextAttempt = (): number => ++attempts
    this.#context = { client, keys, world, offset, leases, tracked, queue, session, limitMs, nextAttempt }
    this.#unregister = register(({ holder, fencingToken }) =>
      tracked.heldBy(holder, (revision) => offset.tokenOf(revision) === fencingToken),
    )
    this.#prolonging = new Prolonging(this.#context)
    this.#acquiring = new EtcdAcquiring(this.#context, this.#prolonging)
  }

  async acquire(claims: readonly Claim[], options?: { atomic?: boolean }): Promise<Answer[]> {
    const together = options?.atomic === true && claims.length > 1
    const answers = await this.#explained(() =>
      this.#open.during(claims, together, () =>
        together ? this.#acquiring.together(claims) : this.#acquiring.each(claims),
      ),
    )
    return answers.map((answer) =>
      answer.granted === 'unknown' ? { granted: 'unknown', error: this.#explain(answer.error) } : answer,
    )
  }

  async renew(renewals: readonly Renewal[]): Promise<Renewed[]> {
    const answers = await this.#explained(() => this.#prolonging.renew(renewals))
    if (!answers.some(({ outcome }) => outcome === 'unknown')) return answers
    return answers.map((answer) =>
      answer.outcome === 'unknown' ? { outcome: 'unknown', error: this.#explain(answer.error) } : answer,
    )
  }

  async release(leases: readonly LeaseId[]): Promise<Released[]> {
    const answers = await this.#explained(() => release(this.#context, leases, this.#open))
    return answers.map((answer) =>
      answer.outcome === 'unknown' ? { outcome: 'unknown', error: this.#explain(answer.error) } : answer,
    )
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#wakeups.watch(key, listener, this.#context.queue)
  }

  watchGrants(listener: (key: string | undefined, event: StoreEvent) => void): Watch {
    return this.#wakeups.watchGrants(listener, this.#context.queue)
  }

  watchRevoked(listener: (lease: LeaseId) => void): Watch {
    return this.#wakeups.watchRevoked(listener)
  }

  onPossibleLoss(listener: (affected?: (key: string) => boolean) => void): () => void {
    return this.#wakeups.onPossibleLoss(listener)
  }

  async holders(prefix: string): Promise<HolderView[]> {
    const views: HolderView[] = []
    for await (const page of this.holderPages(prefix)) views.push(...page)
    return views
  }

  async *holderPages(prefix: string): AsyncGenerator<HolderView[]> {
    const pages = holderPages(this.#context, prefix)
    for (;;) {
      const page = await this.#explained(() => pages.next())
      if (page.done) return
      yield page.value
    }
  }

  inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    return this.#explained(() => inspectKey(this.#context, key))
  }

  revoke(key: string): Promise<HolderView[]> {
    return this.#explained(() => revoke(this.#context, key))
  }

  outage(): unknown {
    return this.#client.outage()
  }

  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  async #close(): Promise<void> {
    this.#unregister()
    this.#context.tracked.close()
    this.#stream.close()
    await this.#context.leases.close()
    this.#client.close()
  }

  #explain(error: unknown): unknown {
    return error instanceof EtcdError ? refused(this.#endpoints, error) : error
  }

  async #explained<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call()
    } catch (error) {
      throw this.#explain(error)
    }
  }
}
