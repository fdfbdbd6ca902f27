/**
 * Keep-alives over one stream per server, which stays open: to open a stream costs more than all that a heartbeat sends over it.
 *
 * @module
 */
import type { DuplexCall, EtcdConnection } from './connection.js'
import { EndpointError } from './errors.js'
import { decodeLease, encodeLeaseId, type LeaseState } from './messages.js'

const PATH = '/etcdserverpb.Lease/LeaseKeepAlive'

/** Leases that are kept alive together. */
class KeepAliveRequest {
  readonly #each: (state: LeaseState) => void
  readonly #settle: (error: Error | undefined) => void
  readonly #timer: NodeJS.Timeout
  readonly #open: Set<bigint>

  constructor(
    ids: readonly bigint[],
    limitMs: number,
    answers: { each: (state: LeaseState) => void; settle: (error: Error | undefined) => void; timedOut: () => void },
  ) {
    this.#open = new Set(ids)
    this.#each = answers.each
    this.#settle = answers.settle
    this.#timer = setTimeout(answers.timedOut, limitMs)
    this.#timer.unref()
  }

  /** False: it did not ask for this one, or has its answer. */
  answered(state: LeaseState): boolean {
    if (!this.#open.delete(state.id)) return false
    this.#each(state)
    if (this.#open.size === 0) this.end(undefined)
    return true
  }

  get isOver(): boolean {
    return this.#open.size === 0
  }

  end(error: Error | undefined): void {
    clearTimeout(this.#timer)
    this.#open.clear()
    this.#settle(error)
  }
}

export class KeepAliveStream {
  readonly #connection: EtcdConnection
  #call: DuplexCall | undefined
  /** The auth token that the stream was opened with. */
  #token: string | undefined
  /** In the order in which they were sent, which is the order of the answers. */
  #requests: KeepAliveRequest[] = []

  constructor(connection: EtcdConnection) {
    this.#connection = connection
  }

  /** Calls `each` with the state of every lease. Rejects if the server does not answer all in time. */
  ask(
    ids: readonly bigint[],
    limitMs: number,
    token: string | undefined,
    each: (state: LeaseState) => void,
  ): Promise<void> {
    return new Promise((resolve, reject) => {
      const settle = (error: Error | undefined): void => (error ? reject(error) : resolve())
      const timedOut = (): void => {
        this.#end(
          this.#call,
          new EndpointError(this.#connection.name, `did not answer keep-alives within ${limitMs} ms`),
        )
        this.#connection.probe()
      }
      const call = this.#open(token)
      this.#requests.push(new KeepAliveRequest(ids, limitMs, { each, settle, timedOut }))
      for (const id of ids) call.send(encodeLeaseId(id))
    })
  }

  #open(token: string | undefined): DuplexCall {
    if (this.#call && this.#token === token) return this.#call
    // Those on the way with the token before are asked again, elsewhere.
    if (this.#call) this.#end(this.#call, new EndpointError(this.#connection.name, 'was asked with another auth token'))
    const call: DuplexCall = this.#connection.open(PATH, token, {
      message: (bytes) => this.#received(call, bytes),
      closed: (error) => this.#end(call, error ?? new EndpointError(this.#connection.name, 'ended the keep-alives')),
    })
    this.#call = call
    this.#token = token
    return call
  }

  #received(call: DuplexCall, bytes: Buffer): void {
    if (this.#call !== call) return
    let state: LeaseState
    try {
      state = decodeLease(bytes)
    } catch (error) {
      const reason = 'sent a keep-alive that cannot be read'
      return this.#end(call, new EndpointError(this.#connection.name, reason, { cause: error }))
    }
    this.#requests.find((request) => request.answered(state))
    if (this.#requests[0]?.isOver) this.#requests = this.#requests.filter(({ isOver }) => !isOver)
  }

  /** What a stream that is given up still sends is not listened to: it would be taken for an answer to the next request. */
  #end(call: DuplexCall | undefined, error: Error): void {
    if (!call || this.#call !== call) return
    this.#call = undefined
    const requests = this.#requests
    this.#requests = []
    call.close()
    for (const request of requests) request.end(error)
  }
}
