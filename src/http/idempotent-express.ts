import type { OutgoingHttpHeader, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { Locks } from '../locks.js'
import { Idempotency, type IdempotencyOptions, type WholeResponse } from './idempotency.js'
import type { NodeMiddleware, NodeRequest } from './rate-limit.js'

/**
 * Middleware for Express (behind its body parser), and whatever else is called with `(request, response, next)`: requests
 * with the same `Idempotency-Key` are served once, and a repetition gets the same response. The response is sent when it
 * has been recorded.
 *
 * @example
 * ```ts
 * app.post('/orders', express.json(), idempotentExpress(locks), createOrder)
 * ```
 */
export function idempotentExpress<Req extends NodeRequest, Res extends ServerResponse>(
  locks: Locks,
  options: IdempotencyOptions<[Req, Res]> = {},
): NodeMiddleware<Req, Res> {
  const idempotency = new Idempotency<[Req, Res]>(locks, options)
  return (request, response, next) => {
    if (idempotency.concerns(request.method)) void serve(idempotency, request, response, next)
    else next()
  }
}

async function serve<Req extends NodeRequest, Res extends ServerResponse>(
  idempotency: Idempotency<[Req, Res]>,
  request: Req,
  response: Res,
  next: (error?: unknown) => void,
): Promise<void> {
  let capture: Capture | undefined
  try {
    const keyed = {
      method: request.method ?? '',
      url: request.originalUrl ?? request.url ?? '',
      key: textOf(request.headers[idempotency.header]),
      scope: await idempotency.scope([request, response], request.headers.authorization),
      body: () => bodyOf(request),
    }
    const verdict = await idempotency.serve(keyed, () => {
      capture = new Capture(response)
      next()
      return capture.whole
    })
    if (verdict.kind === 'pass') next()
    else if (capture) capture.send()
    else send(response, verdict.response)
  } catch (error) {
    capture?.restore()
    next(error)
  }
}

/** As the body parser left it. */
function bodyOf(request: NodeRequest): string | Uint8Array {
  const { body } = request
  if (body === undefined) return ''
  return typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body)
}

function textOf(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header.join(', ') : header
}

function send(response: ServerResponse, { status, headers, body }: WholeResponse): void {
  response.statusCode = status
  for (const [name, value] of headers) response.setHeader(name, value)
  response.end(body)
}

type Done = (error?: Error | null) => void

/** Holds back what a handler sends, until it is known whether it may be sent. */
class Capture {
  readonly whole: Promise<WholeResponse>
  readonly #response: ServerResponse
  readonly #own: Pick<ServerResponse, 'write' | 'end' | 'writeHead' | 'flushHeaders'>
  readonly #chunks: Buffer[] = []
  #ended!: (whole: WholeResponse) => void

  constructor(response: ServerResponse) {
    this.#response = response
    const { write, end, writeHead, flushHeaders } = response
    this.#own = { write, end, writeHead, flushHeaders }
    this.whole = new Promise((resolve) => (this.#ended = resolve))
    response.write = ((chunk: unknown, encoding?: unknown, done?: Done) => {
      this.#add(chunk, encoding)
      callback(encoding, done)
      return true
    }) as typeof write
    response.end = ((chunk?: unknown, encoding?: unknown, done?: Done) => {
      if (typeof chunk !== 'function') this.#add(chunk, encoding)
      callback(typeof chunk === 'function' ? chunk : encoding, done)
      this.#end()
      return response
    }) as typeof end
    response.writeHead = ((status: number, ...rest: unknown[]) => {
      response.statusCode = status
      setAll(response, rest.at(-1))
      return response
    }) as typeof writeHead
    response.flushHeaders = () => {}
  }

  /** To the client, as the handler meant it. */
  send(): void {
    this.restore()
    this.#response.end(Buffer.concat(this.#chunks))
  }

  restore(): void {
    Object.assign(this.#response, this.#own)
  }

  #add(chunk: unknown, encoding: unknown): void {
    if (typeof chunk === 'string') {
      this.#chunks.push(Buffer.from(chunk, typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8'))
    } else if (chunk instanceof Uint8Array) this.#chunks.push(Buffer.from(chunk))
  }

  #end(): void {
    const headers: [string, string][] = []
    for (const [name, value] of Object.entries(this.#response.getHeaders())) {
      for (const one of [value].flat()) if (one !== undefined) headers.push([name, String(one)])
    }
    this.#ended({ status: this.#response.statusCode, headers, body: Buffer.concat(this.#chunks) })
  }
}

function callback(encoding: unknown, done: Done | undefined): void {
  const call = typeof encoding === 'function' ? (encoding as Done) : done
  if (call) process.nextTick(call)
}

/** `writeHead` takes headers as an object, or as a flat list of names and values. */
function setAll(response: ServerResponse, headers: unknown): void {
  if (Array.isArray(headers)) {
    for (let i = 0; i + 1 < headers.length; i += 2) response.setHeader(String(headers[i]), headers[i + 1] as string)
  } else if (typeof headers === 'object' && headers !== null) {
    for (const [name, value] of Object.entries(headers as OutgoingHttpHeaders)) {
      if (value !== undefined) response.setHeader(name, value as OutgoingHttpHeader as string)
    }
  }
}
