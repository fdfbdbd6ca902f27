import { ServerResponse } from 'node:http'
import { intercept } from './response-interception.js'
import { rawHeaderNames, type ResponseCapture } from './response-capture.js'

/**
 * A response for the handler beside the one of the connection, with the same methods (those of Express too). A time-out
 * answers on the connection's; the handler's later response is not sent, but recorded.
 */
export function detachedResponse<Res extends ServerResponse>(response: Res, capture: () => ResponseCapture): Res {
  const handlerResponse = new ServerResponse(response.req) as Res
  Object.setPrototypeOf(handlerResponse, Object.getPrototypeOf(response) as object)
  for (const key of Object.keys(response)) {
    if (!(key in handlerResponse))
      (handlerResponse as Record<string, unknown>)[key] = (response as Record<string, unknown>)[key]
  }
  for (const name of rawHeaderNames(response)) {
    const value = response.getHeader(name)
    if (value !== undefined) handlerResponse.setHeader(name, value)
  }
  handlerResponse.statusCode = response.statusCode
  intercept(handlerResponse, capture, () => undefined)
  shareConnection(handlerResponse, response, capture)
  return handlerResponse
}

function shareConnection(
  handlerResponse: ServerResponse,
  response: ServerResponse,
  capture: () => ResponseCapture,
): void {
  const define = (name: string, get: () => unknown): unknown =>
    Object.defineProperty(handlerResponse, name, { configurable: true, get, set: () => {} })
  // After a time-out has answered, the handler goes on as if its client were there, so that its late response is recorded.
  const answeredElsewhere = (): boolean => response.writableEnded && !capture().isSent
  define('headersSent', () => capture().headersSent)
  define('writableEnded', () => capture().ended)
  define('finished', () => capture().ended)
  define('writableFinished', () => capture().ended && response.writableFinished)
  define('socket', () => response.socket)
  define('destroyed', () => response.destroyed && !answeredElsewhere())
  for (const name of ['writeContinue', 'writeProcessing', 'writeEarlyHints', 'addTrailers', 'setTimeout'] as const) {
    const forward = (...args: never[]): unknown => (response[name] as (...all: never[]) => unknown)(...args)
    Object.defineProperty(handlerResponse, name, { configurable: true, writable: true, value: forward })
  }
  const destroy = (error?: Error): ServerResponse => {
    // A connection whose request was answered by a time-out may serve another request by now: do not destroy it.
    if (answeredElsewhere()) handlerResponse.emit('close')
    else response.destroy(error)
    return handlerResponse
  }
  Object.defineProperty(handlerResponse, 'destroy', { configurable: true, writable: true, value: destroy })
  response.on('drain', () => handlerResponse.emit('drain'))
  response.on('close', () => {
    if (!answeredElsewhere()) handlerResponse.emit('close')
  })
}
