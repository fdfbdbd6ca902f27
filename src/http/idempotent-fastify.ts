import { Readable } from 'node:stream'
import type { ReadableStream as WebStream } from 'node:stream/web'
import type { Locks } from '../locks.js'
import { Idempotency, type IdempotencyOptions, type IdempotencyDecision } from './idempotency.js'
import type { IdempotentRun } from './idempotent-run.js'
import { bytesOfBody, textOf } from './node-request.js'
import { groupHeaders, type ResponseHead } from './recorded-response.js'

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
  sent: boolean
  raw: { statusMessage: string; destroyed: boolean; once(event: 'close', listener: () => void): unknown }
  hijack(): unknown
  code(status: number): unknown
  header(name: string, value: string | string[]): unknown
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

/** The run of each request that is being served. */
type RunsByRequest = WeakMap<object, IdempotentRun>

/** The state of the first response that was sent. */
type FirstSend = 'under way' | 'recorded' | 'not recorded'

/**
 * A plugin for Fastify: requests with the same `Idempotency-Key` are served once, and a repetition gets the same response.
 * Register it (with `await`) where it should apply, before the routes: a key is then in progress for as long as the handler
 * of its route runs. On routes that were there before, the key stays in progress until the ttl after a time-out.
 *
 * @example
 * ```ts
 * await app.register(idempotentFastify(locks, { scope: (request) => request.user.id }))
 * ```
 */
export function idempotentFastify<Req extends FastifyKeyedRequest, Rep extends FastifyWholeReply>(
  locks: Locks,
  options: IdempotencyOptions<[Req, Rep]>,
): FastifyPlugin {
  const idempotency = new Idempotency<[Req, Rep]>(locks, options)
  const runs: RunsByRequest = new WeakMap()
  const sent = new WeakMap<object, FirstSend>()

  const plugin: FastifyPlugin = (app, _, done) => {
    const on = (name: string, hook: (...args: [Req, Rep, unknown]) => unknown): unknown =>
      app.addHook(name as never, hook as never)
    app.addHook('onRoute' as never, ((route: FastifyRoute) => followHandler(route, runs)) as never)
    on('preHandler', async (request, reply) => {
      if (!idempotency.concerns(request.method)) return undefined
      const decision = await idempotency.begin(keyedRequest(idempotency, request, reply))
      if (decision.kind === 'pass') return undefined
      if (decision.kind === 'answer') return replyWith(reply, decision)
      return begin(runs, decision.run, request, reply)
    })
    on('onSend', async (request, reply, payload) => {
      const run = runs.get(request)
      const before = sent.get(request)
      if (!run) return payload
      if (before !== undefined) return sendAgain(run, before, reply, payload)
      sent.set(request, 'under way')
      try {
        const result = await send(run, idempotency.maxBytes, reply, payload)
        sent.set(request, result.recorded ? 'recorded' : 'not recorded')
        return result.payload
      } catch (error) {
        sent.set(request, 'not recorded')
        throw error
      }
    })
    done()
  }
  // As fastify-plugin does it: the hooks are for the instance on which it is registered, not for a child of it.
  return Object.assign(plugin, { [Symbol.for('skip-override')]: true })
}

interface FastifyRoute {
  handler: (this: unknown, request: object, reply: object) => unknown
}

/** Wraps the handler of a route: the key is in progress until the promise of the handler settles. */
function followHandler(route: FastifyRoute, runs: RunsByRequest): void {
  const { handler } = route
  route.handler = function followed(request, reply) {
    const returned = handler.call(this, request, reply)
    const run = runs.get(request)
    if (!run || typeof (returned as Promise<unknown> | undefined)?.then !== 'function') return returned
    // One promise for Fastify and for the run: a query builder runs its query again for each `then`.
    const running = Promise.resolve(returned as Promise<unknown>)
    run.follow(running)
    return returned === reply ? returned : running
  }
}

function keyedRequest<Req extends FastifyKeyedRequest, Rep extends FastifyWholeReply>(
  idempotency: Idempotency<[Req, Rep]>,
  request: Req,
  reply: Rep,
): Parameters<Idempotency<[Req, Rep]>['begin']>[0] {
  const { method, url, headers, body } = request
  const key = textOf(headers[idempotency.header])
  return { args: [request, reply], method, url, key, body: () => bytesOfBody(body) }
}

async function begin(
  runs: RunsByRequest,
  run: IdempotentRun,
  request: object,
  reply: FastifyWholeReply,
): Promise<unknown> {
  if (isOver(reply)) {
    await run.release()
    return reply
  }
  runs.set(request, run)
  // Also covers a response that was sent past Fastify (`reply.raw`) and could not be recorded: its key ends by the ttl.
  reply.raw.once('close', () => run.abandon())
  return undefined
}

/** Whether the request was answered, or its client left, while the store was asked: the handler must not start. */
function isOver(reply: FastifyWholeReply): boolean {
  // Without `hijack`, Fastify would go on to the handler although the client is gone and the hook returned the reply.
  if (!reply.sent && reply.raw.destroyed) reply.hijack()
  return reply.sent
}

function replyWith(reply: FastifyWholeReply, { response }: Extract<IdempotencyDecision, { kind: 'answer' }>): unknown {
  if (isOver(reply)) return reply
  const { status, message, headers, body } = response
  reply.code(status)
  if (message !== '') reply.raw.statusMessage = message
  for (const [name, value] of groupHeaders(headers)) reply.header(name, value)
  const typed = headers.some(([name]) => name.toLowerCase() === 'content-type')
  // Fastify gives bytes a type of its own if they have none; a stream stays without.
  reply.send(body.length === 0 ? undefined : typed ? body : Readable.from([body]))
  return reply
}

/**
 * A time-out and the handler may both send while the first of them waits for the store. The first counts; a second one must
 * not reach the client as a success that was not recorded.
 */
function sendAgain(run: IdempotentRun, before: FirstSend, reply: FastifyWholeReply, payload: unknown): unknown {
  if (before === 'under way') {
    discard(payload)
    return new Promise(() => {})
  }
  // This is the answer to an error in a hook behind this one.
  if (before === 'recorded' || !run.recordable(reply.statusCode)) return payload
  throw new Error('the request was answered before, and this response cannot be recorded')
}

async function send(
  run: IdempotentRun,
  maxBytes: number,
  reply: FastifyWholeReply,
  sent: unknown,
): Promise<{ recorded: boolean; payload: unknown }> {
  const payload = unwrap(sent, reply)
  const head: ResponseHead = {
    status: reply.statusCode,
    message: reply.raw.statusMessage ?? '',
    headers: headersOf(reply),
  }
  if (!run.recordable(head.status)) {
    await run.unrecorded(head.status)
    setHead(reply, head)
    return { recorded: false, payload }
  }
  if (isStream(payload)) {
    const stream = Readable.from(recorded(run, maxBytes, head, payload), { objectMode: false })
    // A stream that is destroyed before its first read has not opened its source, and would leave it open.
    stream.once('close', () => discard(payload))
    return { recorded: true, payload: stream }
  }
  const body = typeof payload === 'string' ? Buffer.from(payload) : (payload as Uint8Array | null | undefined)
  const bytes = body ?? new Uint8Array()
  // The response is sent after its record: one that could not be recorded must not look as if it had been.
  await run.record({ ...head, body: bytes.byteLength > maxBytes ? undefined : bytes })
  setHead(reply, head)
  return { recorded: true, payload }
}

function discard(payload: unknown): void {
  if (!isStream(payload)) return
  const { destroy, cancel, locked } = payload as Partial<Readable & WebStream>
  if (destroy) destroy.call(payload)
  else if (cancel && !locked) cancel.call(payload as WebStream).catch(() => {})
}

/** Restores the recorded head: a time-out may have set another status while the store was asked. */
function setHead(reply: FastifyWholeReply, { status, headers }: ResponseHead): void {
  reply.code(status)
  for (const [name, value] of groupHeaders(headers)) {
    // Fastify would add the cookies to those that are set already.
    if (name.toLowerCase() !== 'set-cookie') reply.header(name, value)
  }
}

/** A `Response` as payload carries a head of its own, which Fastify would apply after this hook. */
function unwrap(payload: unknown, reply: FastifyWholeReply): unknown {
  if (Object.prototype.toString.call(payload) !== '[object Response]') return payload
  const { status, headers, body } = payload as Response
  reply.code(status)
  for (const [name, value] of groupHeaders([...headers] as [string, string][])) reply.header(name, value)
  return body
}

function isStream(payload: unknown): payload is AsyncIterable<Uint8Array | string> {
  if (typeof payload !== 'object' || payload === null || payload instanceof Uint8Array) return false
  return typeof (payload as Readable).pipe === 'function' || Symbol.asyncIterator in (payload as WebStream)
}

/**
 * Passes chunks on, and ends when the response has been recorded. If that fails, the stream breaks and does not look
 * complete.
 */
async function* recorded(
  run: IdempotentRun,
  maxBytes: number,
  head: ResponseHead,
  payload: AsyncIterable<Uint8Array | string>,
): AsyncGenerator<Buffer> {
  let chunks: Buffer[] = []
  let total = 0
  for await (const chunk of payload) {
    const bytes = Buffer.from(chunk as Uint8Array)
    total += bytes.length
    if (total > maxBytes) chunks = []
    else chunks.push(bytes)
    yield bytes
  }
  await run.record({ ...head, body: total > maxBytes ? undefined : Buffer.concat(chunks) })
}

function headersOf(reply: FastifyWholeReply): [string, string][] {
  return Object.entries(reply.getHeaders()).flatMap(([name, value]) =>
    [value].flat().flatMap((one): [string, string][] => (one === undefined ? [] : [[name, String(one)]])),
  )
}
