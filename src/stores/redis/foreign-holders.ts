/**
 * Keys that may be locks of somebody else: redis-py, node-redlock, a hand-written `SET NX PX`. They are in no index of ours,
 * so they are found by SCAN, over all masters, and never by KEYS.
 *
 * @module
 */
import { type Adapter, type Reply, type Server, text } from '../../clients/redis/adapter.js'
import { type Keys, literally } from './keys.js'
import { within } from './within.js'

/** STEP: keys per SCAN, half a millisecond of the server's time. */
const STEP = 1_000
/** A walk that took this long is not repeated before twenty times as long has passed: five per cent of the time at most. */
const REST = 20

export class ForeignHolders {
  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #waitMs: number
  /** What the last whole walk found, and what the present one did so far. */
  #known = new Set<string>()
  #walking: Promise<void> | undefined
  #restUntil = 0
  #closed = false

  constructor(adapter: Adapter, keys: Keys, waitMs: number) {
    this.#adapter = adapter
    this.#keys = keys
    this.#waitMs = waitMs
  }

  /** Keys of kind `lock` under this prefix, ours among them. Waits for a walk, but not for ever: what it finds later counts later. */
  async keys(prefix: string): Promise<string[]> {
    if (!prefix.startsWith('lock:') && !'lock:'.startsWith(prefix)) return []
    if (!this.#walking && performance.now() >= this.#restUntil) this.#walk()
    if (this.#walking) await within(this.#waitMs, this.#walking)
    return [...this.#known].filter((key) => key.startsWith(prefix))
  }

  close(): void {
    this.#closed = true
  }

  #walk(): void {
    const startedAt = performance.now()
    this.#walking = this.#findAll()
      .catch(() => {})
      .finally(() => {
        const endedAt = performance.now()
        this.#walking = undefined
        this.#restUntil = endedAt + (endedAt - startedAt) * REST
      })
  }

  async #findAll(): Promise<void> {
    const found = new Set<string>()
    const servers = await this.#adapter.masters()
    // One server after the other: a listing is never urgent.
    for (const server of servers) await this.#findOn(server, found)
    this.#known = found
  }

  async #findOn(server: Server, found: Set<string>): Promise<void> {
    const pattern = `${literally(`${this.#keys.lead}lock:`)}*`
    let cursor = '0'
    do {
      const page = await server.send('SCAN', cursor, 'MATCH', pattern, 'COUNT', String(STEP))
      const [next, plains] = page as [Reply, Reply[]]
      for (const plain of plains) {
        const key = this.#keys.key(text(plain))
        found.add(key)
        this.#known.add(key)
      }
      cursor = text(next)
    } while (cursor !== '0' && !this.#closed)
  }
}
