import { StoreUnavailableError } from '../../errors.js'
import { reasonOf } from '../../util/reason.js'

/** Status codes of gRPC that mean something to the store. */
export const STATUS = {
  INVALID_ARGUMENT: 3,
  NOT_FOUND: 5,
  PERMISSION_DENIED: 7,
  RESOURCE_EXHAUSTED: 8,
  FAILED_PRECONDITION: 9,
  OUT_OF_RANGE: 11,
  UNAUTHENTICATED: 16,
} as const

/** The server answered, and refused. */
export class EtcdError extends Error {
  readonly status: number
  /** An earlier attempt of the same call was not answered, and may have been carried out. */
  retried = false

  constructor(status: number, message: string) {
    super(message || `gRPC status ${status}`)
    this.name = 'EtcdError'
    this.status = status
  }
}

/** A server that could not be asked, or did not answer in time. What was sent may have been carried out. */
export class EndpointError extends Error {
  readonly endpoint: string

  constructor(endpoint: string, reason: string, options?: ErrorOptions) {
    super(`${endpoint} ${reason}`, options)
    this.name = 'EndpointError'
    this.endpoint = endpoint
  }
}

/** Codes of connections that were never made: nothing was sent, and trying again at once would not help. */
const NOT_CONNECTED =
  /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|ERR_TLS|ERR_SSL|CERT_|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO)/

/** No connection could be made: the server is down, or one side does not accept the other's certificate. */
export function neverSent(error: unknown): boolean {
  // Node wraps the error of the socket in one of the session, and that in one of the stream.
  for (let each = error, depth = 0; typeof each === 'object' && each !== null && depth < 4; depth++) {
    const { code, cause } = each as { code?: unknown; cause?: unknown }
    if (typeof code === 'string' && NOT_CONNECTED.test(code)) return true
    each = cause
  }
  return false
}

export const isLeaseGone = (error: unknown): boolean =>
  error instanceof EtcdError && error.status === STATUS.NOT_FOUND && /lease not found/i.test(error.message)

export const isLeaseTaken = (error: unknown): boolean =>
  error instanceof EtcdError && /lease already exists/i.test(error.message)

/**
 * The auth token has expired, or belongs to an older state of the users and roles, or there was none and the cluster asks for one since:
 * a new one is needed.
 */
export function needsNewToken(error: unknown): boolean {
  if (!(error instanceof EtcdError)) return false
  return /invalid auth token|revision of auth store is old|user name is empty/i.test(error.message)
}

/** Whether the same request would be refused by every server and at any time. */
export function isFinal(error: EtcdError): boolean {
  const { INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE, UNAUTHENTICATED } = STATUS
  const final: readonly number[] = [
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    FAILED_PRECONDITION,
    OUT_OF_RANGE,
    UNAUTHENTICATED,
  ]
  return final.includes(error.status) || /database space exceeded|larger than max/.test(error.message)
}

/** What to do about an answer that every server would give. */
function advice(message: string): string {
  if (/user name is empty/.test(message)) return ' (the cluster requires credentials: set the option credentials)'
  if (/authentication failed/.test(message)) return ' (the user or the password is wrong)'
  if (/permission denied/.test(message)) return ' (the user needs readwrite permission for the keys under the prefix)'
  if (/too many operations/.test(message)) return ' (start etcd with --max-txn-ops 128, which is the default, or more)'
  if (/request is too large|larger than max/.test(message))
    return ' (start etcd with --max-request-bytes 1572864, which is the default, or more)'
  if (/database space exceeded/.test(message))
    return ' (compact and defragment the cluster, then `etcdctl alarm disarm`)'
  return ''
}

/** No request was or could be carried out: the server says why. */
export function refused(endpoint: string, error: EtcdError): StoreUnavailableError {
  return new StoreUnavailableError(`etcd: ${endpoint} refused: ${error.message}${advice(error.message)}`, {
    cause: error,
  })
}

/** Names every endpoint and why it did not answer. */
export function unavailable(reasons: ReadonlyMap<string, unknown>): StoreUnavailableError {
  const errors = [...reasons].map(([endpoint, error]) =>
    error instanceof EndpointError ? error : new EndpointError(endpoint, `answered: ${reasonOf(error)}`),
  )
  const message = errors.map((error) => error.message).join('; ')
  return new StoreUnavailableError(`etcd: no endpoint could answer: ${message}`, {
    cause: new AggregateError(errors, message),
  })
}
