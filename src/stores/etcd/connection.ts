/**
 * gRPC to one etcd server over one HTTP/2 session, opened when it is first needed and again after it broke.
 *
 * @module
 */
import { connect, constants, type ClientHttp2Session, type ClientHttp2Stream } from 'node:http2'
import type { SecureContextOptions } from 'node:tls'
import { reasonOf } from '../../util/reason.js'
import { formatDuration } from '../../util/duration.js'
import { EndpointError, EtcdError } from './errors.js'

/** Certificates for `etcds://` endpoints. */
export interface EtcdTls extends Pick<SecureContextOptions, 'ca' | 'cert' | 'key' | 'passphrase'> {
  /** The name that the server's certificate must carry, if it is not the host's. */
  servername?: string | undefined
  rejectUnauthorized?: boolean | undefined
}

export interface Endpoint {
  /** `host:port`, for messages. */
  name: string
  /** `http://host:port` or `https://host:port`. */
  origin: string
  tls: EtcdTls | undefined
}

/** A server that does not answer a probe is frozen or cut off: the session is given up after this long, in milliseconds. */
const PROBE_LIMIT_MS = 2_000
/**
 * What a probe asks for: every server answers that by itself, also without a leader. Not a ping of HTTP/2: a server that sends nothing
 * else meanwhile closes the connection after four of them, unless they are five seconds apart (etcd's --grpc-keepalive-min-time).
 */
const PROBE_PATH = '/etcdserverpb.Maintenance/Status'

const HEAD = 5
const EMPTY = Buffer.alloc(0)

/** One message in gRPC's frame: a flag that it is not compressed, its length, its bytes. */
function frame(message: Buffer): Buffer {
  const framed = Buffer.allocUnsafe(HEAD + message.length)
  framed[0] = 0
  framed.writeUInt32BE(message.length, 1)
  message.copy(framed, HEAD)
  return framed
}

const frames = new WeakMap<Buffer, Buffer>()

/** The same message, framed once: one that is sent again and again would otherwise be copied, and its copy collected, each time. */
export function framedOnce(message: Buffer): Buffer {
  const framed = frame(message)
  const inner = framed.subarray(HEAD)
  frames.set(inner, framed)
  return inner
}

/** Collects the chunks of a response and cuts them into messages. */
class Deframer {
  #rest: Buffer = Buffer.alloc(0)

  push(chunk: Buffer, each: (message: Buffer) => void): void {
    let bytes = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk])
    while (bytes.length >= HEAD) {
      const end = HEAD + bytes.readUInt32BE(1)
      if (bytes.length < end) break
      each(bytes.subarray(HEAD, end))
      bytes = bytes.subarray(end)
    }
    this.#rest = bytes
  }
}

/** Headers of a response or its trailers. */
type GrpcHeaders = Record<string, string | string[] | number | undefined>

function failureIn(headers: GrpcHeaders): EtcdError | undefined {
  const status = headers['grpc-status']
  if (status === undefined || status === '0') return undefined
  const text = String(headers['grpc-message'] ?? '')
  let message = text
  try {
    message = decodeURIComponent(text)
  } catch {
    // Not escaped as gRPC asks for: shown as it is.
  }
  return new EtcdError(Number(status), message)
}

/** A stream in both directions. */
export interface DuplexCall {
  send: (message: Buffer) => void
  close: () => void
  /** Gives the connection up unless the server gives a sign of life. */
  probe?: () => void
  /** For how long nothing has been heard from the server, whatever it was about, in milliseconds. */
  silentMs?: () => number
}

export interface DuplexHandlers {
  message: (message: Buffer) => void
  /** Undefined: the server ended it in order. */
  closed: (error: Error | undefined) => void
}

export class EtcdConnection {
  readonly endpoint: Endpoint
  #session: ClientHttp2Session | undefined
  #isClosed = false
  #pending = 0
  #heardAt = 0
  /** The session whose answer to a probe is awaited. */
  #probed: ClientHttp2Session | undefined
  #probeLimit: NodeJS.Timeout | undefined
  /** Why sessions failed. By session: what was cut on an older one was sent, also if the newest could not connect. */
  readonly #errors = new WeakMap<ClientHttp2Session, Error>()

  constructor(endpoint: Endpoint) {
    this.endpoint = endpoint
  }

  get name(): string {
    return this.endpoint.name
  }

  #open(): ClientHttp2Session {
    // A call that waited for its auth token while the store was closed would leave a connection behind.
    if (this.#isClosed) throw new Error('the store was closed')
    const known = this.#session
    if (known && !known.closed && !known.destroyed) return known
    const { origin, tls } = this.endpoint
    const session = connect(origin, tls ? { ...(tls as object) } : {})
    this.#session = session
    this.#heard()
    session.on('error', (error) => void this.#errors.set(session, error))
    session.on('goaway', () => this.#forget(session))
    session.on('close', () => {
      this.#forget(session)
      this.#endProbe(session)
    })
    // Only a request that somebody waits for keeps the process alive.
    session.unref()
    return session
  }

  #heard(): void {
    this.#heardAt = performance.now()
  }

  #forget(session: ClientHttp2Session): void {
    if (this.#session === session) this.#session = undefined
  }

  #request(session: ClientHttp2Session, path: string, token: string | undefined): ClientHttp2Stream {
    return session.request({
      ':method': 'POST',
      ':path': path,
      'content-type': 'application/grpc',
      te: 'trailers',
      // A server that is cut off from the others refuses at once, instead of being silent.
      hasleader: 'true',
      ...(token === undefined ? {} : { token }),
    })
  }

  #broken(error: unknown, session: ClientHttp2Session | undefined): EndpointError {
    let cause = (session && this.#errors.get(session)) ?? error
    // The error of the stream only says that its session failed; that one's says why.
    while (cause instanceof Error && /^ERR_HTTP2/.test(String((cause as NodeJS.ErrnoException).code)) && cause.cause) {
      ;({ cause } = cause)
    }
    return new EndpointError(this.name, `failed: ${reasonOf(cause)}`, { cause })
  }

  /** One request, one answer. Rejects with `EtcdError` if the server refused, else with `EndpointError`. */
  call(path: string, message: Buffer, limitMs: number, token: string | undefined): Promise<Buffer> {
    return new Promise((resolve, reject) => {
      let session: ClientHttp2Session | undefined
      let stream: ClientHttp2Stream
      try {
        session = this.#open()
        stream = this.#request(session, path, token)
      } catch (error) {
        reject(this.#broken(error, session))
        return
      }
      const deframer = new Deframer()
      let answer: Buffer | undefined
      let failure: Error | undefined
      let ended = false
      const timer = setTimeout(() => {
        finish(new EndpointError(this.name, `did not answer within ${formatDuration(limitMs)}`))
        stream.close(constants.NGHTTP2_CANCEL)
        this.probe()
      }, limitMs)
      const finish = (error: Error | undefined): void => {
        if (ended) return
        ended = true
        clearTimeout(timer)
        if (--this.#pending === 0) this.#session?.unref()
        if (error) reject(error)
        else if (answer) resolve(answer)
        else reject(new EndpointError(this.name, 'ended the request without an answer'))
      }
      if (this.#pending++ === 0) this.#session?.ref()
      stream.on('response', (headers: GrpcHeaders) => {
        this.#heard()
        failure = failureIn(headers)
        if (headers[':status'] !== 200) failure ??= new EndpointError(this.name, `answered HTTP ${headers[':status']}`)
      })
      stream.on('trailers', (headers: GrpcHeaders) => (failure ??= failureIn(headers)))
      stream.on('data', (chunk: Buffer) => deframer.push(chunk, (each) => (answer ??= each)))
      stream.on('end', () => finish(failure))
      stream.on('error', (error) => finish(failure ?? this.#broken(error, session)))
      stream.on('close', () =>
        finish(failure ?? (answer ? undefined : this.#broken(new Error('connection closed'), session))),
      )
      stream.end(frames.get(message) ?? frame(message))
    })
  }

  /** A stream that stays open. `handlers.closed` is called once. Never throws. */
  open(path: string, token: string | undefined, handlers: DuplexHandlers): DuplexCall {
    let session: ClientHttp2Session | undefined
    let stream: ClientHttp2Stream
    try {
      session = this.#open()
      stream = this.#request(session, path, token)
    } catch (error) {
      queueMicrotask(() => handlers.closed(this.#broken(error, session)))
      return { send: () => {}, close: () => {} }
    }
    const deframer = new Deframer()
    let failure: Error | undefined
    let ended = false
    const finish = (error: Error | undefined): void => {
      if (ended) return
      ended = true
      handlers.closed(error)
    }
    stream.on('response', (headers: GrpcHeaders) => (failure = failureIn(headers)))
    stream.on('trailers', (headers: GrpcHeaders) => (failure ??= failureIn(headers)))
    stream.on('data', (chunk: Buffer) => {
      this.#heard()
      deframer.push(chunk, (message) => void (ended || handlers.message(message)))
    })
    stream.on('end', () => finish(failure))
    stream.on('error', (error) => finish(failure ?? this.#broken(error, session)))
    stream.on('close', () => finish(failure ?? this.#broken(new Error('connection closed'), session)))
    return {
      send: (message) => void (stream.writable && stream.write(frame(message))),
      close: () => {
        ended = true
        stream.close(constants.NGHTTP2_CANCEL)
      },
      probe: () => this.probe(),
      silentMs: () => performance.now() - this.#heardAt,
    }
  }

  /** Gives the session up unless the server answers: all its calls then fail at once, and can be sent elsewhere. */
  probe(): void {
    const session = this.#session
    if (!session || this.#probed) return
    const giveUp = (): void => {
      this.#endProbe(session)
      this.#errors.set(session, new Error(`no sign of life within ${formatDuration(PROBE_LIMIT_MS)}`))
      this.#forget(session)
      session.destroy()
    }
    this.#probed = session
    this.#probeLimit = setTimeout(giveUp, PROBE_LIMIT_MS)
    this.#probeLimit.unref()
    try {
      const stream = this.#request(session, PROBE_PATH, undefined)
      // Whatever it says: it is alive.
      stream.on('response', () => {
        this.#heard()
        this.#endProbe(session)
      })
      stream.on('error', () => {})
      stream.resume().end(frame(EMPTY))
    } catch {
      giveUp()
    }
  }

  #endProbe(session: ClientHttp2Session): void {
    if (this.#probed !== session) return
    this.#probed = undefined
    clearTimeout(this.#probeLimit)
  }

  close(): void {
    this.#isClosed = true
    this.#session?.destroy()
    this.#session = undefined
  }
}
