/**
 * A server whose handlers are slow, throw, break off and die, behind each form of idempotency: kind of store, where it is, ttl,
 * seed. It says its port, and appends a line for each begin and end of a handler to the file it is given.
 */
import { openSync, writeSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createRequire } from 'node:module'
import type { AddressInfo } from 'node:net'
import { pipeline, Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { idempotentExpress, idempotentFastify, idempotentFetch, idempotentHandler } from '../../src/http/index.js'
import { createLocks } from '../../src/index.js'
import type { Duration } from '../../src/util/duration.js'
import { type StoreKind, storeAt } from '../store-fixtures.js'

/** What one line of the log says: which run of which key began or ended when, or that a lease was lost. */
export type LogLine = [key: string, run: string, what: 'begin' | 'end' | 'lost', at: number]

type Fate = 'answer' | 'stream' | 'late' | 'throw' | 'fail' | 'break' | 'die'

/** Out of 1,000 runs. The rest answers. */
const FATES: readonly [Fate, number][] = [
  ['stream', 120],
  ['late', 120],
  ['throw', 100],
  ['fail', 60],
  ['break', 80],
  ['die', 3],
]

/** A time-out in front of the handlers, which ends the response and does not know of them. */
const TIME_OUT_MS = 300

const [kind, at, ttl, log] = process.argv.slice(2) as [Exclude<StoreKind, 'memory'>, string, Duration, string]
const locks = createLocks(storeAt(kind, at), { ttl })
locks.on('error', () => {})
locks.on('lost', () => note('', '', 'lost', now()))
const file = openSync(log, 'a')
const note = (...line: LogLine): unknown => writeSync(file, `${JSON.stringify(line)}\n`)
const now = (): number => Number(process.hrtime.bigint()) / 1e6

function chooseFate(): Fate {
  let left = Math.random() * 1_000
  for (const [fate, share] of FATES) if ((left -= share) < 0) return fate
  return 'answer'
}

async function* pieces(run: string, breaks: boolean): AsyncGenerator<string> {
  yield 'run '
  await sleep(Math.random() * 30)
  if (breaks) throw new Error('the stream broke')
  yield run
}

/** Sends a text or a stream. `later`: the stream outlives the handler, as that of a `Response` does. */
type Send = (status: number, body: string | Readable) => 'later' | undefined

/** What a handler does, whatever the framework. */
async function work(key: string, send: Send): Promise<void> {
  const run = `${process.pid}-${Math.random().toString(36).slice(2)}`
  note(key, run, 'begin', now())
  try {
    const fate = chooseFate()
    await sleep(fate === 'late' ? TIME_OUT_MS * 2 + Math.random() * 300 : Math.random() * 40)
    if (fate === 'die') {
      note(key, run, 'end', now())
      process.kill(process.pid, 'SIGKILL')
    }
    if (fate === 'throw') throw new Error('no luck')
    if (fate === 'fail') send(500, 'failed')
    else if (fate === 'stream' || fate === 'break') {
      const body = Readable.from(pieces(run, fate === 'break'))
      body.on('error', () => {})
      const closed = new Promise((resolve) => body.once('close', resolve))
      if (send(201, body) !== 'later') await closed
    } else send(201, `run ${run}`)
  } finally {
    note(key, run, 'end', now())
  }
}

interface Outgoing extends ServerResponse {
  status(code: number): Outgoing
  send(body: unknown): Outgoing
}
interface Reply {
  raw: ServerResponse
  sent: boolean
  code(status: number): Reply
  send(body: unknown): Reply
  header(name: string, value: string): Reply
}
type Body = { body: { key: string } }
type Next = (error?: unknown) => void

const load = createRequire(import.meta.url)
const shared = { scope: () => '' }

function answer(response: Outgoing): Send {
  return (status, body) => {
    if (response.headersSent) {
      if (body instanceof Readable) body.destroy()
      return undefined
    }
    response.status(status)
    if (body instanceof Readable) pipeline(body, response, () => {})
    else response.send(body)
    return undefined
  }
}

const express = load('express') as (() => {
  (request: IncomingMessage, response: ServerResponse): void
  set(name: string, value: string): void
  use(...handlers: unknown[]): void
  post(path: string, ...handlers: unknown[]): void
}) & { json(): unknown }
const app = express()
// Express prints errors otherwise.
app.set('env', 'test')
const charge = (request: IncomingMessage & Body, response: Outgoing): Promise<void> =>
  work(request.body.key, answer(response))
app.use(express.json(), (_: unknown, response: Outgoing, next: Next) => {
  setTimeout(() => {
    if (!response.headersSent) response.status(503).send('timed out')
  }, TIME_OUT_MS)
  next()
})
app.post('/handler', idempotentHandler(locks, charge as never, shared))
app.post(
  '/middleware',
  idempotentExpress(locks, shared),
  (request: IncomingMessage & Body, response: Outgoing, next: Next) => {
    charge(request, response).catch(next)
  },
)
app.use((_error: Error, _: unknown, response: Outgoing, next: Next) => {
  if (response.headersSent) return next(_error)
  return response.status(500).send('thrown')
})

const fastify = (load('fastify') as () => unknown)() as {
  register(plugin: unknown): Promise<void>
  post(path: string, handler: (request: Body, reply: Reply) => unknown): void
  ready(): Promise<void>
  routing(request: IncomingMessage, response: ServerResponse): void
}
await fastify.register(idempotentFastify(locks, shared))
fastify.post('/fastify', async (request, reply) => {
  setTimeout(() => {
    if (!reply.sent) reply.code(503).send('timed out')
  }, TIME_OUT_MS)
  await work(request.body.key, (status, body) => {
    if (reply.sent) {
      if (body instanceof Readable) body.destroy()
    } else reply.header('content-type', 'text/plain').code(status).send(body)
    return undefined
  })
  return reply
})
await fastify.ready()

const fetched = idempotentFetch(
  locks,
  async (request) => {
    const { key } = (await request.json()) as { key: string }
    let response = new Response('nothing', { status: 500 })
    await work(key, (status, body) => {
      response = new Response(typeof body === 'string' ? body : (Readable.toWeb(body) as ReadableStream), { status })
      return 'later'
    })
    return response
  },
  shared,
)

/** The least that connects a Fetch-style handler to `node:http`. */
async function serveFetch(incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  const chunks: Buffer[] = []
  try {
    for await (const chunk of incoming) chunks.push(chunk as Buffer)
  } catch {
    // The client has left, and its request never came.
    return
  }
  const headers = incoming.headers as Record<string, string>
  const late = setTimeout(() => {
    if (!outgoing.headersSent) outgoing.writeHead(503).end('timed out')
  }, TIME_OUT_MS)
  try {
    const init = { method: 'POST', headers, body: Buffer.concat(chunks) }
    const response = await fetched(new Request(`http://shop${incoming.url}`, init))
    if (outgoing.headersSent) return void (await response.body?.cancel())
    outgoing.writeHead(response.status, Object.fromEntries(response.headers))
    for await (const chunk of response.body ?? []) outgoing.write(chunk)
    outgoing.end()
  } catch {
    if (!outgoing.headersSent) outgoing.writeHead(500).end('thrown')
    else outgoing.destroy()
  } finally {
    clearTimeout(late)
  }
}

const server = createServer((request, response) => {
  if (request.url?.startsWith('/fastify')) fastify.routing(request, response)
  else if (request.url?.startsWith('/fetch')) void serveFetch(request, response)
  else app(request, response)
})
server.listen(0, '127.0.0.1', () => {
  console.log(JSON.stringify({ port: (server.address() as AddressInfo).port }))
})

// The parent process is gone.
process.stdin.resume().once('end', () => process.exit())
