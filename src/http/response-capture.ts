import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { type CapturedResponse, groupHeaders, type ResponseHead } from './recorded-response.js'

type WriteCallback = (error?: Error | null) => void

/** The methods of a response through which everything goes that reaches its client. */
export type ResponseMethods = Pick<ServerResponse, 'write' | 'end' | 'writeHead' | 'flushHeaders'>

/** Receives the end of a captured response. */
export interface CaptureHost {
  /** The response ended, and nothing of it (or not its end) has been sent. `open` lets it out. */
  ended(response: CapturedResponse): void
}

/** The response of the connection, to which captured output is sent. */
interface CaptureTarget {
  response: ServerResponse
  methods: ResponseMethods
  /** True if other code has answered, or the client is gone: nothing can be sent. */
  unreachable: () => boolean
}

/**
 * The output of a handler on its way to the client. A response that ends without a `write` before is held back until
 * `open`. One that is written in pieces passes through as it is written, only its end is held back; at most `maxBytes` of it
 * are remembered.
 */
export class ResponseCapture {
  /** holding: nothing was sent. live: pieces pass. ended: the end is held back. open: everything passes. */
  #state: 'holding' | 'live' | 'ended' | 'open' = 'holding'
  readonly #handlerResponse: ServerResponse
  readonly #target: CaptureTarget
  readonly #maxBytes: number
  readonly #host: CaptureHost
  #chunks: Buffer[] = []
  /** Bytes written so far. */
  #total = 0
  /** Chunks that are sent after the record. */
  #held: Buffer[] = []
  #live = false
  #passing = false
  #head: ResponseHead | undefined
  #headWritten = false
  #fits = true
  #onEnd: WriteCallback[] = []

  /** `handlerResponse` is the object that the handler writes to; it may be the response of the target itself. */
  constructor(handlerResponse: ServerResponse, target: CaptureTarget, maxBytes: number, host: CaptureHost) {
    this.#handlerResponse = handlerResponse
    this.#target = target
    this.#maxBytes = maxBytes
    this.#host = host
  }

  get headersSent(): boolean {
    return this.#headWritten || this.#state !== 'holding'
  }

  get ended(): boolean {
    return this.#state === 'ended' || this.#state === 'open'
  }

  /** Whether calls go to the response itself: it is open, or the call comes from this capture (`end` calls `writeHead`). */
  get isPassing(): boolean {
    return this.#passing || this.#state === 'open'
  }

  get isLive(): boolean {
    return this.#live
  }

  /** Whether a part of it was sent to the client, or is about to be. */
  get isSent(): boolean {
    return this.#live || this.#state === 'open'
  }

  writeHead(status: number, rest: readonly unknown[]): void {
    if (this.#headWritten || this.#state !== 'holding') throw headersSent('write')
    const message = typeof rest[0] === 'string' ? rest[0] : undefined
    refuseUnsendable(status, message ?? this.#handlerResponse.statusMessage)
    this.#handlerResponse.statusCode = status
    if (message !== undefined) this.#handlerResponse.statusMessage = message
    addAll(this.#handlerResponse, rest.at(-1))
    this.#headWritten = true
  }

  flushHeaders(): void {
    if (this.#state === 'holding') this.#goLive()
  }

  write(chunk: unknown, encoding: unknown, done: WriteCallback | undefined): boolean {
    const call = typeof encoding === 'function' ? (encoding as WriteCallback) : done
    if (this.ended) {
      process.nextTick(() => call?.(new Error('write after end')))
      return false
    }
    const bytes = bytesOf(chunk, encoding)
    this.#remember(bytes)
    const length = this.#length()
    // A response whose length is known is complete with its last byte, and that must not leave before the record.
    const last = length !== undefined && this.#total >= length
    if (last || (this.#state === 'holding' && length !== undefined && length <= this.#maxBytes)) {
      this.#held.push(bytes)
      if (call) process.nextTick(call)
      return true
    }
    if (this.#state === 'holding') this.#goLive()
    return this.#send(bytes, call)
  }

  end(chunk: unknown, encoding: unknown, done: WriteCallback | undefined): void {
    const call = [chunk, encoding, done].find((each) => typeof each === 'function') as WriteCallback | undefined
    if (this.ended) {
      process.nextTick(() => call?.(new Error('the response has ended')))
      return
    }
    this.#refuseUnsendable()
    if (chunk !== undefined && chunk !== null && typeof chunk !== 'function') {
      const bytes = bytesOf(chunk, encoding)
      this.#remember(bytes)
      this.#held.push(bytes)
    }
    if (call) this.#onEnd.push(call)
    this.#head ??= headOf(this.#handlerResponse)
    this.#state = 'ended'
    this.#host.ended({ ...this.#head, body: this.#fits ? Buffer.concat(this.#chunks) : undefined })
  }

  /** Sends the held part, exactly as it was when the handler ended the response. */
  open(): void {
    const { response, methods, unreachable } = this.#target
    this.#state = 'open'
    const done = (): void => {
      for (const call of this.#onEnd) call()
    }
    if (unreachable()) return void process.nextTick(done)
    this.#pass(() => {
      if (!this.#live) apply(response, this.#head as ResponseHead)
      endWith(methods.end, response, Buffer.concat(this.#held), done)
    })
  }

  /** The record failed, or `open` threw. True: nothing was sent, so that an error can still be answered. */
  fail(before: ResponseHead): boolean {
    this.#state = 'open'
    const { response, unreachable } = this.#target
    if (unreachable()) return false
    if (this.#live || this.#pass(() => response.headersSent)) {
      // Without its end, the client cannot take the response for complete.
      response.destroy()
      return false
    }
    this.#pass(() => apply(response, before))
    return true
  }

  /** The handler failed before it ended the response: the error handler writes to it from now on. */
  giveUp(): void {
    this.#state = 'open'
    this.#chunks = []
    this.#held = []
  }

  #refuseUnsendable(): void {
    if (!this.#live) refuseUnsendable(this.#handlerResponse.statusCode, this.#handlerResponse.statusMessage)
  }

  #goLive(): void {
    this.#refuseUnsendable()
    this.#head = headOf(this.#handlerResponse)
    this.#state = 'live'
    this.#live = true
    const { response, methods, unreachable } = this.#target
    if (unreachable()) return
    const head = this.#head
    this.#pass(() => {
      apply(response, head)
      methods.flushHeaders.call(response)
    })
  }

  #pass<T>(call: () => T): T {
    this.#passing = true
    try {
      return call()
    } finally {
      this.#passing = false
    }
  }

  #send(bytes: Buffer, done: WriteCallback | undefined): boolean {
    const { response, methods, unreachable } = this.#target
    if (unreachable()) {
      if (done) process.nextTick(done)
      return true
    }
    return this.#pass(() => methods.write.call(response, bytes, done as never))
  }

  #remember(bytes: Buffer): void {
    this.#total += bytes.length
    if (this.#total > this.#maxBytes) {
      this.#fits = false
      this.#chunks = []
    } else this.#chunks.push(bytes)
  }

  #length(): number | undefined {
    const text = this.#handlerResponse.getHeader('content-length')
    const length = text === undefined ? Number.NaN : Number(text)
    return Number.isInteger(length) ? length : undefined
  }
}

/**
 * As Node does when it sends a head. After the record it would be too late: the handler, whose mistake it is, has returned by
 * then, and nobody would catch the error.
 */
function refuseUnsendable(status: unknown, message: string | undefined): void {
  const code = Math.trunc(Number(status))
  if (!(code >= 100 && code <= 999)) {
    throw Object.assign(new RangeError(`Invalid status code: ${String(status)}`), {
      code: 'ERR_HTTP_INVALID_STATUS_CODE',
    })
  }
  if (/[^\t\x20-\x7e\x80-\xff]/.test(message ?? '')) {
    throw Object.assign(new TypeError('Invalid character in statusMessage'), { code: 'ERR_INVALID_CHAR' })
  }
}

export function headersSent(doing: string): Error {
  const error = new Error(`Cannot ${doing} headers after they are sent to the client`)
  return Object.assign(error, { code: 'ERR_HTTP_HEADERS_SENT' })
}

function bytesOf(chunk: unknown, encoding: unknown): Buffer {
  if (typeof chunk === 'string') {
    return Buffer.from(chunk, typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8')
  }
  // A copy: the handler may use its memory again while this waits for the record.
  if (chunk instanceof Uint8Array) return Buffer.from(chunk)
  throw new TypeError('The "chunk" argument must be of type string or an instance of Buffer or Uint8Array.')
}

/** Header names in their original spelling. Node's types declare this method for client requests only. */
export function rawHeaderNames(response: ServerResponse): string[] {
  const { getRawHeaderNames } = response as { getRawHeaderNames?: () => string[] }
  return getRawHeaderNames?.call(response) ?? response.getHeaderNames()
}

export function headOf(response: ServerResponse): ResponseHead {
  const headers: [string, string][] = []
  for (const name of rawHeaderNames(response)) {
    for (const one of [response.getHeader(name)].flat()) if (one !== undefined) headers.push([name, String(one)])
  }
  return { status: response.statusCode, message: response.statusMessage ?? '', headers }
}

/** Without an empty chunk: a server with `rejectNonStandardBodyWrites` refuses it as the body of a 204. */
export function endWith(
  end: ServerResponse['end'],
  response: ServerResponse,
  body: Uint8Array,
  done?: () => void,
): void {
  if (body.byteLength === 0) end.call(response, undefined, done as unknown as BufferEncoding)
  else end.call(response, body, done as unknown as BufferEncoding)
}

/** Makes the head of a response that was not sent yet exactly this. */
export function apply(response: ServerResponse, { status, message, headers }: ResponseHead): void {
  for (const name of response.getHeaderNames()) response.removeHeader(name)
  for (const [name, value] of groupHeaders(headers)) response.setHeader(name, value)
  response.statusCode = status
  response.statusMessage = message
}

/** `writeHead` takes headers as an object, a flat list of names and values, or a list of pairs. Lists may repeat a name. */
function addAll(response: ServerResponse, headers: unknown): void {
  if (Array.isArray(headers)) {
    const pairs: [string, string][] = []
    if (Array.isArray(headers[0])) {
      for (const [name, value] of headers as [unknown, unknown][]) pairs.push([String(name), String(value)])
    } else for (let i = 0; i + 1 < headers.length; i += 2) pairs.push([String(headers[i]), String(headers[i + 1])])
    for (const [name, value] of groupHeaders(pairs)) response.setHeader(name, value)
  } else if (typeof headers === 'object' && headers !== null) {
    for (const [name, value] of Object.entries(headers as OutgoingHttpHeaders)) {
      if (value !== undefined) response.setHeader(name, value)
    }
  }
}
