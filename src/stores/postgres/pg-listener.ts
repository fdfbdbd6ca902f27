import { realWorld } from '../../kit/world.js'
import type { Listening, Subscriber } from './database.js'
import { clientsLike, endSoon, type PgClient } from './pg-session.js'

const FIRST_PAUSE_MS = 50
const LONGEST_PAUSE_MS = 2_000
/** A pooler between us and the server will not go away by asking again soon. */
const DEAF_PAUSE_MS = 30_000

interface Registration {
  channels: readonly string[]
  subscriber: Subscriber
}

/**
 * The one connection of a pool that listens, for all stores on it. Opened for the first of them, made anew whenever it
 * breaks, closed with the last. Keeps no process alive.
 */
class PgListener {
  readonly #make: () => PgClient
  readonly #timeoutMs: number
  readonly #registered = new Set<Registration>()
  #client: PgClient | undefined
  /** The connection is open: whoever registers now has to be listened for by a command of its own. */
  #listening = false
  #last: Promise<unknown> = Promise.resolve()
  #pauseMs = FIRST_PAUSE_MS
  #cancelPause: (() => void) | undefined

  constructor(make: () => PgClient, timeoutMs: number) {
    this.#make = make
    this.#timeoutMs = timeoutMs
  }

  add(registration: Registration): Listening {
    this.#registered.add(registration)
    if (this.#registered.size === 1) void this.#open()
    else if (this.#client && this.#listening) void this.#subscribe(this.#client, [registration])
    return {
      suspect: (before) => this.#suspect(before),
      close: () => this.#remove(registration),
    }
  }

  async #open(): Promise<void> {
    const client = this.#make()
    this.#client = client
    const lost = (): void => this.#lost(client, this.#pauseMs)
    client.on('error', lost)
    client.on('end', lost)
    client.on('notification', ({ channel = '', payload = '' }) => {
      for (const { channels, subscriber } of [...this.#registered])
        if (channels.includes(channel)) subscriber.heard(payload, channel)
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

  async #subscribe(client: PgClient, registrations: readonly Registration[]): Promise<void> {
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
    for (const registration of registrations) if (this.#registered.has(registration)) registration.subscriber.up()
  }

  /** One after the other: pg warns of a client that is given several queries at once. */
  #run(client: PgClient, text: string): Promise<unknown> {
    const answer = this.#last.then(() => client.query(text))
    this.#last = answer.catch(() => {})
    return answer
  }

  #lost(client: PgClient, pauseMs: number): void {
    if (this.#client !== client) return
    void this.#forget(client)
    for (const { subscriber } of [...this.#registered]) subscriber.down()
    this.#pauseMs = Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS)
    // Spread out: after a restart of the server all processes come back at once.
    this.#cancelPause = realWorld.after(pauseMs * (0.5 + realWorld.random()), () => void this.#open())
  }

  #suspect(before: boolean): void {
    const client = this.#client
    if (!client) return
    if (before) return this.#lost(client, 0)
    // Behind a pooler some server connection listens on our behalf and tells nobody. It had better not.
    void client.query('UNLISTEN *').catch(() => {})
    this.#lost(client, DEAF_PAUSE_MS)
  }

  async #remove(registration: Registration): Promise<void> {
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
    return endSoon(client)
  }
}

const listeners = new WeakMap<object, PgListener>()

/** Listens on the connection of this pool that does so. */
export function listenOn(
  pool: object,
  channels: readonly string[],
  subscriber: Subscriber,
  timeoutMs: number,
): Listening {
  let listener = listeners.get(pool)
  if (!listener) listeners.set(pool, (listener = new PgListener(clientsLike(pool), timeoutMs)))
  return listener.add({ channels, subscriber })
}
