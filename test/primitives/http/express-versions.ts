/** The real Express 4 and 5, which are loaded without their types. */
import { createRequire } from 'node:module'
import { createServer, type IncomingMessage, type ServerOptions, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { onTestFinished } from 'vitest'

export interface ExpressRequest extends IncomingMessage {
  body: Record<string, unknown>
  path: string
  headers: Record<string, string | undefined>
}

export interface ExpressResponse extends ServerResponse {
  status(code: number): this
  json(body: unknown): this
  send(body?: unknown): this
  set(name: string, value: string): this
}

export type Next = (error?: unknown) => void
export type ExpressHandler = (request: ExpressRequest, response: ExpressResponse, next: Next) => unknown
type ErrorHandler = (error: Error, request: ExpressRequest, response: ExpressResponse, next: Next) => unknown

export interface ExpressApp {
  (request: IncomingMessage, response: ServerResponse, next?: Next): unknown
  set(name: string, value: unknown): void
  use(...handlers: (string | ExpressHandler | ErrorHandler)[]): void
  get(path: string, ...handlers: ExpressHandler[]): void
  post(path: string, ...handlers: ExpressHandler[]): void
  all(path: string, ...handlers: ExpressHandler[]): void
}

type Express = (() => ExpressApp) & { json(): ExpressHandler }

const load = createRequire(import.meta.url)
export const expresses: [string, Express][] = [
  ['Express 5', load('express') as Express],
  ['Express 4', load('express4') as Express],
]

/** Its address. */
export async function listen(
  app: (request: IncomingMessage, response: ServerResponse) => unknown,
  options: ServerOptions = {},
): Promise<string> {
  const server = createServer(options, (request, response) => void app(request, response))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** As the usual middleware for time-outs does it: it ends the response, and does not know of the handler. */
export const timeOut =
  (ms: number, status = 503): ExpressHandler =>
  (_, response, next) => {
    const timer = setTimeout(() => {
      if (!response.headersSent) response.status(status).end('timed out')
    }, ms)
    response.on('finish', () => clearTimeout(timer))
    next()
  }

export interface Answer {
  status: number
  text: string
  headers: Headers
  replayed: boolean
}

/** One POST with a key. Rejects if the connection breaks. */
export async function post(
  url: string,
  key: string,
  more: Omit<RequestInit, 'headers'> & { headers?: Record<string, string> } = {},
): Promise<Answer> {
  const headers = { 'idempotency-key': key, 'content-type': 'application/json' }
  const response = await fetch(url, {
    method: 'POST',
    body: '{"a":1}',
    ...more,
    headers: { ...headers, ...more.headers },
  })
  const replayed = response.headers.get('idempotent-replayed') === 'true'
  return { status: response.status, text: await response.text(), headers: response.headers, replayed }
}

/** A promise and what settles it. */
export function gate(): { opened: Promise<void>; open: () => void } {
  let open = (): void => {}
  const opened = new Promise<void>((resolve) => (open = resolve))
  return { opened, open }
}
