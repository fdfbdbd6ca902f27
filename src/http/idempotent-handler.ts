import type { ServerResponse } from 'node:http'
import type { Locks } from '../locks.js'
import { ClosedError, InvalidOptionError, LockLostError, StoreUnavailableError } from '../errors.js'
import { detachedResponse } from './detached-response.js'
import { Idempotency, type IdempotencyOptions } from './idempotency.js'
import type { IdempotentRun } from './idempotent-run.js'
import { errorFrom, isAnswered, keyedRequest, type NodeRequest, sendWhole } from './node-request.js'
import { PROBLEM_TYPE, problemBody } from './problem.js'
import type { ResponseHead } from './recorded-response.js'
import { apply, headOf, ResponseCapture } from './response-capture.js'

/** Passes a request or an error on to the next handler. */
export type NodeNext = (error?: unknown) => void

/** A handler of Express 4 and 5, or of `node:http`. */
export type NodeHandler<Req extends NodeRequest, Res extends ServerResponse> = (
  request: Req,
  response: Res,
  next: NodeNext,
) => unknown

/**
 * A handler for Express 4 and 5 and `node:http` that serves requests with the same `Idempotency-Key` once: a repetition gets
 * the same response. The key is in progress for as long as the handler runs (its promise), whatever happens to the connection.
 * The handler has a response of its own: after a time-out in front of it, its late response is still recorded, and the
 * client that tries again gets that.
 *
 * The promise it returns rejects with the handler's error where there is no `next` to tell (`node:http`).
 *
 * @example
 * ```ts
 * app.post('/orders', express.json(), idempotentHandler(locks, createOrder, { scope: (request) => request.user.id }))
 * ```
 */
export function idempotentHandler<Req extends NodeRequest, Res extends ServerResponse>(
  locks: Locks,
  handler: NodeHandler<Req, Res>,
  options: IdempotencyOptions<[Req, Res]>,
): (request: Req, response: Res, next?: NodeNext) => Promise<void> {
  const idempotency = new Idempotency<[Req, Res]>(locks, options)
  if (typeof handler !== 'function') throw new InvalidOptionError('handler', handler, 'a function')
  return async (request, response, next) => {
    const plain = async (): Promise<void> => {
      await handler(request, response, next ?? (() => {}))
    }
    try {
      if (!idempotency.concerns(request.method)) return await plain()
      const decision = await idempotency.begin(keyedRequest(idempotency, request, response))
      if (decision.kind === 'pass') return await plain()
      if (decision.kind === 'answer') return sendWhole(response, decision.response)
      // The request was answered by a time-out, or its client left, while the store was asked: do not start the handler.
      if (isAnswered(response)) return await decision.run.release()
      const call = await callUnder<Req, Res>(decision.run, idempotency.maxBytes, response, next)
      await call.run(handler, request)
    } catch (error) {
      reportError(error, response, next)
    }
  }
}

/** A response that cannot be made a second time (HTTP/2) must not leave its key in progress for `maxHold`. */
async function callUnder<Req extends NodeRequest, Res extends ServerResponse>(
  run: IdempotentRun,
  maxBytes: number,
  response: Res,
  next: NodeNext | undefined,
): Promise<HandlerCall<Req, Res>> {
  try {
    return new HandlerCall<Req, Res>(run, maxBytes, response, next)
  } catch (error) {
    await run.release()
    throw error
  }
}

/** One call of a handler, with a response of its own. */
class HandlerCall<Req extends NodeRequest, Res extends ServerResponse> {
  readonly #run: IdempotentRun
  readonly #response: Res
  readonly #handlerResponse: Res
  readonly #next: NodeNext | undefined
  readonly #capture: ResponseCapture
  readonly #before: ResponseHead
  /** Resolves when the response of the handler has been sent, or could not be. */
  #sent: Promise<void> | undefined
  #passedOn = false
  #restore: () => void = () => {}

  constructor(run: IdempotentRun, maxBytes: number, response: Res, next: NodeNext | undefined) {
    this.#run = run
    this.#response = response
    this.#next = next
    this.#before = headOf(response)
    this.#handlerResponse = detachedResponse(response, () => this.#capture)
    const { write, end, writeHead, flushHeaders } = response
    const target = {
      response,
      methods: { write, end, writeHead, flushHeaders },
      unreachable: () =>
        response.destroyed || response.writableEnded || (response.headersSent && !this.#capture.isLive),
    }
    this.#capture = new ResponseCapture(this.#handlerResponse, target, maxBytes, {
      ended: (captured) => {
        this.#sent = run
          .finish(captured)
          // Middleware in front may throw when the head is sent (`on-headers`): nobody else would catch that.
          .then(() => this.#open())
          .catch((error: unknown) => this.#notSent(error))
      },
    })
    response.once('close', () => {
      if (!this.#capture.ended) run.abandon()
    })
  }

  async run(handler: NodeHandler<Req, Res>, request: Req): Promise<void> {
    this.#swapOwn(request as { res?: unknown; next?: unknown })
    try {
      const returned = handler(request, this.#handlerResponse, (error) => this.#passOn(error))
      if (isPromise(returned)) {
        // One promise for all who wait: a query builder runs its query again for each `then`.
        const running = Promise.resolve(returned)
        this.#run.follow(running)
        await running
      }
    } catch (error) {
      await this.#failed(error)
      return
    }
    if (!this.#sent && this.#response.destroyed) this.#run.abandon()
    await this.#sent
  }

  /**
   * Express keeps the response and `next` in the request, too, and its own `sendFile` and `render` use them: an answer through
   * `request.res` would reach the client without a record, and the handler would run again. What the handler passes on sees the
   * original ones there.
   */
  #swapOwn(request: { res?: unknown; next?: unknown }): void {
    const { res, next } = request
    if (res !== this.#response) return
    request.res = this.#handlerResponse
    const ours: NodeNext = (error) => this.#passOn(error)
    if (typeof next === 'function') request.next = ours
    this.#restore = () => {
      if (request.res === this.#handlerResponse) request.res = res
      if (request.next === ours) request.next = next
    }
  }

  /** Answers with an error: a response that was not recorded must not look as if it had been, and one that cannot be sent is none. */
  #notSent(error: unknown): void {
    this.#restore()
    if (!this.#capture.fail(this.#before)) return
    if (this.#next) this.#next(errorFrom(error))
    else answerError(error, this.#response)
  }

  /** An error after the response ended does not change the response; it is reported when that has been sent. */
  async #failed(error: unknown): Promise<void> {
    if (this.#sent) await this.#sent
    else {
      this.#giveUp()
      await this.#run.release()
    }
    this.#restore()
    if (this.#passedOn) return
    throw error
  }

  #passOn(error: unknown): void {
    if (this.#passedOn) return
    this.#passedOn = true
    const done = (): void => {
      this.#restore()
      this.#next?.(error)
    }
    if (this.#sent) return void this.#sent.then(done)
    this.#giveUp()
    // With an error the handler has failed. Without one, another handler goes on with the request, and its end is unknown.
    if (error !== undefined && error !== 'route' && error !== 'router') void this.#run.release().then(done)
    else {
      this.#run.abandon()
      done()
    }
  }

  /** The next handler or the error handler goes on with the status and the headers that were set so far, as without this one. */
  #giveUp(): void {
    const isFirst = !this.#capture.ended
    this.#capture.giveUp()
    if (this.#next && isFirst && !isAnswered(this.#response)) apply(this.#response, headOf(this.#handlerResponse))
  }

  #open(): void {
    this.#capture.open()
    const finished = (): boolean => this.#handlerResponse.emit('finish')
    if (this.#response.destroyed || this.#response.writableFinished) finished()
    else this.#response.once('finish', finished)
  }
}

function isPromise(value: unknown): value is Promise<unknown> {
  return typeof (value as Promise<unknown> | undefined)?.then === 'function'
}

/** Without `next`, the client gets a 500 or 503, and the caller of the handler gets the handler's own errors. */
function reportError(error: unknown, response: ServerResponse, next: NodeNext | undefined): void {
  if (next) return next(errorFrom(error))
  answerError(error, response)
  // An outage of the store is no error of the handler, and must not end a process that does not handle rejections.
  const ours = [StoreUnavailableError, ClosedError, LockLostError].some((known) => error instanceof known)
  if (!ours) throw error
}

function answerError(error: unknown, response: ServerResponse): void {
  if (response.writableEnded || response.destroyed) return
  if (response.headersSent) return void response.destroy()
  const outage = error instanceof StoreUnavailableError
  const problem = outage
    ? { status: 503, title: 'Service Unavailable', detail: 'Try again later.', headers: {} }
    : { status: 500, title: 'Internal Server Error', detail: 'The request failed.', headers: {} }
  response.statusCode = problem.status
  response.setHeader('Content-Type', PROBLEM_TYPE)
  response.end(problemBody(problem))
}
