import type { ServerResponse } from 'node:http'
import { headersSent, type ResponseCapture, type ResponseMethods } from './response-capture.js'

type Call = (...args: unknown[]) => unknown

/** Makes everything that is written to this response go through `capture`, which sends it with the methods returned. */
export function interceptInPlace(response: ServerResponse, capture: () => ResponseCapture): ResponseMethods {
  const { write, end, writeHead, flushHeaders } = response
  const own = { write, end, writeHead, flushHeaders }
  intercept(response, capture, (name) => (own as unknown as Record<string, Call>)[name])
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

/** Without `own` methods a response is nothing but its capture. */
export function intercept(
  front: ServerResponse,
  capture: () => ResponseCapture,
  own: (name: string) => Call | undefined,
): void {
  const override = (name: string, ours: Call): void => {
    const replaced = (...args: unknown[]): unknown => {
      const method = capture().isPassing ? own(name) : undefined
      return method ? method.apply(front, args) : ours(...args)
    }
    Object.defineProperty(front, name, { configurable: true, writable: true, value: replaced })
  }
  override('write', (chunk, encoding, done) => capture().write(chunk, encoding, done as never))
  override('end', (chunk, encoding, done) => {
    capture().end(chunk, encoding, done as never)
    return front
  })
  override('writeHead', (status, ...rest) => {
    capture().writeHead(status as number, rest)
    return front
  })
  override('flushHeaders', () => capture().flushHeaders())
  refuseLateHeaders(front, capture)
}

/** As Node does: whoever answers a second time must notice, and must not change what the first answer says. */
function refuseLateHeaders(front: ServerResponse, capture: () => ResponseCapture): void {
  for (const [name, doing] of [
    ['setHeader', 'set'],
    ['appendHeader', 'append'],
    ['removeHeader', 'remove'],
  ] as const) {
    const method = front[name] as Call
    const replaced = (...args: unknown[]): unknown => {
      const now = capture()
      if (!now.isPassing && now.headersSent) throw headersSent(doing)
      return method.apply(front, args)
    }
    Object.defineProperty(front, name, { configurable: true, writable: true, value: replaced })
  }
}
