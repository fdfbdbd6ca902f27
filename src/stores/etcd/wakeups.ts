/**
 * The subscriptions of the store contract over the one watch stream.
 *
 * @module
 */
import type { LeaseId, StoreEvent, Watch } from '../../store.js'
import { decodeRecord } from './codec.js'
import type { EtcdKeys } from './keys.js'
import type { WatchEvent } from './messages.js'
import type { QueueWatches } from './queue-watches.js'
import type { StreamWatch, WatchStream } from './watch-stream.js'

type KeyListener = (event: StoreEvent) => void
/** Which keys may be lost. */
type Affected = (key: string) => boolean
type LossListener = (affected?: Affected) => void
type GrantListener = (key: string | undefined, event: StoreEvent) => void

/** All listeners of one key share one subscription. */
interface Observed {
  listeners: Set<KeyListener>
  watch: StreamWatch
}

export class EtcdWakeups {
  readonly #stream: WatchStream
  readonly #keys: EtcdKeys
  readonly #session: string
  readonly #tokenOf: (revision: number) => bigint
  readonly #observed = new Map<string, Observed>()
  readonly #grantListeners = new Set<GrantListener>()
  readonly #revokedListeners = new Set<(lease: LeaseId) => void>()
  readonly #lossListeners = new Set<LossListener>()
  /** What the end of a key of our inbox means. */
  readonly #affectedBy: (etcdKey: Buffer) => Affected | undefined
  #inbox: StreamWatch | undefined

  constructor(
    stream: WatchStream,
    keys: EtcdKeys,
    session: string,
    means: { tokenOf: (revision: number) => bigint; affectedBy: (etcdKey: Buffer) => Affected | undefined },
  ) {
    this.#stream = stream
    this.#keys = keys
    this.#session = session
    this.#tokenOf = means.tokenOf
    this.#affectedBy = means.affectedBy
  }

  /** Whether the end of a lease of etcd would reach anybody. */
  get hearsLosses(): boolean {
    return this.#inbox !== undefined && this.#lossListeners.size > 0
  }

  onPossibleLoss(listener: LossListener): () => void {
    const own: LossListener = (affected) => listener(affected)
    this.#lossListeners.add(own)
    return () => void this.#lossListeners.delete(own)
  }

  #mayBeLost(affected: Affected | undefined): void {
    for (const listener of [...this.#lossListeners]) listener(affected)
  }

  hasListeners(key: string): boolean {
    return this.#grantListeners.size > 0 || this.#observed.has(key)
  }

  /** A queue entry of this store object may be granted the key now. */
  freed(key: string, owner: string): void {
    const event: StoreEvent = { type: 'freed', owner }
    for (const listener of [...this.#grantListeners]) listener(key, event)
    this.#emit(key, event)
  }

  #emit(key: string, event: StoreEvent): void {
    for (const listener of [...(this.#observed.get(key)?.listeners ?? [])]) listener(event)
  }

  watch(key: string, listener: KeyListener, queue: QueueWatches): Watch {
    let observed = this.#observed.get(key)
    if (!observed) {
      const watch = this.#stream.open({
        ...this.#keys.directory(key),
        withPrevious: true,
        onEvent: (event) => void (isAnnounced(event) && this.#emit(key, { type: 'changed' })),
        onGap: () => this.#emit(key, { type: 'changed' }),
      })
      observed = { listeners: new Set(), watch }
      this.#observed.set(key, observed)
      queue.listen(key)
    }
    const { listeners, watch } = observed
    // A function of its own per subscription: a Set would merge two subscriptions of the same listener.
    const own: KeyListener = (event) => listener(event)
    listeners.add(own)
    const close = (): void => {
      if (!listeners.delete(own) || listeners.size > 0) return
      watch.close()
      if (this.#observed.get(key)?.watch === watch) this.#observed.delete(key)
    }
    return { ready: watch.ready, live: watch.live, close }
  }

  watchGrants(listener: GrantListener, queue: QueueWatches): Watch {
    const own: GrantListener = (key, event) => listener(key, event)
    this.#grantListeners.add(own)
    queue.listen()
    return {
      ready: this.#stream.whenOpen(),
      live: () => this.#stream.isOpen,
      close: () => void this.#grantListeners.delete(own),
    }
  }

  watchRevoked(listener: (lease: LeaseId) => void): Watch {
    const own = (lease: LeaseId): void => listener(lease)
    this.#revokedListeners.add(own)
    this.#inbox ??= this.#stream.open({
      ...this.#keys.inbox(this.#session),
      isIdle: true,
      onEvent: (event) => this.#revoked(event),
      onGap: () => this.#mayBeLost(undefined),
    })
    const inbox = this.#inbox
    const close = (): void => {
      if (!this.#revokedListeners.delete(own) || this.#revokedListeners.size > 0) return
      inbox.close()
      if (this.#inbox === inbox) this.#inbox = undefined
    }
    return { ready: inbox.ready, live: inbox.live, close }
  }

  #revoked({ type, kv }: WatchEvent): void {
    if (type === 'delete') {
      const affected = this.#affectedBy(kv.key)
      if (affected) this.#mayBeLost(affected)
      return
    }
    const notice = noticeIn(kv.value)
    if (!notice) return
    const { key, owner, revision } = notice
    const lease: LeaseId = { key, owner, token: this.#tokenOf(revision) }
    for (const listener of [...this.#revokedListeners]) listener(lease)
  }
}

/** Undefined: a canary, or something that another program wrote there. */
function noticeIn(value: Buffer): { key: string; owner: string; revision: number } | undefined {
  if (value.length === 0) return undefined
  try {
    const { key, owner, revision } = JSON.parse(value.toString()) as Record<string, unknown>
    if (typeof key !== 'string' || typeof owner !== 'string' || !Number.isSafeInteger(revision)) return undefined
    return { key, owner, revision: revision as number }
  } catch {
    return undefined
  }
}

/** An announced lease began or ended, or any lease changed its value. */
function isAnnounced({ type, kv, previous }: WatchEvent): boolean {
  const now = type === 'put' ? decodeRecord(kv.value) : undefined
  const before = previous && decodeRecord(previous.value)
  if (now?.state === 'held' && before?.state === 'held' && now.value !== before.value) return true
  return [now, before].some((record) => record?.announce === true && record.state === 'held')
}
