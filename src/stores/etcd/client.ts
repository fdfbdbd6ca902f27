/**
 * Calls to an etcd cluster: each has a time limit, and moves on to the next endpoint if one fails.
 *
 * @module
 */
import { StoreUnavailableError } from '../../errors.js'
import type { World } from '../../util/world.js'
import { type KeyCheck, type Checked, decodeCheck } from './checks.js'
import { EtcdConnection, type DuplexCall, type Endpoint } from './connection.js'
import { EndpointError, EtcdError, isFinal, needsNewToken, neverSent, refused, unavailable } from './errors.js'
import { KeepAliveStream } from './keep-alives.js'
import {
  decodeLease,
  decodeRange,
  decodeTransaction,
  decodeSecondField,
  encodeAuthenticate,
  encodeLeaseGrant,
  encodeLeaseId,
  encodeRange,
  encodeTransaction,
  type Header,
  type LeaseState,
  type RangeQuery,
  type RangeResult,
  type EtcdTransaction,
  type TxnResult,
} from './messages.js'
import { warnIfOutdated } from './version.js'

/** How long one server may take before another one is asked. Longer than a write on a slow disk, far shorter than a ttl. */
const ATTEMPT_MS = 1_500
/** Pause after every endpoint has failed, in milliseconds. Shorter would hot-loop while the cluster elects a leader. */
const ROUND_PAUSE_MS = 100
/** Leases kept alive at a time: the next ones are sent over the stream when all of these have been answered. */
const KEEP_ALIVES = 500

export interface Credentials {
  username: string
  password: string
}

/** `retried`: an earlier attempt was not answered, and may have been carried out as well. */
export interface Answered<T> {
  answer: T
  retried: boolean
}

const PATH = {
  range: '/etcdserverpb.KV/Range',
  txn: '/etcdserverpb.KV/Txn',
  leaseGrant: '/etcdserverpb.Lease/LeaseGrant',
  leaseRevoke: '/etcdserverpb.Lease/LeaseRevoke',
  timeToLive: '/etcdserverpb.Lease/LeaseTimeToLive',
  watch: '/etcdserverpb.Watch/Watch',
  authenticate: '/etcdserverpb.Auth/Authenticate',
  status: '/etcdserverpb.Maintenance/Status',
} as const

export class EtcdClient {
  readonly #connections: readonly EtcdConnection[]
  readonly #keepAlives = new Map<EtcdConnection, KeepAliveStream>()
  readonly #credentials: Credentials | undefined
  readonly #world: World
  /** The time limit of a whole call, all attempts included. */
  readonly #limitMs: number
  #current: number
  /** The auth token in use, or none if the cluster asks for none. Undefined: not asked for yet, or refused since. */
  #access: { readonly token: string | undefined } | undefined
  #authenticating: Promise<void> | undefined
  #lastFailures = new Map<string, unknown>()
  #closed = false
  #greeted = false

  constructor(endpoints: readonly Endpoint[], credentials: Credentials | undefined, world: World, limitMs: number) {
    this.#connections = endpoints.map((endpoint) => new EtcdConnection(endpoint))
    this.#credentials = credentials
    this.#world = world
    this.#limitMs = limitMs
    // Not the first one for all processes: they would all use the same server.
    this.#current = Math.floor(world.random() * endpoints.length)
  }

  /** Why calls are not answered right now. */
  outage(): unknown {
    return this.#lastFailures.size > 0 ? unavailable(this.#lastFailures) : undefined
  }

  get #connection(): EtcdConnection {
    return this.#connections[this.#current] as EtcdConnection
  }

  async txn(transaction: EtcdTransaction): Promise<Answered<TxnResult & { header: Header }>> {
    const { answer, retried } = await this.#call(PATH.txn, encodeTransaction(transaction))
    return { answer: decodeTransaction(answer), retried }
  }

  async check(check: KeyCheck): Promise<Checked> {
    return decodeCheck((await this.#call(PATH.txn, check.message)).answer, check)
  }

  async range(query: RangeQuery): Promise<RangeResult & { header: Header }> {
    return decodeRange((await this.#call(PATH.range, encodeRange(query))).answer)
  }

  async grantLease(id: bigint, ttlS: number): Promise<LeaseState> {
    return decodeLease((await this.#call(PATH.leaseGrant, encodeLeaseGrant(id, ttlS))).answer)
  }

  async revokeLease(id: bigint): Promise<void> {
    await this.#call(PATH.leaseRevoke, encodeLeaseId(id))
  }

  async timeToLive(id: bigint): Promise<LeaseState> {
    return decodeLease((await this.#call(PATH.timeToLive, encodeLeaseId(id))).answer)
  }

  /** Prolongs leases by their ttl. One that is missing in the answers could not be reached; one with a ttl of 0 is gone. */
  async keepAlive(ids: readonly bigint[]): Promise<Map<bigint, LeaseState>> {
    const states = new Map<bigint, LeaseState>()
    for (let from = 0; from < ids.length; from += KEEP_ALIVES) {
      const part = ids.slice(from, from + KEEP_ALIVES)
      await this.#attempts((connection, limitMs, token) =>
        this.#keepAlivesOf(connection).ask(part, limitMs, token, (state) => states.set(state.id, state)),
      )
    }
    return states
  }

  #keepAlivesOf(connection: EtcdConnection): KeepAliveStream {
    let stream = this.#keepAlives.get(connection)
    if (!stream) this.#keepAlives.set(connection, (stream = new KeepAliveStream(connection)))
    return stream
  }

  /** The watch stream to whichever server is used right now. */
  async openWatch(message: (bytes: Buffer) => void, closed: (error: Error | undefined) => void): Promise<DuplexCall> {
    if (this.#credentials && !this.#access) await this.#authenticate()
    if (this.#closed) throw isClosed()
    const connection = this.#connection
    return connection.open(PATH.watch, this.#access?.token, {
      message,
      closed: (error) => {
        if (needsNewToken(error)) this.#access = undefined
        else this.#moveOn(connection)
        closed(error)
      },
    })
  }

  /** The server in use refused a watch: because of the auth token, or because it cannot serve any now. */
  refusedWatch(reason: string): void {
    if (/auth|permission|user name/i.test(reason)) this.#access = undefined
    else this.#moveOn(this.#connection)
  }

  #call(path: string, message: Buffer): Promise<Answered<Buffer>> {
    return this.#attempts((connection, limitMs, token) => connection.call(path, message, limitMs, token))
  }

  async #attempts<T>(
    attempt: (connection: EtcdConnection, limitMs: number, token: string | undefined) => Promise<T>,
  ): Promise<Answered<T>> {
    const until = performance.now() + this.#limitMs
    const failures = new Map<string, unknown>()
    let retried = false
    if (this.#closed) throw isClosed()
    for (let count = 1; ; count++) {
      const connection = this.#notYetIn(failures)
      let access = this.#access
      try {
        if (this.#credentials && !this.#access) await this.#authenticate()
        access = this.#access
        const left = until - performance.now()
        const answer = await attempt(connection, Math.max(Math.min(ATTEMPT_MS, left), 1), access?.token)
        if (this.#lastFailures.size > 0) this.#lastFailures = new Map()
        if (!this.#greeted) this.#greet(connection)
        return { answer, retried }
      } catch (error) {
        if (needsNewToken(error) && this.#credentials && count <= this.#connections.length + 1) {
          // Only the one that was refused: others may have got a new one meanwhile.
          if (this.#access === access) this.#access = undefined
          continue
        }
        if (error instanceof EtcdError && isFinal(error)) {
          error.retried = retried
          throw error
        }
        if (!(error instanceof EtcdError || error instanceof EndpointError)) throw error
        // A server that refused before it proposed anything did nothing; what was not answered may have been carried out.
        retried ||= !(neverSent(error) || (error instanceof EtcdError && /no leader/.test(error.message)))
        failures.set(connection.name, error)
        this.#lastFailures = failures
        this.#moveOn(connection)
      }
      const pauseMs = count % this.#connections.length === 0 ? ROUND_PAUSE_MS : 0
      if (this.#closed || performance.now() + pauseMs >= until) break
      // Two rounds, because a server may be about to start; more would only delay the reason.
      if (count >= 2 * this.#connections.length && [...failures.values()].every(neverSent)) break
      if (pauseMs > 0) await new Promise<void>((resolve) => this.#world.after(pauseMs, resolve, true))
    }
    throw unavailable(failures)
  }

  /** In the background: which version the first server that answered has. */
  #greet(connection: EtcdConnection): void {
    this.#greeted = true
    connection.call(PATH.status, Buffer.of(), ATTEMPT_MS, this.#access?.token).then(
      (answer) => warnIfOutdated(connection.name, decodeSecondField(answer)),
      () => {},
    )
  }

  /**
   * The connection in use, unless this call has failed on it. Other calls move on too: a call that only followed them
   * could come back to a server that has failed it before it has asked every other one.
   */
  #notYetIn(failures: ReadonlyMap<string, unknown>): EtcdConnection {
    if (!failures.has(this.#connection.name)) return this.#connection
    return this.#connections.find(({ name }) => !failures.has(name)) ?? this.#connection
  }

  #moveOn(from: EtcdConnection): void {
    if (this.#connection === from) this.#current = (this.#current + 1) % this.#connections.length
  }

  /** Once for all calls that need it. */
  #authenticate(): Promise<void> {
    this.#authenticating ??= this.#askForToken().finally(() => {
      this.#authenticating = undefined
    })
    return this.#authenticating
  }

  async #askForToken(): Promise<void> {
    const { username, password } = this.#credentials as Credentials
    const connection = this.#connection
    try {
      const request = encodeAuthenticate(username, password)
      this.#access = {
        token: decodeSecondField(await connection.call(PATH.authenticate, request, ATTEMPT_MS, undefined)),
      }
    } catch (error) {
      // A cluster whose authentication is off accepts every caller without a token, and refuses only the question.
      if (error instanceof EtcdError && /authentication is not enabled/.test(error.message))
        this.#access = { token: undefined }
      else if (error instanceof EtcdError && isFinal(error)) throw refused(connection.name, error)
      else throw error
    }
  }

  close(): void {
    this.#closed = true
    for (const connection of this.#connections) connection.close()
  }
}

const isClosed = (): StoreUnavailableError => new StoreUnavailableError('etcd: the store was closed')
