import { createHash } from 'node:crypto'
import { InvalidOptionError, LockTimeoutError } from '../errors.js'
import type { Duration } from '../kit/duration.js'
import type { Locks } from '../locks.js'
import { PROBLEM_TYPE, type Problem, problemBody } from './problem.js'

/** Options of the idempotency middleware. `A` is what the handler of your framework is called with. */
export interface IdempotencyOptions<A extends unknown[]> {
  /** Default `Idempotency-Key`. */
  header?: string
  /** Which methods it is for; others pass. Default POST and PATCH: the rest is idempotent by itself. */
  methods?: readonly string[]
  /** Refuse requests without a key with 400. Default false: they pass. */
  required?: boolean
  /** How long a response is remembered. Default 1d. */
  retain?: Duration
  /** A process that dies in the middle blocks its key for at most this long. */
  ttl?: Duration
  /** How long a second request waits for the first to end, before it is told 409. Default 0. */
  wait?: Duration
  /** Keys of different callers are kept apart by this. Default: the `Authorization` header. */
  scope?: (...args: A) => string | Promise<string>
  /** Which responses are final. Default: those below 500, so that a client may try again after our own failure. */
  record?: (status: number) => boolean
}

/** A request, as far as idempotency goes. */
export interface KeyedRequest {
  method: string
  /** Path and query. */
  url: string
  key: string | undefined
  scope: string
  /** What was sent. */
  body: () => Uint8Array | string | Promise<Uint8Array | string>
}

/** A response, whole. */
export interface WholeResponse {
  status: number
  headers: [string, string][]
  body: Uint8Array
}

/** What the caller of the middleware has to do: pass the request on, or answer it. */
export type Verdict =
  | { kind: 'pass' }
  | { kind: 'ours'; response: WholeResponse }
  | { kind: 'answer'; response: WholeResponse }

/** What is remembered. */
interface Remembered {
  fingerprint: string
  status: number
  headers: [string, string][]
  /** Absent: too large to be remembered. */
  body?: string
  encoding?: 'utf8' | 'base64'
}

const LARGEST_BODY = 524_288
const REPLAYED = 'Idempotent-Replayed'

/** Belong to one connection or one moment; and a cookie that opens a session is nothing to keep in a lock store. */
const NOT_REPLAYED = new Set([
  'connection',
  'content-length',
  'date',
  'keep-alive',
  'retry-after',
  'set-cookie',
  'transfer-encoding',
  'ratelimit',
  'ratelimit-policy',
])

/** A response that is for this client and not for the record. */
class Unrecorded extends Error {
  readonly response: WholeResponse

  constructor(response: WholeResponse) {
    super('not recorded')
    this.response = response
  }
}

/** The rules, whatever the framework. */
export class Idempotency<A extends unknown[]> {
  readonly header: string
  readonly #locks: Locks
  readonly #options: IdempotencyOptions<A>
  readonly #methods: ReadonlySet<string>

  constructor(locks: Locks, options: IdempotencyOptions<A>) {
    if (typeof locks?.runOnce !== 'function') throw new InvalidOptionError('locks', locks, 'what createLocks returns')
    const { header = 'Idempotency-Key', methods = ['POST', 'PATCH'] } = options
    this.header = header.toLowerCase()
    this.#locks = locks
    this.#options = options
    this.#methods = new Set(methods.map((method) => method.toUpperCase()))
  }

  concerns(method: string | undefined): boolean {
    return this.#methods.has(method ?? '')
  }

  scope(args: A, authorization: string | undefined): string | Promise<string> {
    return this.#options.scope?.(...args) ?? authorization ?? ''
  }

  /** `run` serves the request and gives the whole response back; it is called only if this request is the first. */
  async serve(request: KeyedRequest, run: () => Promise<WholeResponse>): Promise<Verdict> {
    const key = keyFrom(request.key)
    if (key === undefined) return this.#options.required ? answer(missing(this.header)) : { kind: 'pass' }
    if (key.length === 0 || key.length > 255) return answer(unusable(this.header))
    const { retain, ttl, wait = 0, record = (status) => status < 500 } = this.#options
    const print = fingerprint(request.method, request.url, await request.body())
    let began = false
    let own: WholeResponse | undefined
    try {
      const remembered = await this.#locks.runOnce<Remembered>(
        `http:${fingerprint(request.scope, key)}`,
        async () => {
          began = true
          own = await run()
          if (!record(own.status)) throw new Unrecorded(own)
          return remember(own, print)
        },
        { wait, ...(retain === undefined ? {} : { retain }), ...(ttl === undefined ? {} : { ttl }) },
      )
      if (own) return { kind: 'ours', response: own }
      return remembered.fingerprint === print ? replay(remembered) : answer(reused(this.header))
    } catch (error) {
      if (error instanceof Unrecorded) return { kind: 'ours', response: error.response }
      if (error instanceof LockTimeoutError && !began) return answer(inProgress)
      throw error
    }
  }
}

/** The draft has a quoted string; most clients send the bare key. */
function keyFrom(header: string | undefined): string | undefined {
  const text = header?.trim()
  return text !== undefined && /^".*"$/.test(text) ? text.slice(1, -1) : text
}

function fingerprint(...parts: (string | Uint8Array)[]): string {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(`${part.length}:`).update(part)
  return hash.digest('hex')
}

function remember({ status, headers, body }: WholeResponse, print: string): Remembered {
  const kept = headers.filter(([name]) => !NOT_REPLAYED.has(name.toLowerCase()))
  const remembered: Remembered = { fingerprint: print, status, headers: kept }
  if (body.byteLength > LARGEST_BODY) return remembered
  const buffer = Buffer.from(body)
  const text = buffer.toString('utf8')
  const encoding = Buffer.from(text, 'utf8').equals(buffer) ? 'utf8' : 'base64'
  // Escapes can make JSON of many control characters six times as large.
  const written = encoding === 'utf8' && JSON.stringify(text).length <= LARGEST_BODY * 1.5 ? 'utf8' : 'base64'
  return { ...remembered, encoding: written, body: buffer.toString(written) }
}

function replay({ status, headers, body, encoding }: Remembered): Verdict {
  if (body === undefined) return answer(tooLarge)
  const all: [string, string][] = [...headers, [REPLAYED, 'true']]
  return { kind: 'answer', response: { status, headers: all, body: Buffer.from(body, encoding) } }
}

function answer(problem: Problem): Verdict {
  const headers: [string, string][] = [...Object.entries(problem.headers), ['Content-Type', PROBLEM_TYPE]]
  return { kind: 'answer', response: { status: problem.status, headers, body: Buffer.from(problemBody(problem)) } }
}

const inProgress: Problem = {
  status: 409,
  title: 'Conflict',
  detail: 'A request with this idempotency key is in progress.',
  headers: { 'Retry-After': '1' },
}

const tooLarge: Problem = {
  status: 409,
  title: 'Conflict',
  detail: 'The request with this idempotency key was served; its response was too large to be kept.',
  headers: {},
}

function reused(header: string): Problem {
  const detail = `The key in ${header} was used for another request.`
  return { status: 422, title: 'Unprocessable Content', detail, headers: {} }
}

function missing(header: string): Problem {
  return { status: 400, title: 'Bad Request', detail: `This request needs the header ${header}.`, headers: {} }
}

function unusable(header: string): Problem {
  return { status: 400, title: 'Bad Request', detail: `${header} takes 1 to 255 characters.`, headers: {} }
}
