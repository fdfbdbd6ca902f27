import { InvalidOptionError } from '../errors.js'
import type { Locks } from '../locks.js'
import { Idempotency, type IdempotencyOptions } from './idempotency.js'
import type { IdempotentRun } from './idempotent-run.js'
import type { CapturedResponse, WholeResponse } from './recorded-response.js'

/** Responses with these have no body, and must be made without one. */
const BODILESS = new Set([101, 204, 205, 304])

/**
 * A Fetch-style handler that serves requests with the same `Idempotency-Key` once: a repetition gets the same response. The
 * key is in progress for as long as the handler runs. Bun, Deno, Hono (`(c) => createOrder(c.req.raw)`), Next.js.
 *
 * @example
 * ```ts
 * export const POST = idempotentFetch(locks, createOrder, { scope: (request) => userOf(request) })
 * ```
 */
export function idempotentFetch<A extends [Request, ...unknown[]]>(
  locks: Locks,
  handler: (...args: A) => Response | Promise<Response>,
  options: IdempotencyOptions<A>,
): (...args: A) => Promise<Response> {
  const idempotency = new Idempotency<A>(locks, options)
  if (typeof handler !== 'function') throw new InvalidOptionError('handler', handler, 'a function')
  return async (...args) => {
    const [request] = args
    if (!idempotency.concerns(request.method)) return handler(...args)
    const url = new URL(request.url)
    const decision = await idempotency.begin({
      args,
      method: request.method,
      url: url.pathname + url.search,
      key: request.headers.get(idempotency.header) ?? undefined,
      // A body that was read before cannot be read again: method and URL alone then tell requests apart.
      body: async () => (request.bodyUsed ? '' : new Uint8Array(await request.clone().arrayBuffer())),
    })
    if (decision.kind === 'pass') return handler(...args)
    if (decision.kind === 'answer') return responseOf(decision.response)
    return serve(decision.run, idempotency.maxBytes, request.signal, async () => handler(...args))
  }
}

async function serve(
  run: IdempotentRun,
  maxBytes: number,
  left: AbortSignal | undefined,
  handler: () => Promise<Response>,
): Promise<Response> {
  let response: Response
  try {
    const returned = handler()
    run.follow(returned)
    response = await returned
  } catch (error) {
    await run.release()
    throw error
  }
  try {
    return await settle(run, maxBytes, left, response)
  } catch (error) {
    // The handler has run, and its return value cannot be sent: the key ends by the ttl, and is not renewed for ever.
    run.abandon()
    throw error
  }
}

/** Returns the response for the client: recorded, or a stream whose end waits for the record. */
async function settle(
  run: IdempotentRun,
  maxBytes: number,
  left: AbortSignal | undefined,
  response: Response,
): Promise<Response> {
  if (typeof response?.status !== 'number') throw new TypeError('the handler of idempotentFetch returned no Response')
  const { status, statusText: message } = response
  if (response.type === 'error' || !run.recordable(status)) {
    await run.unrecorded(status)
    return response
  }
  if (response.bodyUsed) throw new TypeError('the body of the Response has been read before')
  const head = { status, message, headers: [...response.headers] as [string, string][] }
  const capture = new BodyCapture(response.body?.getReader(), maxBytes)
  if (!(await capture.readAtOnce())) {
    const record = (): Promise<void> => run.record({ ...head, body: capture.body })
    const broken = (): void => run.abandon()
    // A server whose client left may neither read the response nor cancel it: without this, the key would be renewed
    // for ever.
    left?.addEventListener('abort', broken, { once: true })
    if (left?.aborted) broken()
    return new Response(capture.stream(record, broken), response)
  }
  const captured: CapturedResponse = { ...head, body: capture.body }
  await run.record(captured)
  return captured.body ? responseOf({ ...head, body: captured.body }) : new Response(capture.held(), response)
}

/** The body of a response on its way to the client, of which `maxBytes` are remembered. */
class BodyCapture {
  readonly #reader: ReadableStreamDefaultReader<Uint8Array> | undefined
  readonly #maxBytes: number
  #chunks: Uint8Array[] = []
  #total = 0
  /** Chunks that were read ahead, and are still to be sent. */
  #ahead: Uint8Array[] = []
  #pending: ReturnType<ReadableStreamDefaultReader<Uint8Array>['read']> | undefined

  constructor(reader: ReadableStreamDefaultReader<Uint8Array> | undefined, maxBytes: number) {
    this.#reader = reader
    this.#maxBytes = maxBytes
  }

  /** Undefined: larger than `maxBytes`. */
  get body(): Uint8Array | undefined {
    return this.#total > this.#maxBytes ? undefined : Buffer.concat(this.#chunks)
  }

  held(): Buffer {
    return Buffer.concat(this.#ahead)
  }

  /** Reads the chunks that are ready, up to one turn of the event loop for each. True: the body is complete. */
  async readAtOnce(): Promise<boolean> {
    if (!this.#reader) return true
    while (this.#total <= this.#maxBytes) {
      this.#pending ??= this.#reader.read()
      const turn = new Promise<undefined>((resolve) => setImmediate(() => resolve(undefined)))
      const result = await Promise.race([this.#pending, turn])
      if (!result) {
        // The reader of the stream gets the error; without a reader, it must not end the process as an unhandled rejection.
        this.#pending.catch(() => {})
        return false
      }
      this.#pending = undefined
      if (result.done) return true
      this.#ahead.push(this.#remember(result.value))
    }
    return false
  }

  /** The rest, as it comes. Its end waits for the record; without one the stream breaks, and does not look complete. */
  stream(record: () => Promise<void>, broken: () => void): ReadableStream<Uint8Array> {
    const reader = this.#reader as ReadableStreamDefaultReader<Uint8Array>
    let cancelled = false
    return new ReadableStream<Uint8Array>({
      pull: async (controller) => {
        const ahead = this.#ahead.shift()
        if (ahead) return controller.enqueue(ahead)
        const read = this.#pending ?? reader.read()
        this.#pending = undefined
        try {
          const result = await read
          if (!result.done) return controller.enqueue(this.#remember(result.value))
          // A read that `cancel` cut short looks like the end, but the chunks so far are not the whole response: do not
          // record them.
          if (cancelled) return
          await record()
        } catch (error) {
          broken()
          throw error
        }
        controller.close()
      },
      cancel: (reason) => {
        cancelled = true
        broken()
        return reader.cancel(reason)
      },
    })
  }

  #remember(given: Uint8Array): Uint8Array {
    const chunk = bytesOf(given)
    this.#total += chunk.byteLength
    if (this.#total > this.#maxBytes) this.#chunks = []
    else this.#chunks.push(chunk)
    return chunk
  }
}

/** A stream of strings is no body by the specification, but common: servers on `node:http` send it. */
function bytesOf(chunk: unknown): Uint8Array {
  if (typeof chunk === 'string') return new TextEncoder().encode(chunk)
  if (chunk instanceof Uint8Array) return chunk
  throw new TypeError('the body of a Response has to be a stream of Uint8Array')
}

function responseOf({ status, message, headers, body }: WholeResponse): Response {
  return new Response(BODILESS.has(status) ? null : Buffer.from(body), { status, statusText: message, headers })
}
