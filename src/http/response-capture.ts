import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { type CapturedResponse, groupHeaders, type Head } from './recorded-response.js'

type Done = (error?: Error | null) => void

/** The methods of a response through which everything goes that reaches its client. */
export type ResponseMethods = Pick<ServerResponse, 'write' | 'end' | 'writeHead' | 'flushHeaders'>

/** Who hears of a captured response. */
export interface CaptureHost {
  /** The response ended, and nothing of it (or not its end) has been sent. `open` lets it out. */
  ended(response: CapturedResponse): void
}

/** Where captured output goes. */
interface Target {
  response: ServerResponse
  methods: ResponseMethods
  /** Somebody else has answered, or the client is gone: there is nothing to send to. */
  unreachable: () => boolean
}

/**
 * What a handler writes, between the handler and its client. A response that ends without a `write` before is held back until
 * `open`. One that is written in pieces passes through as it is written, only its end is held back; at most `maxBytes` of it
 * are remembered.
 */
export class ResponseCapture {
  /** holding: nothing was sent. live: pieces pass. ended: the end is held back. open: everything passes. */
  #state: 'holding' | 'live' | 'ended' | 'open' = 'holding'
  readonly #front: ServerResponse
  readonly #target: Target
  readonly #maxBytes: number
  readonly #host: CaptureHost
  #chunks: Buffer[] = []
  /** How much has been written, and how much of it waits for the record. */
  #total = 0
  #held: Buffer[] = []
  #live = false
  #passing = false
  #head: Head | undefined
  #headWritten = false
  #fits = true
  #onEnd: Done[] = []

  /** `front` is what the handler calls; it may be the response of the target itself. */
  constructor(front: ServerResponse, target: Target, maxBytes: number, host: CaptureHost) {
    this.#front = front
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

  /** Calls go to the response itself: it is open, or the call is our own (`end` calls `writeHead` on the same object). */
  get isPassing(): boolean {
    return this.#passing || this.#state === 'open'
  }

  get isLive(): boolean {
    return this.#live
  }

  /** Something of it went to the client, or is about to. */
  get isSent(): boolean {
    return this.#live || this.#state === 'open'
  }

  writeHead(status: number, rest: readonly unknown[]): void {
    if (this.#headWritten || this.#state !== 'holding') throw headersSent('write')
    this.#front.statusCode = status
    if (typeof rest[0] === 'string') this.#front.statusMessage = rest[0]
    addAll(this.#front, rest.at(-1))
    this.#headWritten = true
  }

  flushHeaders(): void {
    if (this.#state === 'holding') this.#goLive()
  }

  write(chunk: unknown, encoding: unknown, done: Done | undefined): boolean {
    const call = typeof encoding === 'function' ? (encoding as Done) : done
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

  end(chunk: unknown, encoding: unknown, done: Done | undefined): void {
    const call = [chunk, encoding, done].find((each) => typeof each === 'function') as Done | undefined
    if (this.ended) {
      process.nextTick(() => call?.(new Error('the response has ended')))
      return
    }
    if (chunk !== undefined && chunk !== null && typeof chunk !== 'function') {
      const bytes = bytesOf(chunk, encoding)
      this.#remember(bytes)
      this.#held.push(bytes)
    }
    if (call) this.#onEnd.push(call)
    this.#head ??= headOf(this.#front)
    this.#state = 'ended'
    this.#host.ended({ ...this.#head, body: this.#fits ? Buffer.concat(this.#chunks) : undefined })
  }

  /** Sends what was held back, exactly as it was when the handler ended the response. */
  open(): void {
    const { response, methods, unreachable } = this.#target
    this.#state = 'open'
    const done = (): void => {
      for (const call of this.#onEnd) call()
    }
    if (unreachable()) return void process.nextTick(done)
    this.#pass(() => {
      if (!this.#live) apply(response, this.#head as Head)
      methods.end.call(response, Buffer.concat(this.#held), done as unknown as BufferEncoding)
    })
  }

  /** The record failed. True: nothing was sent, so that an error can still be answered. */
  fail(before: Head): boolean {
    this.#state = 'open'
    const { response, unreachable } = this.#target
    if (unreachable()) return false
    if (this.#live) {
      // Without its end, the client cannot take the response for complete.
      response.destroy()
      return false
    }
    this.#pass(() => apply(response, before))
    return true
  }

  /** The handler failed before it ended the response: whoever handles errors writes to it from now on. */
  giveUp(): void {
    this.#state = 'open'
    this.#chunks = []
    this.#held = []
  }

  #goLive(): void {
    this.#head = headOf(this.#front)
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

  #send(bytes: Buffer, done: Done | undefined): boolean {
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
    const text = this.#front.getHeader('content-length')
    const length = text === undefined ? Number.NaN : Number(text)
    return Number.isInteger(length) ? length : undefined
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

/** As they were spelled. The types of Node leave this method to client requests. */
export function rawHeaderNames(response: ServerResponse): string[] {
  const { getRawHeaderNames } = response as { getRawHeaderNames?: () => string[] }
  return getRawHeaderNames?.call(response) ?? response.getHeaderNames()
}

export function headOf(response: ServerResponse): Head {
  const headers: [string, string][] = []
  for (const name of rawHeaderNames(response)) {
    for (const one of [response.getHeader(name)].flat()) if (one !== undefined) headers.push([name, String(one)])
  }
  return { status: response.statusCode, message: response.statusMessage ?? '', headers }
}

/** Makes the head of a response that was not sent yet exactly this. */
export function apply(response: ServerResponse, { status, message, headers }: Head): void {
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
