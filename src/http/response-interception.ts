import type { ServerResponse } from 'node:http'
import { headersSent, type ResponseCapture, type ResponseMethods } from './response-capture.js'

/** A method of a response, whatever its arguments. */
type ResponseMethod = (...args: unknown[]) => unknown

/** Routes all writes to this response through `capture`, which sends them with the original methods that this returns. */
export function interceptInPlace(response: ServerResponse, capture: () => ResponseCapture): ResponseMethods {
  const { write, end, writeHead, flushHeaders } = response
  const own = { write, end, writeHead, flushHeaders }
  intercept(response, capture, (name) => (own as unknown as Record<string, ResponseMethod>)[name])
  for (const name of ['headersSent', 'writableEnded'] as const) {
    const ours = (): boolean => (name === 'headersSent' ? capture().headersSent : capture().ended)
    const get = (): unknown => Reflect.get(Object.getPrototypeOf(response), name, response)
    Object.defineProperty(response, name, {
      configurable: true,
      get: () => (capture().isPassing ? get() : ours() || get()),
    })
  }
  return own
}

/**
 * Replaces the writing methods of a response by those of its capture. `own` returns the original ones, if there are
 * any.
 */
export function intercept(
  handlerResponse: ServerResponse,
  capture: () => ResponseCapture,
  own: (name: string) => ResponseMethod | undefined,
): void {
  const override = (name: string, ours: ResponseMethod): void => {
    const replaced = (...args: unknown[]): unknown => {
      const method = capture().isPassing ? own(name) : undefined
      return method ? method.apply(handlerResponse, args) : ours(...args)
    }
    Object.defineProperty(handlerResponse, name, { configurable: true, writable: true, value: replaced })
  }
  override('write', (chunk, encoding, done) => capture().write(chunk, encoding, done as never))
  override('end', (chunk, encoding, done) => {
    capture().end(chunk, encoding, done as never)
    return handlerResponse
  })
  override('writeHead', (status, ...rest) => {
    capture().writeHead(status as number, rest)
    return handlerResponse
  })
  override('flushHeaders', () => capture().flushHeaders())
  refuseLateHeaders(handlerResponse, capture)
}

/** As Node does: a second answer has to throw, and must not change the headers of the first. */
function refuseLateHeaders(handlerResponse: ServerResponse, capture: () => ResponseCapture): void {
  for (const [name, doing] of [
    ['setHeader', 'set'],
    ['appendHeader', 'append'],
    ['removeHeader', 'remove'],
  ] as const) {
    const method = handlerResponse[name] as ResponseMethod
    const replaced = (...args: unknown[]): unknown => {
      const now = capture()
      if (!now.isPassing && now.headersSent) throw headersSent(doing)
      return method.apply(handlerResponse, args)
    }
    Object.defineProperty(handlerResponse, name, { configurable: true, writable: true, value: replaced })
  }
}
