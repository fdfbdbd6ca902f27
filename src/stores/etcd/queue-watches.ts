/**
 * What each queue entry of this store object waits for: the first in the queue for any holder to go, every other one for the entry
 * before it. So a release wakes one waiter, whichever process it is in, and the release itself costs no more for the queue.
 *
 * @module
 */
import type { EtcdClient } from './client.js'
import { decodeRecord } from './codec.js'
import { type Directory, type Entry, entriesAhead, isHolder } from './directory.js'
import type { EtcdKeys } from './keys.js'
import type { KeyValue, RangeQuery, WatchEvent } from './messages.js'
import type { StreamWatch, WatchStream, WatchTarget } from './watch-stream.js'

interface QueueWatch {
  key: string
  owner: string
  createRevision: number
  /** Another entry was added at the same revision: the age of the key alone does not tell which of them is first. */
  isTied: boolean
  isFirst: boolean
  target: WatchTarget
  watch: StreamWatch | undefined
}

const idOf = (key: string, owner: string): string => `${key}\0${owner}`

export class QueueWatches {
  readonly #client: EtcdClient
  readonly #stream: WatchStream
  readonly #keys: EtcdKeys
  readonly #onFreed: (key: string, owner: string) => void
  /** Whether somebody would be told. */
  readonly #hasListeners: (key: string) => boolean
  readonly #watches = new Map<string, QueueWatch>()

  constructor(
    client: EtcdClient,
    stream: WatchStream,
    keys: EtcdKeys,
    listeners: { onFreed: (key: string, owner: string) => void; hasListeners: (key: string) => boolean },
  ) {
    this.#client = client
    this.#stream = stream
    this.#keys = keys
    this.#onFreed = listeners.onFreed
    this.#hasListeners = listeners.hasListeners
  }

  /** The revision at which the queue entry was created, if this store object has one and no other entry is as old. */
  createRevision(key: string, owner: string): number | undefined {
    const queued = this.#watches.get(idOf(key, owner))
    return queued?.isTied ? undefined : queued?.createRevision
  }

  /** Undefined: not known, because nobody listens, or because what it waited for has happened. */
  isFirst(key: string, owner: string): boolean | undefined {
    const queued = this.#watches.get(idOf(key, owner))
    return queued?.watch?.live() ? queued.isFirst : undefined
  }

  /** The owner was refused and has a queue entry in this directory. */
  wait(key: string, owner: string, createRevision: number, directory: Directory): void {
    this.end(key, owner)
    const ahead = entriesAhead(directory, owner)
    const previous = ahead.at(-1)
    const notify = (): void => this.#notify(queued)
    const queued: QueueWatch = {
      key,
      owner,
      createRevision,
      isTied: directory.entries.filter(({ kv }) => kv.createRevision === createRevision).length > 1,
      isFirst: previous === undefined,
      target: previous
        ? this.#untilLeaving(previous, directory, notify)
        : this.#untilHolderGoes(key, directory, notify),
      watch: undefined,
    }
    this.#watches.set(idOf(key, owner), queued)
    if (this.#hasListeners(key)) queued.watch = this.#stream.open(queued.target)
  }

  #untilLeaving({ kv }: Entry, { revision }: Directory, notify: () => void): WatchTarget {
    const isThere = ([now]: readonly KeyValue[]): boolean =>
      now?.createRevision === kv.createRevision && decodeRecord(now.value)?.state !== 'held'
    const onMissed = (): void => void this.#recheck({ key: kv.key }, isThere, notify)
    return { key: kv.key, from: revision + 1, onGap: notify, onMissed, onEvent: onLeaving(notify) }
  }

  /** What happened before the watch began is read. Whatever is not certain makes the waiter ask. */
  async #recheck(
    range: RangeQuery,
    isBlocked: (kvs: readonly KeyValue[]) => boolean,
    notify: () => void,
  ): Promise<void> {
    try {
      const { kvs } = await this.#client.range(range)
      if (isBlocked(kvs)) return
    } catch {
      // The waiter asks, and is told why if it cannot.
    }
    notify()
  }

  #untilHolderGoes(key: string, directory: Directory, notify: () => void): WatchTarget {
    const holders = directory.entries.filter((entry) => isHolder(entry, directory)).map(({ kv }) => kv)
    const areThere = (kvs: readonly KeyValue[]): boolean =>
      holders.every((held) =>
        kvs.some(({ key: now, createRevision }) => createRevision === held.createRevision && now.equals(held.key)),
      )
    const behind = new Set(
      directory.entries.filter((entry) => !isHolder(entry, directory)).map(({ kv }) => kv.key.toString()),
    )
    const onEvent = ({ kv }: WatchEvent): void => {
      // Another waiter that gives up makes no room.
      if (!behind.delete(kv.key.toString())) notify()
    }
    const range = this.#keys.directory(key)
    const onMissed = (): void => void this.#recheck({ ...range, keysOnly: true }, areThere, notify)
    return { ...range, from: directory.revision + 1, deletesOnly: true, onGap: notify, onMissed, onEvent }
  }

  #notify(queued: QueueWatch): void {
    const { key, owner } = queued
    // The owner has asked again since, or has left the queue.
    if (this.#watches.get(idOf(key, owner)) !== queued) return
    queued.watch?.close()
    queued.watch = undefined
    this.#onFreed(key, owner)
  }

  /** Somebody listens from now on, for this key or for all: nothing is missed that happened since the refusal. */
  listen(key?: string): void {
    for (const queued of this.#watches.values()) {
      if (key === undefined || queued.key === key) queued.watch ??= this.#stream.open(queued.target)
    }
  }

  /** The owner asked and was granted the key before the event arrived that made room: those who listen are told all the same. */
  granted(key: string, owner: string): void {
    const isUnheard = this.#watches.get(idOf(key, owner))?.watch !== undefined
    this.end(key, owner)
    if (isUnheard) this.#onFreed(key, owner)
  }

  end(key: string, owner: string): void {
    const id = idOf(key, owner)
    this.#watches.get(id)?.watch?.close()
    this.#watches.delete(id)
  }
}

/** The entry before ours is gone, or was granted the key. */
function onLeaving(notify: () => void): (event: WatchEvent) => void {
  return ({ type, kv }) => {
    if (type === 'delete' || decodeRecord(kv.value)?.state === 'held') notify()
  }
}
