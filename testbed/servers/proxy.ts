import { once } from 'node:events'
import { createServer, type Server as NetServer, Socket } from 'node:net'
import { reservePort } from './ports.js'

// A TCP proxy that misbehaves on demand. It runs in the calling process: code that blocks the event loop blocks the
// proxy as well.

/** requests: client → server. replies: server → client. */
export type Direction = 'both' | 'requests' | 'replies'

export interface Proxy extends AsyncDisposable {
  readonly port: number
  /** Open client connections. */
  readonly connections: number
  /** The same URL with the port of this proxy in home of its (only) port. */
  through(url: string): string
  /** Destroys all connections. New ones are served. */
  cut(): void
  /** Destroys all connections. New ones get ECONNREFUSED until `heal()`. */
  refuse(): Promise<void>
  /**
   * Keeps connections open and accepts new ones, but drops their bytes, and neither side learns that the other has
   * closed.
   * 'replies' only: requests arrive and are executed, and the answers are lost.
   */
  blackhole(direction?: Direction): void
  /** Like `blackhole`, but bytes are kept and delivered at `heal()`, as TCP does after a short partition. */
  stall(direction?: Direction): void
  /**
   * Ends `refuse`, `blackhole`, `stall` and `delay`. Connections that lost bytes, or whose other side has closed
   * meanwhile, are destroyed: the first packet after the partition would have the same effect.
   */
  heal(): Promise<void>
  /** Delays every chunk, in both directions, by this much. 0 ends it. */
  delay(ms: number): void
  stop(): Promise<void>
}

type Fault = { kind: 'none' } | { kind: 'blackhole' | 'stall'; direction: Direction }

/** One direction of one connection: a queue, so that the order survives changes of the delay. */
class Flow {
  readonly #queue: { chunk: Buffer | undefined; at: number }[] = []
  #timer: NodeJS.Timeout | undefined
  #lastAt = 0
  /** True once bytes were dropped: the stream can never be correct again. */
  damaged = false

  constructor(
    readonly direction: 'requests' | 'replies',
    readonly from: Socket,
    readonly to: Socket,
    readonly state: { isHit(kind: 'blackhole' | 'stall', flow: Flow): boolean; delayMs: number },
  ) {
    from.on('data', (chunk: Buffer) => this.#take(chunk))
    from.on('end', () => this.#take(undefined))
    to.on('drain', () => from.resume())
  }

  #take(chunk: Buffer | undefined): void {
    if (this.state.isHit('blackhole', this)) {
      this.damaged = true
      return
    }
    this.#lastAt = Math.max(this.#lastAt, performance.now() + this.state.delayMs)
    this.#queue.push({ chunk, at: this.#lastAt })
    this.pump()
  }

  pump(): void {
    clearTimeout(this.#timer)
    if (this.state.isHit('stall', this)) return
    for (let next = this.#queue[0]; next; next = this.#queue[0]) {
      const waitMs = next.at - performance.now()
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.pump(), Math.ceil(waitMs))
        return
      }
      this.#queue.shift()
      if (this.to.destroyed) continue
      if (next.chunk === undefined) this.to.end()
      else if (!this.to.write(next.chunk)) this.from.pause()
    }
  }

  /** Cancels the delay of chunks that are already queued. */
  hurry(): void {
    for (const entry of this.#queue) entry.at = 0
    this.#lastAt = 0
    this.pump()
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#queue.length = 0
  }
}

class Pair {
  readonly requests: Flow
  readonly replies: Flow
  /** True if one side has closed and the other could not be told. */
  orphaned = false

  constructor(
    readonly client: Socket,
    readonly upstream: Socket,
    proxy: FaultyProxy,
  ) {
    this.requests = new Flow('requests', client, upstream, proxy)
    this.replies = new Flow('replies', upstream, client, proxy)
    for (const socket of [client, upstream]) {
      socket.setNoDelay(true)
      socket.on('error', () => {})
      socket.on('close', () => this.#closed(proxy, socket))
    }
  }

  #closed(proxy: FaultyProxy, socket: Socket): void {
    const flow = socket === this.client ? this.requests : this.replies
    if (proxy.isHit('blackhole', flow) || proxy.isHit('stall', flow)) this.orphaned = true
    // An orderly end was queued behind the data and ends the other side in order. Anything else is passed on at once.
    else if (!socket.readableEnded) this.destroy()
    if (this.client.destroyed && this.upstream.destroyed) proxy.forget(this)
    // The other side may be paused because of this one. It must read on, or it never sees its own end.
    const other = socket === this.client ? this.upstream : this.client
    other.resume()
  }

  heal(): void {
    if (this.requests.damaged || this.replies.damaged) return this.destroy()
    this.requests.hurry()
    this.replies.hurry()
    if (!this.orphaned) return
    // Bytes sent before the close are still delivered, late.
    this.client.destroySoon()
    this.upstream.destroySoon()
  }

  destroy(): void {
    this.requests.close()
    this.replies.close()
    this.client.destroy()
    this.upstream.destroy()
  }
}

class FaultyProxy implements Proxy {
  delayMs = 0
  #fault: Fault = { kind: 'none' }
  #server: NetServer | undefined
  readonly #pairs = new Set<Pair>()

  constructor(
    readonly port: number,
    readonly targetPort: number,
    readonly freePort: () => void,
  ) {}

  get connections(): number {
    return [...this.#pairs].filter((pair) => !pair.client.destroyed).length
  }

  isHit(kind: 'blackhole' | 'stall', flow: Flow): boolean {
    if (this.#fault.kind !== kind) return false
    return this.#fault.direction === 'both' || this.#fault.direction === flow.direction
  }

  forget(pair: Pair): void {
    this.#pairs.delete(pair)
  }

  async listen(): Promise<void> {
    if (this.#server) return
    const server = createServer({ allowHalfOpen: true }, (client) => this.#serve(client))
    this.#server = server
    server.listen({ port: this.port, host: '127.0.0.1', exclusive: true })
    await once(server, 'listening')
    server.unref()
  }

  #serve(client: Socket): void {
    const upstream = new Socket({ allowHalfOpen: true })
    const pair = new Pair(client, upstream, this)
    this.#pairs.add(pair)
    // In a black hole not even the connection arrives, so this pair is destroyed by heal().
    if (this.isHit('blackhole', pair.requests)) pair.orphaned = true
    else upstream.connect(this.targetPort, '127.0.0.1')
  }

  through(url: string): string {
    return url.replace(/:\d+(?=[/?#]|$)/, `:${this.port}`)
  }

  cut(): void {
    for (const pair of this.#pairs) pair.destroy()
    this.#pairs.clear()
  }

  async refuse(): Promise<void> {
    const server = this.#server
    this.#server = undefined
    const closed = server && new Promise<void>((resolve) => server.close(() => resolve()))
    this.cut()
    await closed
  }

  blackhole(direction: Direction = 'both'): void {
    this.#fault = { kind: 'blackhole', direction }
  }

  stall(direction: Direction = 'both'): void {
    this.#fault = { kind: 'stall', direction }
  }

  async heal(): Promise<void> {
    this.#fault = { kind: 'none' }
    this.delayMs = 0
    for (const pair of [...this.#pairs]) pair.heal()
    await this.listen()
  }

  delay(ms: number): void {
    this.delayMs = ms
  }

  async stop(): Promise<void> {
    await this.refuse()
    this.freePort()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }
}

/** Starts a proxy to 127.0.0.1:`targetPort` that passes everything until told otherwise. */
export async function startProxy(targetPort: number): Promise<Proxy> {
  const port = await reservePort()
  const proxy = new FaultyProxy(port.number, targetPort, () => port.free())
  await proxy.listen()
  return proxy
}
