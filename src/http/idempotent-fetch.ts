import type { Locks } from '../locks.js'
import { Idempotency, type IdempotencyOptions, type WholeResponse } from './idempotency.js'

/** Responses with these have no body, and must be made without one. */
const BODILESS = new Set([101, 204, 205, 304])

/**
 * A Fetch-style handler that serves requests with the same `Idempotency-Key` once: a repetition gets the same response.
 *
 * @example
 * ```ts
 * export const POST = idempotentFetch(locks, async (request) => Response.json(await order(await request.json())))
 * ```
 */
export function idempotentFetch<A extends [Request, ...unknown[]]>(
  locks: Locks,
  handler: (...args: A) => Response | Promise<Response>,
  options: IdempotencyOptions<A> = {},
): (...args: A) => Promise<Response> {
  const idempotency = new Idempotency<A>(locks, options)
  return async (...args) => {
    const [request] = args
    if (!idempotency.concerns(request.method)) return handler(...args)
    const url = new URL(request.url)
    const keyed = {
      method: request.method,
      url: url.pathname + url.search,
      key: request.headers.get(idempotency.header) ?? undefined,
      scope: await idempotency.scope(args, request.headers.get('authorization') ?? undefined),
      body: async () => new Uint8Array(await request.clone().arrayBuffer()),
    }
    const verdict = await idempotency.serve(keyed, async () => wholeOf(await handler(...args)))
    return verdict.kind === 'pass' ? handler(...args) : responseOf(verdict.response)
  }
}

async function wholeOf(response: Response): Promise<WholeResponse> {
  const body = new Uint8Array(await response.arrayBuffer())
  return { status: response.status, headers: [...response.headers], body }
}

function responseOf({ status, headers, body }: WholeResponse): Response {
  return new Response(BODILESS.has(status) ? null : Buffer.from(body), { status, headers })
}
