import type { ServerResponse } from 'node:http'
import type { DashboardFacts, Hello, HolderChanges, HolderRow } from './protocol.js'
import type { Sampler } from './sampler.js'

/** MOST_STREAMS: pages open at once. More are a mistake or an attack. */
export const MOST_STREAMS = 100
/** MOST_BUFFERED: bytes that wait for a slow page. A page with more gets everything anew once it has caught up. */
const MOST_BUFFERED = 4_000_000
/** ALIVE_EVERY_MS: a comment in a quiet stream: proxies end streams in which nothing happens for a minute. */
const ALIVE_EVERY_MS = 15_000
/** ROWS_AT_ONCE: rows in one message of the first listing. */
const ROWS_AT_ONCE = 2_000

export const STREAM_HEADERS: Readonly<Record<string, string>> = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-store',
  // For nginx, which would keep events back otherwise.
  'x-accel-buffering': 'no',
  connection: 'keep-alive',
}

interface Stream {
  response: ServerResponse
  /** It was too slow, and has missed changes. */
  behind: boolean
  /** At the last sign of life. */
  wasBehind: boolean
  sentFacts: string
}

/** The open pages. */
export class Streams {
  readonly #streams = new Set<Stream>()
  readonly #hello: () => Hello
  readonly #sampler: Sampler
  #alive: NodeJS.Timeout | undefined

  constructor(sampler: Sampler, hello: () => Hello) {
    this.#sampler = sampler
    this.#hello = hello
  }

  get size(): number {
    return this.#streams.size
  }

  open(response: ServerResponse): void {
    response.writeHead(200, STREAM_HEADERS)
    const stream: Stream = { response, behind: false, wasBehind: false, sentFacts: '' }
    this.#streams.add(stream)
    write(stream, 'hello', this.#hello())
    // First: it forgets what is too old to be shown.
    const unwatch = this.#sampler.watch()
    this.#sendAll(stream)
    if (this.#sampler.isFresh) write(stream, 'facts', this.#sampler.facts())
    this.#alive ??= setInterval(() => this.#keepAlive(), ALIVE_EVERY_MS)
    this.#alive.unref()
    response.on('close', () => {
      unwatch()
      this.#streams.delete(stream)
      if (this.#streams.size > 0) return
      clearInterval(this.#alive)
      this.#alive = undefined
    })
  }

  send(changes: HolderChanges): void {
    if (this.#streams.size === 0) return
    const hasChanges = changes.rows.length + changes.gone.length + changes.renewed.length > 0
    const message = hasChanges ? messageOf('locks', changes) : undefined
    const facts = this.#sampler.facts()
    const compared = comparable(facts)
    const factsMessage = messageOf('facts', facts)
    for (const stream of this.#streams) {
      if (stream.response.writableLength > MOST_BUFFERED) stream.behind = true
      else if (stream.behind) this.#sendAll(stream)
      else if (message !== undefined) stream.response.write(message)
      if (stream.behind || stream.sentFacts === compared) continue
      stream.response.write(factsMessage)
      stream.sentFacts = compared
    }
  }

  close(): void {
    clearInterval(this.#alive)
    for (const { response } of this.#streams) response.end()
  }

  #sendAll(stream: Stream): void {
    const rows: HolderRow[] = [...this.#sampler.holders.rows()]
    for (let from = 0; from === 0 || from < rows.length; from += ROWS_AT_ONCE) {
      const part = rows.slice(from, from + ROWS_AT_ONCE)
      write(stream, 'locks', { now: Date.now(), reset: from === 0, rows: part, gone: [], renewed: [] })
    }
    stream.behind = false
    stream.sentFacts = ''
  }

  #keepAlive(): void {
    for (const stream of this.#streams) {
      // A page that has read nothing since the last time is not there any more, and keeps one of the places.
      if (stream.behind && stream.wasBehind) stream.response.destroy()
      else stream.response.write(': alive\n\n')
      stream.wasBehind = stream.behind
    }
  }
}

function write(stream: Stream, event: string, data: Hello | HolderChanges | DashboardFacts): void {
  stream.response.write(messageOf(event, data))
}

/** JSON has no line breaks of its own, so that nothing in a name can begin another event. */
function messageOf(event: string, data: Hello | HolderChanges | DashboardFacts): string {
  return `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`
}

/** To the second: the curve gets a point then, and nothing else changes with the time alone. */
function comparable({
  now,
  point: [at, held, waiting],
  store: { everyMs: _e, tookMs: _t, ...store },
  ...rest
}: DashboardFacts): string {
  return JSON.stringify([Math.floor(now / 1_000), Math.floor(at / 1_000), held, waiting, store, rest])
}
