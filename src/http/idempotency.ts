import { createHash } from 'node:crypto'
import { parseItem } from 'structured-headers'
import { InvalidOptionError, LockTimeoutError } from '../errors.js'
import { type Duration, milliseconds } from '../util/duration.js'
import type { Locks } from '../locks.js'
import { IdempotentRun } from './idempotent-run.js'
import { isLocks, knownOptions, runRecorded, type RecordedRunOptions } from './internals.js'
import { PROBLEM_TYPE, type Problem, problemBody } from './problem.js'
import { type RecordedResponse, replayOf, type WholeResponse } from './recorded-response.js'

/** Options of the idempotency middleware. `A` is what the handler of your framework is called with. */
export interface IdempotencyOptions<A extends unknown[]> {
  /**
   * The owner of the key: a user or a tenant, never a token that is refreshed. Without it one user could read the response
   * of another. `() => ''` says on purpose that all callers share their keys.
   */
  scope: (...args: A) => string | Promise<string>
  /** Default `Idempotency-Key`. */
  header?: string
  /** Methods that need a key; requests with others pass. Default POST and PATCH: the rest is idempotent by itself. */
  methods?: readonly string[]
  /** Refuse requests without a key with 400. Default false: they pass. */
  required?: boolean
  /** How long a response is remembered. Default 1d. */
  retain?: Duration
  /**
   * A process that dies, or a response that breaks off, blocks its key for at most this long. Default: that of the
   * locks.
   */
  ttl?: Duration
  /** How long a second request waits for the first to end, before it gets 409. Default 0. */
  wait?: Duration
  /** A handler that hangs blocks its key for at most this long. Default 1h. */
  maxHold?: Duration
  /** Larger responses pass through; only their status is recorded, and a repeat gets 409. Default and most: 1 MB. */
  maxBytes?: number
  /** The part of a request that a repeat must have in common with the first, besides method and URL. Default: the body. */
  fingerprint?: (...args: A) => string | Uint8Array | Promise<string | Uint8Array>
  /**
   * Whether a response with this status is final. Default: below 500, but not 401, 408, 425 and 429, after which a
   * client tries again.
   */
  record?: (status: number) => boolean
}

/** The part of a request that idempotency needs, whatever the framework. */
export interface KeyedRequest<A extends unknown[]> {
  args: A
  method: string
  /** Path and query. */
  url: string
  key: string | undefined
  /** The body as it was sent. */
  body: () => Uint8Array | string | Promise<Uint8Array | string>
}

/** What the adapter of a framework has to do: pass the request on, answer it, or run the handler. */
export type IdempotencyDecision =
  | { kind: 'pass' }
  | { kind: 'answer'; response: WholeResponse }
  | { kind: 'run'; run: IdempotentRun }

const OPTIONS = [
  ...['scope', 'header', 'methods', 'required', 'retain', 'ttl', 'wait'],
  ...['maxHold', 'maxBytes', 'fingerprint', 'record'],
]

/** The largest body that is recorded, in bytes: in base64 it still fits into a record. */
const MAX_BODY_BYTES = 1_048_576

/** Statuses after which a client is expected to send the same request again, and to be served then. */
const TRY_AGAIN = new Set([401, 408, 425, 429])

/** The rules of idempotency, for all frameworks. */
export class Idempotency<A extends unknown[]> {
  readonly header: string
  readonly maxBytes: number
  readonly #locks: Locks
  readonly #options: IdempotencyOptions<A>
  readonly #methods: ReadonlySet<string>
  readonly #maxHoldMs: number
  readonly #terms: RecordedRunOptions

  constructor(locks: Locks, options: IdempotencyOptions<A>) {
    if (!isLocks(locks)) throw new InvalidOptionError('locks', locks, 'what createLocks returns')
    if (typeof options?.scope !== 'function') {
      const takes =
        'a function that tells whose key it is, such as (request) => request.user.id (() => "": all share them)'
      throw new InvalidOptionError('scope', options?.scope, takes)
    }
    const known = knownOptions(options, OPTIONS)
    checkTypes(known)
    const { header = 'Idempotency-Key', methods = ['POST', 'PATCH'], maxHold = '1h', wait = 0, retain, ttl } = known
    this.header = header.toLowerCase()
    this.maxBytes = bytesFrom(known.maxBytes)
    this.#locks = locks
    this.#options = known
    this.#methods = new Set(methods.map((method) => method.toUpperCase()))
    this.#maxHoldMs = Math.min(milliseconds('maxHold', maxHold, { min: 10 }), 2 ** 31 - 1)
    if (ttl !== undefined) milliseconds('ttl', ttl, { min: 10 })
    if (retain !== undefined) milliseconds('retain', retain, { min: 10 })
    milliseconds('wait', wait)
    this.#terms = { wait, ...(retain === undefined ? {} : { retain }), ...(ttl === undefined ? {} : { ttl }) }
  }

  concerns(method: string | undefined): boolean {
    return this.#methods.has(method ?? '')
  }

  async begin(request: KeyedRequest<A>): Promise<IdempotencyDecision> {
    const key = keyFrom(request.key)
    if (key === undefined) return this.#options.required ? answer(missing(this.header)) : { kind: 'pass' }
    if (key.length === 0 || key.length > 255) return answer(unusable(this.header))
    const scope = await this.#options.scope(...request.args)
    if (typeof scope !== 'string') {
      throw new InvalidOptionError('scope', scope, 'a function that returns a string, such as the ID of a user')
    }
    const body = this.#options.fingerprint ? this.#options.fingerprint(...request.args) : request.body()
    return this.#runOrReplay(`http:${digest(scope, key)}`, digest(request.method, request.url, await body))
  }

  #runOrReplay(name: string, fingerprint: string): Promise<IdempotencyDecision> {
    const { record = isFinal } = this.#options
    return new Promise((resolve, reject) => {
      let run: IdempotentRun | undefined
      const outcome = runRecorded<RecordedResponse>(
        this.#locks,
        name,
        (lock) =>
          new Promise((keep, drop) => {
            const facts = { lock, fingerprint, maxHoldMs: this.#maxHoldMs, recordable: record }
            run = new IdempotentRun(facts, { record: keep, drop })
            // In a microtask, because `outcome` is assigned only after this function has returned.
            queueMicrotask(() => {
              run?.watch(outcome)
              resolve({ kind: 'run', run: run as IdempotentRun })
            })
          }),
        this.#terms,
      )
      outcome.then(
        (recorded) => {
          if (!run) resolve(recorded.fingerprint === fingerprint ? replay(recorded) : answer(reused(this.header)))
        },
        (error: unknown) => {
          if (run) return
          if (error instanceof LockTimeoutError) resolve(answer(inProgress))
          else reject(error as Error)
        },
      )
    })
  }
}

/** Checked when the middleware is made: a `record` that is no function would fail only after a handler has run. */
function checkTypes<A extends unknown[]>(options: IdempotencyOptions<A>): void {
  const { header, methods, required, fingerprint, record } = options
  const check = (name: string, value: unknown, isRight: boolean, takes: string): void => {
    if (value !== undefined && !isRight) throw new InvalidOptionError(name, value, takes)
  }
  const isName = typeof header === 'string' && /^[\w!#$%&'*+.^`|~-]+$/.test(header)
  check('header', header, isName, 'the name of a header')
  check(
    'methods',
    methods,
    Array.isArray(methods) && methods.every((one) => typeof one === 'string'),
    'a list of methods',
  )
  check('required', required, typeof required === 'boolean', 'true or false')
  check('fingerprint', fingerprint, typeof fingerprint === 'function', 'a function')
  check('record', record, typeof record === 'function', 'a function that is called with a status')
}

function isFinal(status: number): boolean {
  return status < 500 && !TRY_AGAIN.has(status)
}

function bytesFrom(maxBytes: unknown): number {
  if (maxBytes === undefined) return MAX_BODY_BYTES
  if (typeof maxBytes === 'number' && maxBytes >= 0 && maxBytes <= MAX_BODY_BYTES) return maxBytes
  throw new InvalidOptionError('maxBytes', maxBytes, `a number of bytes up to ${MAX_BODY_BYTES}`)
}

/** The IETF draft has a string in quotes; most clients send the bare key. */
function keyFrom(header: string | undefined): string | undefined {
  const text = header?.trim()
  if (!text?.startsWith('"')) return text
  try {
    const [key] = parseItem(text)
    return typeof key === 'string' ? key : text
  } catch {
    return text
  }
}

function digest(...parts: (string | Uint8Array)[]): string {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(`${part.length}:`).update(part)
  return hash.digest('hex')
}

function replay(recorded: RecordedResponse): IdempotencyDecision {
  const response = replayOf(recorded)
  return response ? { kind: 'answer', response } : answer(tooLarge(recorded.status))
}

function answer(problem: Problem): IdempotencyDecision {
  const headers: [string, string][] = [...Object.entries(problem.headers), ['Content-Type', PROBLEM_TYPE]]
  const body = Buffer.from(problemBody(problem))
  return { kind: 'answer', response: { status: problem.status, message: '', headers, body } }
}

const inProgress: Problem = {
  status: 409,
  title: 'Conflict',
  detail: 'A request with this idempotency key is in progress.',
  headers: { 'Retry-After': '1' },
}

function tooLarge(status: number): Problem {
  const detail = `The request with this idempotency key was served with status ${status}; its response was too large to be kept.`
  return { status: 409, title: 'Conflict', detail, headers: {} }
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
