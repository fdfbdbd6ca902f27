import type { PgClient } from './types.js'
import { realWorld } from '../../util/world.js'
import type { NotificationListener, NotificationHandler } from './driver.js'
import { endClient } from './end-client.js'
import { clientsLike } from './pg-session.js'

/** First pause before the connection is opened again, in milliseconds. Doubles with each attempt. Shorter hot-loops while the server is down. */
const FIRST_PAUSE_MS = 50

/** Longest pause in milliseconds. Longer, and waiters poll for longer than necessary after an outage. */
const LONGEST_PAUSE_MS = 2_000

/**
 * Pause in milliseconds after a connection on which nothing ever arrived: a pooler in transaction mode is in between, and will
 * be there after the next attempt too.
 */
const SILENT_PAUSE_MS = 30_000

interface ListenRegistration {
  channels: readonly string[]
  handler: NotificationHandler
}

/**
 * The listening connection of a pool, shared by all stores on it: opened for the first of them, opened again whenever it
 * breaks, closed with the last. It keeps no process alive.
 */
class PgListener {
  readonly #make: () => PgClient
  readonly #timeoutMs: number
  readonly #registered = new Set<ListenRegistration>()
  #client: PgClient | undefined
  /** The connection is open: a registration that is added now needs a LISTEN of its own. */
  #listening = false
  #last: Promise<unknown> = Promise.resolve()
  #pauseMs = FIRST_PAUSE_MS
  #cancelPause: (() => void) | undefined

  constructor(make: () => PgClient, timeoutMs: number) {
    this.#make = make
    this.#timeoutMs = timeoutMs
  }

  add(registration: ListenRegistration): NotificationListener {
    this.#registered.add(registration)
    if (this.#registered.size === 1) void this.#open()
    else if (this.#client && this.#listening) void this.#subscribe(this.#client, [registration])
    return {
      reportSilence: (before) => this.#suspect(before),
      close: () => this.#remove(registration),
    }
  }

  async #open(): Promise<void> {
    const client = this.#make()
    this.#client = client
    const lost = (): void => this.#lost(client, this.#pauseMs)
    client.on('error', lost)
    client.on('end', lost)
    client.on('notification', ({ channel, payload = '' }) => {
      for (const { channels, handler } of [...this.#registered])
        if (channels.includes(channel)) handler.onNotification(payload, channel)
    })
    const cancel = realWorld.after(this.#timeoutMs, lost)
    try {
      await client.connect()
      client.unref?.()
      if (this.#client !== client) return
      this.#listening = true
      await this.#subscribe(client, [...this.#registered])
    } catch {
      lost()
    } finally {
      cancel()
    }
  }

  async #subscribe(client: PgClient, registrations: readonly ListenRegistration[]): Promise<void> {
    const channels = registrations.flatMap(({ channels }) => channels)
    try {
      await this.#run(client, channels.map((channel) => `LISTEN "${channel}"`).join('; '))
      // pg_stat_activity shows the last statement, and the names of channels are secret.
      await this.#run(client, 'SELECT 1')
    } catch {
      return this.#lost(client, this.#pauseMs)
    }
    if (this.#client !== client) return
    this.#pauseMs = FIRST_PAUSE_MS
    for (const registration of registrations) if (this.#registered.has(registration)) registration.handler.onListening()
  }

  /** Queries run one after the other: pg warns of a client that is given several at once. */
  #run(client: PgClient, text: string): Promise<unknown> {
    const answer = this.#last.then(() => client.query(text))
    this.#last = answer.catch(() => {})
    return answer
  }

  #lost(client: PgClient, pauseMs: number): void {
    if (this.#client !== client) return
    void this.#forget(client)
    for (const { handler } of [...this.#registered]) handler.onConnectionLost()
    this.#pauseMs = Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS)
    // Attempts are spread out: after a restart of the server all processes reconnect at once.
    this.#cancelPause = realWorld.after(pauseMs * (0.5 + realWorld.random()), () => void this.#open())
  }

  #suspect(before: boolean): void {
    const client = this.#client
    if (!client) return
    if (before) return this.#lost(client, 0)
    // Behind a pooler the LISTEN stays on a server connection that forwards nothing, and costs every NOTIFY a delivery.
    void client.query('UNLISTEN *').catch(() => {})
    this.#lost(client, SILENT_PAUSE_MS)
  }

  async #remove(registration: ListenRegistration): Promise<void> {
    this.#registered.delete(registration)
    const client = this.#client
    if (this.#registered.size > 0) {
      const unused = registration.channels.filter(
        (channel) => ![...this.#registered].some(({ channels }) => channels.includes(channel)),
      )
      if (client && this.#listening && unused.length > 0)
        await this.#run(client, unused.map((channel) => `UNLISTEN "${channel}"`).join('; ')).catch(() => {})
      return
    }
    this.#cancelPause?.()
    if (client) await this.#forget(client)
  }

  #forget(client: PgClient): Promise<void> {
    this.#client = undefined
    this.#listening = false
    this.#last = Promise.resolve()
    return endClient(client)
  }
}

const listeners = new WeakMap<object, PgListener>()

/** Listens on the listening connection of this pool. */
export function listenOn(
  pool: object,
  channels: readonly string[],
  handler: NotificationHandler,
  timeoutMs: number,
): NotificationListener {
  let listener = listeners.get(pool)
  if (!listener) listeners.set(pool, (listener = new PgListener(clientsLike(pool), timeoutMs)))
  return listener.add({ channels, handler })
}
