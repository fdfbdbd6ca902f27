import { AsyncLocalStorage } from 'node:async_hooks'
import type { ServerResponse } from 'node:http'
import type { Locks } from '../locks.js'
import { interceptInPlace } from './response-interception.js'
import { Idempotency, type IdempotencyOptions } from './idempotency.js'
import type { IdempotentRun } from './idempotent-run.js'
import {
  errorFrom,
  isAnswered,
  keyedRequest,
  type NodeMiddleware,
  type NodeRequest,
  sendWhole,
} from './node-request.js'
import { headOf, ResponseCapture } from './response-capture.js'

/**
 * The run to which the current code belongs. A timer that was set before the middleware belongs to none: its answer is
 * a time-out.
 */
const currentRun = new AsyncLocalStorage<IdempotentRun>()

/**
 * Middleware for Express (behind its body parser), and whatever else is called with `(request, response, next)`: requests
 * with the same `Idempotency-Key` are served once, and a repetition gets the same response. A response is sent when it has
 * been recorded; one that is written in pieces passes as it is written, and its end waits for the record.
 *
 * Middleware cannot see when the handler returns. After a 408, 503 or 504, or a response that other code than the handler
 * ended (a time-out), the key stays in progress until the ttl: choose one that is longer than the handler takes, or use
 * `idempotentHandler`, which knows.
 *
 * @example
 * ```ts
 * app.post('/orders', express.json(), idempotentExpress(locks, { scope: (request) => request.user.id }), createOrder)
 * ```
 */
export function idempotentExpress<Req extends NodeRequest, Res extends ServerResponse>(
  locks: Locks,
  options: IdempotencyOptions<[Req, Res]>,
): NodeMiddleware<Req, Res> {
  const idempotency = new Idempotency<[Req, Res]>(locks, options)
  return (request, response, next) => {
    if (!idempotency.concerns(request.method)) return next()
    idempotency
      .begin(keyedRequest(idempotency, request, response))
      .then((decision) => {
        if (decision.kind === 'pass') next()
        else if (decision.kind === 'answer') sendWhole(response, decision.response)
        // The request was answered by a time-out, or its client left, while the store was asked: do not start the handler.
        else if (isAnswered(response)) void decision.run.release()
        else serve(decision.run, idempotency.maxBytes, response, next)
      })
      // Also what middleware in front throws when the head of a repetition is sent: nobody else would catch that.
      .catch((error: unknown) => next(errorFrom(error)))
  }
}

function serve(run: IdempotentRun, maxBytes: number, response: ServerResponse, next: (error?: unknown) => void): void {
  const before = headOf(response)
  let capture: ResponseCapture
  const methods = interceptInPlace(response, () => capture)
  const target = { response, methods, unreachable: () => response.destroyed }
  capture = new ResponseCapture(response, target, maxBytes, {
    ended(captured) {
      const foreign = currentRun.getStore() !== run
      run
        .finish(captured, foreign)
        // Middleware in front may throw when the head is sent (`on-headers`): nobody else would catch that.
        .then(() => capture.open())
        .catch((error: unknown) => {
          if (capture.fail(before)) next(errorFrom(error))
        })
    },
  })
  response.once('close', () => {
    if (!capture.ended) run.abandon()
  })
  currentRun.run(run, next)
}
