import { createHash } from 'node:crypto'
import type { ServerResponse } from 'node:http'
import { InvalidOptionError } from '../errors.js'
import type { Limiter, RateLimitResult } from '../primitives/limiter/limiter.js'
import { addressKey } from './client-address.js'
import { knownOptions } from './internals.js'
import { errorFrom, type NodeMiddleware, type NodeRequest } from './node-request.js'
import { PROBLEM_TYPE, type Problem, problemBody } from './problem.js'
import { rateLimitHeaders } from './rate-limit-headers.js'

/** Options of the rate limiting middleware. `A` is what the handler of your framework is called with. */
export interface RateLimitOptions<A extends unknown[]> {
  /** The client to count against. Default: its address, where the framework provides it (IPv6: its /64). */
  key?: (...args: A) => string | Promise<string>
  /** The cost of this request. Default 1. */
  cost?: number | ((...args: A) => number | Promise<number>)
  /** True: this request is not counted and not limited. OPTIONS never is: browsers send it by themselves. */
  skip?: (...args: A) => boolean | Promise<boolean>
  /** The JSON body for a refused client, instead of a problem description. */
  body?: (result: RateLimitResult) => unknown
}

/** The headers for a request, and the answer if it is refused. */
interface LimitDecision {
  headers: Record<string, string>
  refusal?: { status: number; type: string; body: string }
}

/**
 * The longest key in characters that is stored as it is; longer ones (a token as a key) are hashed, to fit the limit of
 * the stores.
 */
const MAX_KEY_LENGTH = 200

const OPTIONS = ['key', 'cost', 'skip', 'body']

/** Checked when the middleware is made: otherwise every request fails, and the first of them tells. */
function checkOptions<A extends unknown[]>(limiter: Limiter, options: RateLimitOptions<A>): void {
  if (typeof limiter?.take !== 'function')
    throw new InvalidOptionError('limiter', limiter, 'what locks.limiter returns')
  const { key, cost, skip, body } = knownOptions(options, OPTIONS)
  for (const [name, value] of Object.entries({ key, skip, body })) {
    if (value !== undefined && typeof value !== 'function') throw new InvalidOptionError(name, value, 'a function')
  }
  if (cost !== undefined && typeof cost !== 'function' && typeof cost !== 'number') {
    throw new InvalidOptionError('cost', cost, 'a number or a function')
  }
}

async function decide<A extends [{ method?: string | undefined }, ...unknown[]]>(
  limiter: Limiter,
  options: RateLimitOptions<A>,
  keyOf: (...args: A) => string | Promise<string>,
  args: A,
): Promise<LimitDecision | undefined> {
  const { key = keyOf, cost = 1, skip, body } = options
  if (args[0].method === 'OPTIONS' || (await skip?.(...args))) return undefined
  const wanted = await key(...args)
  if (typeof wanted !== 'string') throw new InvalidOptionError('key', wanted, 'a function that returns a string')
  const fitting = wanted.length > MAX_KEY_LENGTH ? createHash('sha256').update(wanted).digest('hex') : wanted
  const result = await limiter.take(fitting, typeof cost === 'function' ? await cost(...args) : cost)
  const headers = rateLimitHeaders(limiter, result)
  if (result.allowed) return { headers }
  const problem = problemOf(result)
  const refusal = body
    ? { status: problem.status, type: 'application/json', body: JSON.stringify(body(result)) }
    : { status: problem.status, type: PROBLEM_TYPE, body: problemBody(problem) }
  return { headers, refusal }
}

/** Too many requests are the client's fault, an outage is the server's: 429 and 503 are never confused. */
function problemOf({ retryAfterMs, storeError }: RateLimitResult): Problem {
  const headers = {}
  if (storeError) {
    const detail = 'The service cannot tell whether this request is within its limits. Try again later.'
    return { status: 503, title: 'Service Unavailable', detail, headers }
  }
  const when =
    retryAfterMs < Number.POSITIVE_INFINITY
      ? `Try again in ${Math.max(Math.ceil(retryAfterMs / 1_000), 1)} s.`
      : 'This request is more than the limit ever allows.'
  return { status: 429, title: 'Too Many Requests', detail: when, headers }
}

/**
 * Limits a Fetch-style handler: `(Request, …) => Response`, as Bun, Deno, Hono, Next.js route handlers and others have it.
 *
 * @example
 * ```ts
 * export default { fetch: limitFetch(limiter, handler, { key: (request) => request.headers.get('x-api-key') ?? 'none' }) }
 * ```
 */
export function limitFetch<A extends [Request, ...unknown[]]>(
  limiter: Limiter,
  handler: (...args: A) => Response | Promise<Response>,
  options: RateLimitOptions<A> = {},
): (...args: A) => Promise<Response> {
  checkOptions(limiter, options)
  if (typeof handler !== 'function') throw new InvalidOptionError('handler', handler, 'a function')
  return async (...args) => {
    const decision = await decide(limiter, options, fetchAddress, args)
    if (decision?.refusal) {
      const { status, type, body } = decision.refusal
      return new Response(body, { status, headers: { ...decision.headers, 'Content-Type': type } })
    }
    const response = await handler(...args)
    return decision ? withHeaders(response, limiter, decision.headers) : response
  }
}

/** What a response shows of limits: the headers that its handler made, and those of each limiter. */
interface ShownLimits {
  made: Headers
  added: Map<Limiter, Record<string, string>>
}

/** A handler may return one Response again and again (204 without a body): appended headers would grow with every request. */
const shownBy = new WeakMap<Response, ShownLimits>()

function withHeaders(response: Response, limiter: Limiter, extra: Record<string, string>): Response {
  // A network error has no headers and cannot be made again.
  if (response.type === 'error') return response
  const shown = shownBy.get(response) ?? { made: new Headers(response.headers), added: new Map() }
  shown.added.set(limiter, extra)
  try {
    addLimits(response.headers, shown)
    shownBy.set(response, shown)
    return response
  } catch {
    // The headers are immutable, such as those of a response that was fetched.
    const headers = new Headers(response.headers)
    addLimits(headers, shown)
    return new Response(response.body, { status: response.status, statusText: response.statusText, headers })
  }
}

function addLimits(headers: Headers, { made, added }: ShownLimits): void {
  const all = [...added.values()]
  for (const name of new Set(all.flatMap((each) => Object.keys(each)))) {
    const values = all.map((each) => each[name]).filter((value) => value !== undefined)
    headers.set(name, joined(made.get(name) ?? undefined, values.join(', ')))
  }
}

/** Bun passes its server, Deno the address; a Request itself does not contain its origin, and headers can be forged. */
function fetchAddress(...args: [Request, ...unknown[]]): string {
  const [request, context] = args as [Request, FetchContext?]
  const address = context?.requestIP?.(request)?.address ?? context?.remoteAddr?.hostname
  if (address !== undefined) return addressKey(address)
  throw new InvalidOptionError(
    'key',
    undefined,
    'a function here: a Request does not contain the address of its client',
  )
}

interface FetchContext {
  requestIP?: (request: Request) => { address: string } | null
  remoteAddr?: { hostname?: string }
}

/**
 * Middleware for Express, and whatever else is called with `(request, response, next)`.
 *
 * @example
 * ```ts
 * app.use('/api', limitExpress(limiter, { skip: (request) => request.originalUrl === '/api/health' }))
 * ```
 */
export function limitExpress<Req extends NodeRequest, Res extends ServerResponse>(
  limiter: Limiter,
  options: RateLimitOptions<[Req, Res]> = {},
): NodeMiddleware<Req, Res> {
  checkOptions(limiter, options)
  return (request, response, next) => {
    decide(limiter, options, nodeAddress, [request, response])
      .then((decision) => {
        // A time-out answered the request, or its client left, while the store was asked: there is nothing to limit.
        if (response.writableEnded || response.destroyed) return
        if (!decision || passes(decision, response)) next()
      })
      .catch((error: unknown) => next(errorFrom(error)))
  }
}

/**
 * Tells the client where it stands, or that it is refused. Throws nothing: what the head cannot say any more is left
 * out.
 */
function passes({ headers, refusal }: LimitDecision, response: ServerResponse): boolean {
  if (response.headersSent) {
    // A refusal that cannot be sent must at least not look like a response.
    if (refusal) response.destroy()
    return !refusal
  }
  for (const [name, value] of Object.entries(headers)) {
    response.setHeader(name, name === 'Retry-After' ? value : joined(response.getHeader(name), value))
  }
  if (!refusal) return true
  response.statusCode = refusal.status
  response.setHeader('Content-Type', refusal.type)
  response.end(refusal.body)
  return false
}

/** Appends to the items of another limiter: both headers are lists. */
function joined(before: number | string | readonly string[] | undefined, value: string): string {
  return [before ?? [], value].flat().join(', ')
}

/** Express knows which proxies to trust (`trust proxy`). */
function nodeAddress(request: NodeRequest): string {
  return addressKey(request.ip ?? request.socket.remoteAddress)
}

/** The part of a Fastify request that is used. */
export interface FastifyRequestLike {
  ip: string
  method: string
  url: string
  headers: Record<string, string | string[] | undefined>
}

/** The part of a Fastify reply that is used. */
export interface FastifyReplyLike {
  sent: boolean
  getHeader(name: string): number | string | string[] | undefined
  code(status: number): unknown
  header(name: string, value: string): unknown
  send(body: string): unknown
}

/**
 * A hook for Fastify.
 *
 * @example
 * ```ts
 * app.addHook('onRequest', limitFastify(limiter))
 * ```
 */
export function limitFastify<Req extends FastifyRequestLike, Rep extends FastifyReplyLike>(
  limiter: Limiter,
  options: RateLimitOptions<[Req, Rep]> = {},
): (request: Req, reply: Rep) => Promise<unknown> {
  checkOptions(limiter, options)
  return async (request, reply) => {
    const decision = await decide(limiter, options, fastifyAddress, [request, reply])
    // The request was answered while the store was asked: Fastify stops when a hook returns the reply.
    if (reply.sent) return reply
    for (const [name, value] of Object.entries(decision?.headers ?? {})) {
      reply.header(name, name === 'Retry-After' ? value : joined(reply.getHeader(name), value))
    }
    if (!decision?.refusal) return undefined
    const { status, type, body } = decision.refusal
    reply.code(status)
    reply.header('Content-Type', type)
    reply.send(body)
    // Fastify stops when a hook returns the reply.
    return reply
  }
}

function fastifyAddress(request: FastifyRequestLike): string {
  return addressKey(request.ip)
}
