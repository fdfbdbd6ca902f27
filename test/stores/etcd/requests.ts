/**
 * Disturbs single requests on their way to a real etcd: carried out but not answered, answered late, never sent. A proxy sees
 * encrypted or framed bytes and cannot tell one request from another.
 */
import { StoreUnavailableError } from '../../../src/errors.js'
import { EtcdConnection } from '../../../src/stores/etcd/connection.js'
import { EndpointError } from '../../../src/stores/etcd/errors.js'

export interface Request {
  /** `Txn`, `LeaseGrant`, `LeaseRevoke`, `Range`. */
  readonly kind: string
  readonly message: Buffer
  send(): Promise<Buffer>
  /** Sent, carried out and not answered: the store tries again at the next endpoint. */
  loseAnswer(): Promise<Buffer>
}

/** Undefined: nothing happens to this request. */
export type Fate = (request: Request) => Promise<Buffer> | undefined

let fate: Fate | undefined
const call = EtcdConnection.prototype.call

EtcdConnection.prototype.call = function disturbed(this: EtcdConnection, path, message, limitMs, token) {
  const send = (): Promise<Buffer> => call.call(this, path, message, limitMs, token)
  const loseAnswer = async (): Promise<Buffer> => {
    await send()
    throw new EndpointError(this.name, 'did not answer within 1.5s')
  }
  const kind = path.slice(path.lastIndexOf('/') + 1)
  return fate?.({ kind, message, send, loseAnswer }) ?? send()
}

export function disturb(how: Fate | undefined): void {
  fate = how
}

/** The first request that matches is carried out, and its answer is lost. */
export function loseOneAnswer(matches: (request: Request) => boolean): void {
  let done = false
  disturb((request) => {
    if (done || !matches(request)) return undefined
    done = true
    return request.loseAnswer()
  })
}

export const isTxn = ({ kind }: Request): boolean => kind === 'Txn'

/** As after the time limit of a whole call: no attempt was answered. */
export const noAnswerAtAll = (): StoreUnavailableError => new StoreUnavailableError('etcd: no endpoint could answer')
