import { Readable } from 'node:stream'
import type { Locks } from '../locks.js'
import { Idempotency, type IdempotencyOptions, type Verdict, type WholeResponse } from './idempotency.js'

/** The part of a Fastify request that is used. */
export interface FastifyKeyedRequest {
  method: string
  url: string
  headers: Record<string, string | string[] | undefined>
  body: unknown
}

/** The part of a Fastify reply that is used. */
export interface FastifyWholeReply {
  statusCode: number
  code(status: number): unknown
  header(name: string, value: string): unknown
  send(body: unknown): unknown
  getHeaders(): Record<string, number | string | string[] | undefined>
}

/** The part of a Fastify instance that is used. */
export interface FastifyApp {
  /** Its hooks differ in what they are called with. */
  addHook(name: never, hook: never): unknown
}

/** A Fastify plugin. */
export type FastifyPlugin = (app: FastifyApp, options: unknown, done: () => void) => void

/** A request that is being served. */
interface Serving {
  respond: (response: WholeResponse) => void
  abandon: (error: Error) => void
  verdict: Promise<Verdict>
}

/**
 * A plugin for Fastify: requests with the same `Idempotency-Key` are served once, and a repetition gets the same response.
 * Register it where it should apply; it covers the routes of that instance.
 *
 * @example
 * ```ts
 * app.register(idempotentFastify(locks))
 * ```
 */
export function idempotentFastify<Req extends FastifyKeyedRequest, Rep extends FastifyWholeReply>(
  locks: Locks,
  options: IdempotencyOptions<[Req, Rep]> = {},
): FastifyPlugin {
  const idempotency = new Idempotency<[Req, Rep]>(locks, options)
  const serving = new WeakMap<object, Serving>()

  const plugin: FastifyPlugin = (app, _, done) => {
    const on = (name: string, hook: (request: Req, reply: Rep, payload: unknown) => Promise<unknown>): unknown =>
      app.addHook(name as never, hook as never)
    on('preHandler', async (request, reply) => {
      if (!idempotency.concerns(request.method)) return undefined
      const verdict = await begin(idempotency, serving, request, reply)
      if (verdict?.kind !== 'answer') return undefined
      const { status, headers, body } = verdict.response
      reply.code(status)
      for (const [name, value] of headers) reply.header(name, value)
      const typed = headers.some(([name]) => name.toLowerCase() === 'content-type')
      // Fastify gives bytes a type of its own if they have none; a stream stays without.
      reply.send(body.length === 0 ? undefined : typed ? body : Readable.from([body]))
      return reply
    })
    on('onSend', async (request, reply, payload) => {
      const mine = serving.get(request)
      if (!mine) return payload
      serving.delete(request)
      const body = await wholeOf(payload)
      mine.respond({ status: reply.statusCode, headers: headersOf(reply), body })
      // Sent when it has been recorded: what could not be recorded must not look as if it had been.
      await mine.verdict
      return payload === null || payload === undefined ? payload : body
    })
    on('onResponse', async (request) => {
      serving.get(request)?.abandon(new Error('the response was not sent through Fastify'))
      serving.delete(request)
    })
    done()
  }
  // Like fastify-plugin: the hooks are for the instance it is registered on, not for a child of it.
  return Object.assign(plugin, { [Symbol.for('skip-override')]: true })
}

/** Undefined: this request is the first with its key, and goes on to its handler. */
async function begin<Req extends FastifyKeyedRequest, Rep extends FastifyWholeReply>(
  idempotency: Idempotency<[Req, Rep]>,
  serving: WeakMap<object, Serving>,
  request: Req,
  reply: Rep,
): Promise<Verdict | undefined> {
  const { method, url, headers } = request
  const keyed = {
    method,
    url,
    key: textOf(headers[idempotency.header]),
    scope: await idempotency.scope([request, reply], textOf(headers['authorization'])),
    body: () => bodyOf(request.body),
  }
  let respond!: Serving['respond']
  let abandon!: Serving['abandon']
  const responded = new Promise<WholeResponse>((resolve, reject) => {
    respond = resolve
    abandon = reject
  })
  let goOn!: (verdict: undefined) => void
  const first = new Promise<undefined>((resolve) => (goOn = resolve))
  const verdict = idempotency.serve(keyed, () => {
    goOn(undefined)
    return responded
  })
  serving.set(request, { respond, abandon, verdict })
  const outcome = await Promise.race([first, verdict])
  // Not to become an unhandled rejection where no response is ever sent.
  verdict.catch(() => {})
  if (outcome) serving.delete(request)
  return outcome
}

function textOf(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header.join(', ') : header
}

function bodyOf(body: unknown): string | Uint8Array {
  if (body === undefined || body === null) return ''
  return typeof body === 'string' || body instanceof Uint8Array ? body : JSON.stringify(body)
}

function headersOf(reply: FastifyWholeReply): [string, string][] {
  return Object.entries(reply.getHeaders()).flatMap(([name, value]) =>
    [value].flat().flatMap((one): [string, string][] => (one === undefined ? [] : [[name, String(one)]])),
  )
}

async function wholeOf(payload: unknown): Promise<Buffer> {
  if (payload === null || payload === undefined) return Buffer.alloc(0)
  if (typeof payload === 'string') return Buffer.from(payload)
  if (payload instanceof Uint8Array) return Buffer.from(payload)
  const chunks: Buffer[] = []
  for await (const chunk of payload as AsyncIterable<Uint8Array | string>) chunks.push(Buffer.from(chunk))
  return Buffer.concat(chunks)
}
