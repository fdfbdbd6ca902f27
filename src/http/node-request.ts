import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Idempotency, KeyedRequest } from './idempotency.js'
import type { WholeResponse } from './recorded-response.js'
import { apply, endWith, headOf } from './response-capture.js'

/** A request of `node:http`, with the properties that Express adds. */
export interface NodeRequest extends IncomingMessage {
  ip?: string | undefined
  path?: string
  originalUrl?: string
  body?: unknown
}

/** Middleware of Express, Connect and others. */
export type NodeMiddleware<Req extends NodeRequest, Res extends ServerResponse> = (
  request: Req,
  response: Res,
  next: (error?: unknown) => void,
) => void

export function keyedRequest<Req extends NodeRequest, Res extends ServerResponse>(
  idempotency: Idempotency<[Req, Res]>,
  request: Req,
  response: Res,
): KeyedRequest<[Req, Res]> {
  return {
    args: [request, response],
    method: request.method ?? '',
    url: request.originalUrl ?? request.url ?? '',
    key: textOf(request.headers[idempotency.header]),
    body: () => bytesOfBody(request.body),
  }
}

/** The body as the body parser left it. */
export function bytesOfBody(body: unknown): string | Uint8Array {
  if (body === undefined || body === null) return ''
  return typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body)
}

export function textOf(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header.join(', ') : header
}

/** Whether other code has answered the request meanwhile, or its client has left. */
export function isAnswered(response: ServerResponse): boolean {
  return response.headersSent || response.writableEnded || response.destroyed
}

/** Sends a complete response, unless the request has been answered meanwhile. */
export function sendWhole(response: ServerResponse, { body, headers, ...head }: WholeResponse): void {
  if (isAnswered(response)) return
  const before = headOf(response)
  const own = response.getHeaderNames().map((name) => [name, response.getHeader(name)] as const)
  apply(response, { ...head, headers })
  for (const [name, value] of own) if (value !== undefined && !response.hasHeader(name)) response.setHeader(name, value)
  try {
    endWith(response.end, response, body)
  } catch (error) {
    // Middleware in front threw when the head was sent: the answer to its error must not say that it is a repetition.
    if (!response.headersSent) apply(response, before)
    throw error
  }
}

/** For `next`, which takes nothing (a `throw undefined`) for "go on to the next handler". */
export function errorFrom(thrown: unknown): unknown {
  return thrown || new Error('the handler rejected without an error')
}
