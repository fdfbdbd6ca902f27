import { realWorld } from '../../kit/world.js'
import type { Ear, Listening } from './database.js'

/** The few methods of a `pg` Client that are called. */
export interface PgClient {
  connect(): Promise<unknown>
  query(text: string): Promise<unknown>
  on(event: string, listener: (message: { payload?: string }) => void): unknown
  unref?(): void
  end(): Promise<void>
}

const FIRST_PAUSE_MS = 50
const LONGEST_PAUSE_MS = 2_000
/** A pooler between us and the server will not go away by asking again soon. */
const DEAF_PAUSE_MS = 30_000

/** One connection that listens, made anew whenever it breaks. Keeps no process alive. */
export class PgListener implements Listening {
  readonly #make: () => PgClient
  readonly #channels: readonly string[]
  readonly #ear: Ear
  readonly #timeoutMs: number
  #client: PgClient | undefined
  #pauseMs = FIRST_PAUSE_MS
  #cancelPause: (() => void) | undefined
  #closed = false

  constructor(make: () => PgClient, channels: readonly string[], ear: Ear, timeoutMs: number) {
    this.#make = make
    this.#channels = channels
    this.#ear = ear
    this.#timeoutMs = timeoutMs
    void this.#open()
  }

  async #open(): Promise<void> {
    const client = this.#make()
    this.#client = client
    const lost = (): void => this.#lost(client, this.#pauseMs)
    client.on('error', lost)
    client.on('end', lost)
    client.on('notification', (message) => this.#ear.heard(message.payload ?? ''))
    const cancel = realWorld.after(this.#timeoutMs, lost)
    try {
      await client.connect()
      client.unref?.()
      await client.query(this.#channels.map((channel) => `LISTEN "${channel}"`).join('; '))
      if (this.#client !== client) return
      this.#pauseMs = FIRST_PAUSE_MS
      this.#ear.up()
    } catch {
      lost()
    } finally {
      cancel()
    }
  }

  #lost(client: PgClient, pauseMs: number): void {
    if (this.#client !== client || this.#closed) return
    this.#client = undefined
    void end(client)
    this.#ear.down()
    this.#pauseMs = Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS)
    // Spread out: after a restart of the server all processes come back at once.
    this.#cancelPause = realWorld.after(pauseMs * (0.5 + realWorld.random()), () => void this.#open())
  }

  suspect(before: boolean): void {
    const client = this.#client
    if (!client) return
    if (before) return this.#lost(client, 0)
    // Behind a pooler some server connection listens on our behalf and tells nobody. It had better not.
    void client.query('UNLISTEN *').catch(() => {})
    this.#lost(client, DEAF_PAUSE_MS)
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#cancelPause?.()
    const client = this.#client
    this.#client = undefined
    if (client) await end(client)
  }
}

/**
 * An orderly end may wait for a server that is gone: not longer than a moment. The connection does not keep the process
 * alive, so the timer does: somebody awaits `close()`.
 */
function end(client: PgClient): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      cancel()
      resolve()
    }
    const cancel = realWorld.after(500, resolve, true)
    client.end().then(done, done)
  })
}
