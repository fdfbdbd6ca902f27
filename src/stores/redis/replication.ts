import { StoreUnavailableError, UnsupportedError } from '../../errors.js'
import { formatDuration } from '../../util/duration.js'
import type { Adapter, DedicatedConnection } from '../../clients/redis/adapter.js'
import type { Answer, Claim, LeaseId, Renewal, Renewed } from '../../store.js'
import { undecided, unknown } from './codec.js'
import { unavailable } from './errors.js'
import type { Index, Keys } from './keys.js'

export interface ReplicationOptions {
  replicas: number
  withinMs: number
  timeoutMs: number
  release: (leases: LeaseId[]) => Promise<unknown>
}

/** One master, and the calls that wait for its replicas. */
interface ReplicatedMaster {
  connection: DedicatedConnection | undefined
  /** The WAIT under way. */
  current: Promise<void> | undefined
  /** The one after it, shared by all calls since: their grants are older than its write. */
  next: Promise<void> | undefined
}

/**
 * Asks the replicas whether they have what was just granted. WAIT covers only writes of its own connection, and answers at
 * once on a connection that has written nothing: so a connection of our own (one per master) writes something small and
 * then waits. Replicas apply writes in order, so one that has this write has the grant before it.
 */
export class Replication {
  readonly #adapter: Adapter
  readonly #dedicate: (address: string) => DedicatedConnection
  readonly #keys: Keys
  readonly #replicas: number
  readonly #withinMs: number
  readonly #timeoutMs: number
  readonly #release: (leases: LeaseId[]) => Promise<unknown>
  readonly #masters = new Map<string, ReplicatedMaster>()

  constructor(adapter: Adapter, keys: Keys, options: ReplicationOptions) {
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
    this.#release = options.release
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

  /** The answers; a grant that too few replicas have counts as unknown, and has been released as far as that was possible. */
  async confirmGrants(claims: readonly Claim[], answers: Answer[], index: Index): Promise<Answer[]> {
    const granted = answers.flatMap((answer, i) => {
      return answer.granted === true
        ? [{ key: (claims[i] as Claim).key, owner: answer.owner, token: answer.token }]
        : []
    })
    const error = await this.#unconfirmed(granted, index)
    return error ? answers.map((answer) => (answer.granted === true ? undecided(error) : answer)) : answers
  }

  async confirmHandOffs(renewals: readonly Renewal[], answers: Renewed[], index: Index): Promise<Renewed[]> {
    const granted = answers.flatMap((answer, i) => {
      const { key, owner } = renewals[i] as Renewal
      return answer.outcome === 'granted' ? [{ key, owner, token: answer.token }] : []
    })
    const error = await this.#unconfirmed(granted, index)
    return error ? answers.map((answer) => (answer.outcome === 'granted' ? unknown(error) : answer)) : answers
  }

  /** Why these grants do not count; they have been released then, as far as that was possible. */
  async #unconfirmed(granted: LeaseId[], index: Index): Promise<unknown> {
    if (granted.length === 0) return undefined
    try {
      await this.confirm(index)
      return undefined
    } catch (error) {
      await this.#release(granted).catch(() => {})
      return error
    }
  }

  close(): void {
    for (const { connection } of this.#masters.values()) connection?.close()
    this.#masters.clear()
  }

  #begin(master: ReplicatedMaster, address: string, index: Index): Promise<void> {
    const current = this.#ask(master, address, index).finally(() => {
      if (master.current === current) master.current = undefined
    })
    master.current = current
    return current
  }

  async #ask(master: ReplicatedMaster, address: string, index: Index): Promise<void> {
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

/**
 * CHECK_MS: how often a cluster is asked whether its masters are still who they were, while something is held. A replica that
 * took over by force may have missed the last grants, and the old master stays connected: nothing else tells before the next
 * heartbeat.
 */
const CHECK_MS = 2_000

export class MasterWatch {
  readonly #adapter: Adapter
  readonly #keys: Keys
  /** Asks the server of this key for something, so that a client that went to the wrong one is redirected. */
  readonly #ask: (key: string) => Promise<unknown>
  #users = 0
  #timer: NodeJS.Timeout | undefined

  constructor(adapter: Adapter, keys: Keys, ask: (key: string) => Promise<unknown>) {
    this.#adapter = adapter
    this.#keys = keys
    this.#ask = ask
  }

  begin(): () => void {
    let begun = true
    this.#users++
    if (this.#users === 1) this.#later()
    return () => {
      if (!begun) return
      begun = false
      this.#users--
      if (this.#users === 0) this.close()
    }
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  #later(): void {
    this.#timer = setTimeout(() => void this.#check(), CHECK_MS)
    this.#timer.unref()
  }

  async #check(): Promise<void> {
    const { timer } = { timer: this.#timer }
    const asked = new Map<string, string>()
    for (const { name, slot } of this.#keys.indexes) {
      const address = this.#adapter.addressOf(slot)
      if (address !== undefined && !asked.has(address)) asked.set(address, name)
    }
    await Promise.allSettled([...asked.values()].map((key) => this.#ask(key)))
    this.#adapter.compareMasters()
    if (this.#timer === timer && timer) this.#later()
  }
}
