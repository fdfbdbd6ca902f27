import { StoreUnavailableError, UnsupportedError } from '../../errors.js'
import { formatDuration } from '../../kit/duration.js'
import type { Adapter, Dedicated } from '../../clients/redis/adapter.js'
import { unavailable } from './errors.js'
import type { Index, Keys } from './keys.js'

/** One master, and those who wait for its replicas. */
interface Master {
  connection: Dedicated | undefined
  /** The WAIT under way. */
  current: Promise<void> | undefined
  /** The one after it, shared by all who came since: their grants are older than its write. */
  next: Promise<void> | undefined
}

/**
 * Asks the replicas whether they have what was just granted. WAIT covers only writes of its own connection, and answers at
 * once on a connection that has written nothing: so a connection of our own (one per master) writes something small and
 * then waits. Replicas apply writes in order, so one that has this write has the grant before it.
 */
export class Replication {
  readonly #adapter: Adapter
  readonly #dedicate: (address: string) => Dedicated
  readonly #keys: Keys
  readonly #replicas: number
  readonly #withinMs: number
  readonly #timeoutMs: number
  readonly #masters = new Map<string, Master>()

  constructor(adapter: Adapter, keys: Keys, options: { replicas: number; withinMs: number; timeoutMs: number }) {
    const { dedicate } = adapter
    if (!dedicate)
      throw new UnsupportedError(
        'replicas needs a connection of its own, which the Sentinel client of node-redis does not offer',
      )
    this.#adapter = adapter
    this.#dedicate = dedicate
    this.#keys = keys
    this.#replicas = options.replicas
    this.#withinMs = options.withinMs
    this.#timeoutMs = options.timeoutMs
  }

  /** Rejects with a `StoreUnavailableError` unless enough replicas have all that this server granted until now. */
  confirm(index: Index): Promise<void> {
    const address = this.#adapter.addressOf(index.slot)
    if (address === undefined) return Promise.reject(new StoreUnavailableError('redis: no master serves this slot now'))
    let master = this.#masters.get(address)
    if (!master) this.#masters.set(address, (master = { connection: undefined, current: undefined, next: undefined }))
    const one = master
    if (!one.current) return this.#begin(one, address, index)
    one.next ??= one.current
      .catch(() => {})
      .then(() => {
        one.next = undefined
        return this.#begin(one, address, index)
      })
    return one.next
  }

  close(): void {
    for (const { connection } of this.#masters.values()) connection?.close()
    this.#masters.clear()
  }

  #begin(master: Master, address: string, index: Index): Promise<void> {
    const current = this.#ask(master, address, index).finally(() => {
      if (master.current === current) master.current = undefined
    })
    master.current = current
    return current
  }

  async #ask(master: Master, address: string, index: Index): Promise<void> {
    let timer: NodeJS.Timeout | undefined
    let acknowledged: number
    try {
      if (!master.connection || master.connection.broken) master.connection = this.#dedicate(address)
      const { connection } = master
      const late = new Promise<never>((_, reject) => {
        const ms = this.#withinMs + this.#timeoutMs
        timer = setTimeout(() => {
          connection.close()
          reject(new Error(`no answer to WAIT within ${formatDuration(ms)}`))
        }, ms)
      })
      const written = connection.send('SET', this.#keys.confirmation(index), '1', 'PX', '60000')
      const waited = connection.send('WAIT', String(this.#replicas), String(this.#withinMs))
      // Whichever fails first is told; the other must not be an unhandled rejection.
      waited.catch(() => {})
      acknowledged = Number((await Promise.race([Promise.all([written, waited]), late]))[1])
    } catch (error) {
      throw unavailable(error)
    } finally {
      clearTimeout(timer)
    }
    if (acknowledged >= this.#replicas) return
    throw new StoreUnavailableError(
      `redis: ${acknowledged} of ${this.#replicas} replicas acknowledged the grant within ${formatDuration(this.#withinMs)}; it was released`,
    )
  }
}
