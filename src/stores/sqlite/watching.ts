/**
 * Who is to be told about what: the listeners of this process, and the bells of the others.
 *
 * @module
 */
import type { Cancel, World } from '../../kit/world.js'
import type { Awaitable, Lease, StoreEvent, Watch } from '../../store.js'
import { BELL_LEASE_MS, Bell, type Message, clearDeadBells, ring } from './bell.js'
import { type Connection, type Done, REVOCATIONS } from './connection.js'
import type { Statements } from './statements.js'

/** How often to say that our bell is still heard, and to forget keys that nobody watches any more. */
const TIDY_EVERY_MS = BELL_LEASE_MS / 3

type Listener = (message: Message) => void
type Run = <T>(work: () => T) => Awaitable<T>

export class Watching {
  readonly #connection: Connection
  readonly #run: Run
  readonly #world: World
  readonly #listeners = new Map<string, Set<Listener>>()
  #bell: Bell | undefined
  /** Whether the database knows our bell. */
  #bellKnown = false
  /** Keys that are written down in the database beside our bell. Some may be unwatched by now: they are often watched again. */
  #known = new Set<string>()
  #gathering: Promise<void> | undefined
  #tidying: Cancel | undefined
  #closed = false

  constructor(connection: Connection, run: Run, world: World) {
    this.#connection = connection
    this.#run = run
    this.#world = world
  }

  watch(key: string, listener: (event: StoreEvent) => void): Watch {
    return this.#watch(key, ({ event }) => event.type !== 'revoked' && listener(event))
  }

  /** One row in the file for all that this process holds. */
  watchRevoked(listener: (lease: Lease) => void): Watch {
    return this.#watch(REVOCATIONS, ({ key, event }) => {
      if (event.type === 'revoked') listener({ key, owner: event.owner, token: event.token })
    })
  }

  #watch(key: string, listener: Listener): Watch {
    if (this.#closed) return { ready: false, live: () => false, close: () => {} }
    let listeners = this.#listeners.get(key)
    if (!listeners) this.#listeners.set(key, (listeners = new Set()))
    listeners.add(listener)
    const live = (): boolean => this.#known.has(key)
    const close = (): void => {
      listeners.delete(listener)
      if (listeners.size === 0 && this.#listeners.get(key) === listeners) this.#listeners.delete(key)
    }
    return { ready: live() || this.#attend().then(live), live, close }
  }

  /** The bell to ring when a place in this line is served. */
  bellFor(key: string): string | null {
    return this.#known.has(key) ? (this.#bell as Bell).id : null
  }

  /** After the commit, so that whoever is told finds it so. */
  deliver({ letters, deadBells }: Done<unknown>): void {
    const rings = new Map<string, Message[]>()
    for (const { bells, key, event } of letters) {
      for (const id of bells) {
        if (id === this.#bell?.id) continue
        const messages = rings.get(id)
        if (messages) messages.push({ key, event })
        else rings.set(id, [{ key, event }])
      }
    }
    if (rings.size > 0 || deadBells.length > 0) {
      const directory = this.#connection.bellsDirectory()
      for (const [id, messages] of rings) ring(directory, id, messages)
      clearDeadBells(directory, deadBells)
    }
    for (const letter of letters) this.#tell(letter)
  }

  /** Another file took the place of ours: nobody there knows us. */
  startOver(): void {
    this.#loseBell()
    if (this.#listeners.size > 0) void this.#attend()
  }

  close(): void {
    this.#closed = true
    this.#tidying?.()
    this.#listeners.clear()
    if (!this.#bell) return
    const { id } = this.#bell
    this.#loseBell()
    try {
      this.#connection.write((_books, sql) => forget(sql, id))
    } catch {
      // Then it passes when its lease does.
    }
  }

  /** Writes down, in one transaction, all keys that began to be watched in this turn of the event loop. Never rejects. */
  #attend(): Promise<void> {
    this.#tidying ??= this.#world.after(TIDY_EVERY_MS, () => this.#tidy())
    this.#gathering ??= Promise.resolve().then(() => {
      this.#gathering = undefined
      return this.#settle(false)
    })
    return this.#gathering
  }

  #tidy(): void {
    this.#tidying = undefined
    if (this.#listeners.size > 0) {
      this.#tidying = this.#world.after(TIDY_EVERY_MS, () => this.#tidy())
      void this.#settle(true)
      return
    }
    const id = this.#bell?.id
    this.#loseBell()
    if (id !== undefined) void this.#quietly(() => this.#connection.write((_books, sql) => forget(sql, id)))
  }

  /** Makes the database say what we watch. `refresh`: also that we live, and what we no longer watch. */
  #settle(refresh: boolean): Promise<void> {
    return this.#quietly(() => {
      const directory = this.#connection.bellsDirectory()
      const isNew = !this.#bellKnown
      const bell = (this.#bell ??= this.#openBell(directory))
      const { result } = this.#connection.write((books, sql) => {
        const known = new Set(this.#known)
        const end = books.now + BELL_LEASE_MS
        // Whoever was stopped for longer than its lease has been taken for dead, and begins anew.
        if (isNew || (refresh && Number(sql.refreshBell.run(bell.id, end).changes) === 0)) {
          sql.addBell.run(bell.id, end)
          known.clear()
        }
        for (const key of this.#listeners.keys()) {
          if (!known.has(key)) sql.addWatcher.run(key, bell.id)
          known.add(key)
        }
        for (const key of refresh ? [...known] : []) {
          if (this.#listeners.has(key)) continue
          sql.endWatcher.run(key, bell.id)
          known.delete(key)
        }
        return { known, live: isNew ? (sql.liveBells.all() as { id: string }[]) : [] }
      })
      this.#known = result.known
      this.#bellKnown = true
      const live = new Set(result.live.map(({ id }) => id))
      if (isNew) clearDeadBells(directory, [], { live, date: this.#world.date() })
    })
  }

  #openBell(directory: string): Bell {
    const id = `${process.pid}-${Buffer.from(this.#world.bytes()).toString('hex', 0, 6)}`
    return new Bell(
      directory,
      id,
      (message) => this.#tell(message),
      () => this.#bell?.id === id && this.startOver(),
    )
  }

  #loseBell(): void {
    this.#known = new Set()
    this.#bellKnown = false
    this.#bell?.close()
    this.#bell = undefined
  }

  #tell(message: Message): void {
    const key = message.event.type === 'revoked' ? REVOCATIONS : message.key
    for (const listener of [...(this.#listeners.get(key) ?? [])]) {
      try {
        listener(message)
      } catch {
        // What is written is written: a listener's mistake must not make it look as if it had failed.
      }
    }
  }

  /** Without a bell whoever waits polls, which `live` tells them; so there is nobody to hear of an error here. */
  async #quietly(work: () => unknown): Promise<void> {
    try {
      await this.#run(work)
    } catch {
      if (!this.#bellKnown) this.#loseBell()
    }
  }
}

function forget(sql: Statements, bell: string): void {
  sql.endBell.run(bell)
  sql.endWatchersOf.run(bell)
}
