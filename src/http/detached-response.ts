import { ServerResponse } from 'node:http'
import { intercept } from './front-response.js'
import { rawHeaderNames, type ResponseCapture } from './response-capture.js'

/**
 * A response of the handler's own beside the one of the connection, with the same methods (those of Express too). A time-out
 * answers the connection's; what the handler then sends reaches nobody, but is recorded.
 */
export function detachedResponse<Res extends ServerResponse>(response: Res, capture: () => ResponseCapture): Res {
  const front = new ServerResponse(response.req) as Res
  Object.setPrototypeOf(front, Object.getPrototypeOf(response) as object)
  for (const key of Object.keys(response)) {
    if (!(key in front)) (front as Record<string, unknown>)[key] = (response as Record<string, unknown>)[key]
  }
  for (const name of rawHeaderNames(response)) {
    const value = response.getHeader(name)
    if (value !== undefined) front.setHeader(name, value)
  }
  front.statusCode = response.statusCode
  intercept(front, capture, () => undefined)
  shareConnection(front, response, capture)
  return front
}

function shareConnection(front: ServerResponse, response: ServerResponse, capture: () => ResponseCapture): void {
  const define = (name: string, get: () => unknown): unknown =>
    Object.defineProperty(front, name, { configurable: true, get, set: () => {} })
  // After a time-out has answered, the handler goes on as if its client were there: what it sends late is recorded.
  const answeredElsewhere = (): boolean => response.writableEnded && !capture().isSent
  define('headersSent', () => capture().headersSent)
  define('writableEnded', () => capture().ended)
  define('finished', () => capture().ended)
  define('writableFinished', () => capture().ended && response.writableFinished)
  define('socket', () => response.socket)
  define('destroyed', () => response.destroyed && !answeredElsewhere())
  for (const name of ['writeContinue', 'writeProcessing', 'writeEarlyHints', 'addTrailers', 'setTimeout'] as const) {
    const forward = (...args: never[]): unknown => (response[name] as (...all: never[]) => unknown)(...args)
    Object.defineProperty(front, name, { configurable: true, writable: true, value: forward })
  }
  const destroy = (error?: Error): ServerResponse => {
    // A connection that somebody else has answered may serve another request by now.
    if (answeredElsewhere()) front.emit('close')
    else response.destroy(error)
    return front
  }
  Object.defineProperty(front, 'destroy', { configurable: true, writable: true, value: destroy })
  response.on('drain', () => front.emit('drain'))
  response.on('close', () => {
    if (!answeredElsewhere()) front.emit('close')
  })
}
