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
    const verdict = await idempotency.begin({
      args,
      method: request.method,
      url: url.pathname + url.search,
      key: request.headers.get(idempotency.header) ?? undefined,
      // A body that somebody has read before us cannot be read again: then method and URL tell requests apart.
      body: async () => (request.bodyUsed ? '' : new Uint8Array(await request.clone().arrayBuffer())),
    })
    if (verdict.kind === 'pass') return handler(...args)
    if (verdict.kind === 'answer') return responseOf(verdict.response)
    return serve(verdict.run, idempotency.maxBytes, async () => handler(...args))
  }
}

async function serve(run: IdempotentRun, maxBytes: number, handler: () => Promise<Response>): Promise<Response> {
  let response: Response
  try {
    const returned = handler()
    run.follow(returned)
    response = await returned
  } catch (error) {
    await run.release()
    throw error
  }
  const { status, statusText: message } = response
  if (response.type === 'error' || !run.recordable(status)) {
    await run.unrecorded(status)
    return response
  }
  const head = { status, message, headers: [...response.headers] as [string, string][] }
  const capture = new BodyCapture(response.body?.getReader(), maxBytes)
  const record = (): Promise<void> => run.record({ ...head, body: capture.body })
  let whole: boolean
  try {
    whole = await capture.readAtOnce()
  } catch (error) {
    run.abandon()
    throw error
  }
  if (!whole)
    return new Response(
      capture.stream(record, () => run.abandon()),
      response,
    )
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
  /** What was read ahead, and is still to be sent. */
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

  /** Reads what is there without waiting for anything but the body itself. True: that was all of it. */
  async readAtOnce(): Promise<boolean> {
    if (!this.#reader) return true
    while (this.#total <= this.#maxBytes) {
      this.#pending ??= this.#reader.read()
      const turn = new Promise<undefined>((resolve) => setImmediate(() => resolve(undefined)))
      const result = await Promise.race([this.#pending, turn])
      if (!result) {
        // Whoever pulls the stream hears of an error; a stream that nobody pulls must not end the process.
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
        } catch (error) {
          broken()
          throw error
        }
        // A read that `cancel` cut short looks like the end, and what came so far is not the response.
        if (cancelled) return
        await record()
        controller.close()
      },
      cancel: (reason) => {
        cancelled = true
        broken()
        return reader.cancel(reason)
      },
    })
  }

  #remember(chunk: Uint8Array): Uint8Array {
    this.#total += chunk.byteLength
    if (this.#total > this.#maxBytes) this.#chunks = []
    else this.#chunks.push(chunk)
    return chunk
  }
}

function responseOf({ status, message, headers, body }: WholeResponse): Response {
  return new Response(BODILESS.has(status) ? null : Buffer.from(body), { status, statusText: message, headers })
}
