/**
 * Which process is notified of what: the listeners of this process, and the subscriptions of this process in the database.
 *
 * @module
 */
import type { Cancel, World } from '../../util/world.js'
import type { Awaitable, LeaseId, StoreEvent, Watch } from '../../store.js'
import { REVOCATIONS, type SqliteConnection, type WriteResult } from './connection.js'
import type { SqliteStatements } from './statements.js'
import { SUBSCRIBER_TTL_MS, WakeupFile, type WakeupMessage, notify, removeDeadFiles } from './wakeup-file.js'

/**
 * How often, in milliseconds, this process refreshes its subscriber and ends subscriptions without listeners. A third of the
 * subscriber's life: two refreshes may fail before other processes consider it dead.
 */
const REFRESH_MS = SUBSCRIBER_TTL_MS / 3

type MessageListener = (message: WakeupMessage) => void
type RunWork = <T>(work: () => T) => Awaitable<T>

export class SqliteWakeups {
  readonly #connection: SqliteConnection
  readonly #run: RunWork
  readonly #world: World
  readonly #listeners = new Map<string, Set<MessageListener>>()
  #file: WakeupFile | undefined
  /** Whether the database has a row for our subscriber. */
  #isStored = false
  /** Keys that our subscriber subscribes to in the database. Some have no listener any more: they are often watched again soon. */
  #storedKeys = new Set<string>()
  #gathering: Promise<void> | undefined
  #refreshTimer: Cancel | undefined
  #closed = false

  constructor(connection: SqliteConnection, run: RunWork, world: World) {
    this.#connection = connection
    this.#run = run
    this.#world = world
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#watch(key, ({ event }) => event.type !== 'revoked' && listener(event))
  }

  /** One row in the database for all leases that this process holds. */
  watchRevoked(listener: (lease: LeaseId) => void): Watch {
    return this.#watch(REVOCATIONS, ({ key, event }) => {
      if (event.type === 'revoked') listener({ key, owner: event.owner, token: event.token })
    })
  }

  #watch(key: string, listener: MessageListener): Watch {
    if (this.#closed) return { ready: false, live: () => false, close: () => {} }
    let listeners = this.#listeners.get(key)
    if (!listeners) this.#listeners.set(key, (listeners = new Set()))
    listeners.add(listener)
    const live = (): boolean => this.#storedKeys.has(key)
    const close = (): void => {
      listeners.delete(listener)
      if (listeners.size === 0 && this.#listeners.get(key) === listeners) this.#listeners.delete(key)
    }
    return { ready: live() || this.#subscribeSoon().then(live), live, close }
  }

  /** The subscriber that gets grants of this key to waiters of this process; null: it does not subscribe to the key. */
  subscriberFor(key: string): string | null {
    return this.#storedKeys.has(key) ? (this.#file as WakeupFile).id : null
  }

  /** Must be called after the commit: a notified process would otherwise read the state from before. */
  deliver({ notifications, deadSubscribers }: WriteResult<unknown>): void {
    const bySubscriber = new Map<string, WakeupMessage[]>()
    for (const { subscribers, key, event } of notifications) {
      for (const id of subscribers) {
        if (id === this.#file?.id) continue
        const messages = bySubscriber.get(id)
        if (messages) messages.push({ key, event })
        else bySubscriber.set(id, [{ key, event }])
      }
    }
    if (bySubscriber.size > 0 || deadSubscribers.length > 0) {
      const directory = this.#connection.wakeupDirectory()
      for (const [id, messages] of bySubscriber) notify(directory, id, messages)
      removeDeadFiles(directory, deadSubscribers)
    }
    for (const notification of notifications) this.#emit(notification)
  }

  /** Another database file took the place of ours, or our wake-up file was removed: subscribe once more, under another id. */
  startOver(): void {
    this.#dropFile()
    if (this.#listeners.size > 0) void this.#subscribeSoon()
  }

  close(): void {
    this.#closed = true
    this.#refreshTimer?.()
    this.#listeners.clear()
    if (!this.#file) return
    const { id } = this.#file
    this.#dropFile()
    try {
      this.#connection.write((_leases, sql) => deleteSubscriber(sql, id))
    } catch {
      // The row expires after SUBSCRIBER_TTL_MS.
    }
  }

  /** Stores, in one transaction, all keys that began to be watched in this turn of the event loop. Never rejects. */
  #subscribeSoon(): Promise<void> {
    this.#refreshTimer ??= this.#world.after(REFRESH_MS, () => this.#refresh())
    this.#gathering ??= Promise.resolve().then(() => {
      this.#gathering = undefined
      return this.#store(false)
    })
    return this.#gathering
  }

  #refresh(): void {
    this.#refreshTimer = undefined
    if (this.#listeners.size > 0) {
      this.#refreshTimer = this.#world.after(REFRESH_MS, () => this.#refresh())
      void this.#store(true)
      return
    }
    const id = this.#file?.id
    this.#dropFile()
    if (id !== undefined)
      void this.#ignoringErrors(() => this.#connection.write((_leases, sql) => deleteSubscriber(sql, id)))
  }

  /** Adds subscriptions for keys that have listeners. `refresh`: also prolongs the subscriber, and removes unused ones. */
  #store(refresh: boolean): Promise<void> {
    return this.#ignoringErrors(() => {
      const directory = this.#connection.wakeupDirectory()
      const isNew = !this.#isStored
      const file = (this.#file ??= this.#openFile(directory))
      const { result } = this.#connection.write((leases, sql) => {
        const keys = new Set(this.#storedKeys)
        const end = leases.now + SUBSCRIBER_TTL_MS
        if (isNew) sql.addSubscriber.run(file.id, end)
        // A process that was frozen for longer than its subscriber lived was removed with all its subscriptions, and its file with them.
        else if (refresh && Number(sql.refreshSubscriber.run(file.id, end).changes) === 0) return undefined
        for (const key of this.#listeners.keys()) {
          if (!keys.has(key)) sql.subscribe.run(key, file.id)
          keys.add(key)
        }
        for (const key of refresh ? [...keys] : []) {
          if (this.#listeners.has(key)) continue
          sql.unsubscribe.run(key, file.id)
          keys.delete(key)
        }
        return { keys, live: isNew ? (sql.allSubscribers.all() as { id: string }[]) : [] }
      })
      if (!result) return this.startOver()
      this.#storedKeys = result.keys
      this.#isStored = true
      const live = new Set(result.live.map(({ id }) => id))
      if (isNew) removeDeadFiles(directory, [], { live, date: this.#world.date() })
    })
  }

  #openFile(directory: string): WakeupFile {
    const id = `${process.pid}-${Buffer.from(this.#world.bytes()).toString('hex', 0, 6)}`
    return new WakeupFile(
      directory,
      id,
      (message) => this.#emit(message),
      () => this.#file?.id === id && this.startOver(),
    )
  }

  #dropFile(): void {
    this.#storedKeys = new Set()
    this.#isStored = false
    this.#file?.close()
    this.#file = undefined
  }

  #emit(message: WakeupMessage): void {
    const key = message.event.type === 'revoked' ? REVOCATIONS : message.key
    for (const listener of [...(this.#listeners.get(key) ?? [])]) {
      try {
        listener(message)
      } catch {
        // The transaction is committed: an error of a listener must not make its caller believe that it failed.
      }
    }
  }

  /** Waiters poll while there is no subscription, which `live` tells them: an error here needs no other handling. */
  async #ignoringErrors(work: () => unknown): Promise<void> {
    try {
      await this.#run(work)
    } catch {
      if (!this.#isStored) this.#dropFile()
    }
  }
}

function deleteSubscriber(sql: SqliteStatements, id: string): void {
  sql.endSubscriber.run(id)
  sql.unsubscribeAll.run(id)
}
