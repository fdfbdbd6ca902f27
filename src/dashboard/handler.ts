import type { IncomingMessage, ServerResponse } from 'node:http'
import { gunzipSync } from 'node:zlib'
import type { Locks } from '../locks.js'
import { InvalidOptionError } from '../errors.js'
import { reasonOf } from '../util/reason.js'
import { redact } from '../util/redact.js'
import { type Access, SECURITY_HEADERS, crossSiteRefusal, embeddingRefusal } from './access.js'
import { metadataOf } from './holders.js'
import type { LockDetail } from './protocol.js'
import { LONGEST_BODY, type Releases } from './release.js'
import { MOST_STREAMS, STREAM_HEADERS, type Streams } from './streams.js'
import type { Sampler } from './sampler.js'
import { pageCss, pageHtml, pageJs, pageLoginHtml, pageLoginJs } from './page/embedded.js'
import { prometheusText } from './prometheus.js'

/** FRESH_MS: a scrape of /metrics takes a sample of its own unless there is one that is no older. */
const FRESH_MS = 1_000
/** DETAIL_MS: for this long, all who ask for one name get the same answer: a panel asks twice a second. */
const DETAIL_MS = 300
/** WRONG_TOKEN_PAUSE_MS: pause before a wrong token is answered, against guessing. */
const WRONG_TOKEN_PAUSE_MS = 500

/** A file of the page: compressed when it was built. */
interface Asset {
  type: string
  /** Gzip, as base64. */
  content: string
}

const HTML = 'text/html; charset=utf-8'
const ASSETS: Record<string, Asset> = {
  '/': { type: HTML, content: pageHtml },
  '/app.js': { type: 'text/javascript; charset=utf-8', content: pageJs },
  '/app.css': { type: 'text/css; charset=utf-8', content: pageCss },
  '/login.js': { type: 'text/javascript; charset=utf-8', content: pageLoginJs },
}
/** What a visitor without a token needs to type one. */
const OPEN_PATHS = new Set(['/app.css', '/login.js'])

export interface HandlerParts {
  locks: Locks
  sampler: Sampler
  streams: Streams
  access: Access
  /** Undefined: nothing can be released here. */
  releases: Releases | undefined
}

/** Answers the requests of the page. */
export class RequestHandler {
  readonly #parts: HandlerParts
  readonly #details = new Map<string, Promise<LockDetail>>()

  constructor(parts: HandlerParts) {
    this.#parts = parts
  }

  /** `path`: below the place where the dashboard is mounted. `base`: that place. */
  async answer(request: IncomingMessage, response: ServerResponse, path: string, base: string): Promise<void> {
    for (const [name, value] of Object.entries(SECURITY_HEADERS)) response.setHeader(name, value)
    const { access } = this.#parts
    const url = new URL(`http://dashboard${path}`)
    const refused = access.refusal(request) ?? embeddingRefusal(request, url.pathname)
    if (refused !== undefined) return sendText(response, 403, refused)
    if (url.pathname === '/login' && request.method === 'POST') return this.#signIn(request, response, base)
    const isOpen = OPEN_PATHS.has(url.pathname)
    if (!isOpen && !access.isAllowed(request)) {
      if (url.pathname === '/') return sendAsset(request, response, { type: HTML, content: pageLoginHtml }, 401)
      response.setHeader('www-authenticate', 'Bearer')
      return sendText(response, 401, 'a token is needed')
    }
    if (url.pathname === '/api/release') return this.#release(request, response)
    if (request.method !== 'GET' && request.method !== 'HEAD') {
      response.setHeader('allow', 'GET, HEAD')
      return sendText(response, 405, 'only GET')
    }
    return this.#get(request, response, url)
  }

  async #get(request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
    const { streams, sampler } = this.#parts
    const asset = ASSETS[url.pathname]
    if (asset && Object.hasOwn(ASSETS, url.pathname)) return sendAsset(request, response, asset, 200)
    if (url.pathname === '/events') {
      if (streams.size >= MOST_STREAMS) return sendText(response, 503, 'too many pages are open')
      if (request.method === 'HEAD') return void response.writeHead(200, STREAM_HEADERS).end()
      return streams.open(response)
    }
    if (url.pathname === '/api/lock') return this.#detail(response, url.searchParams)
    if (url.pathname === '/metrics') {
      await sampler.fresh(FRESH_MS)
      response.setHeader('content-type', 'text/plain; version=0.0.4; charset=utf-8')
      return void response.end(prometheusText(sampler))
    }
    sendText(response, 404, 'there is nothing here')
  }

  async #detail(response: ServerResponse, query: URLSearchParams): Promise<void> {
    const [kind, name] = [query.get('kind') ?? 'lock', query.get('name') ?? '']
    const key = `${kind}\0${name}`
    try {
      let asked = this.#details.get(key)
      if (!asked) {
        this.#details.set(key, (asked = this.#inspect(kind, name)))
        setTimeout(() => this.#details.delete(key), DETAIL_MS).unref()
      }
      sendJson(response, 200, await asked)
    } catch (error) {
      const message = redact(reasonOf(error))
      sendJson(response, error instanceof InvalidOptionError ? 400 : 503, { error: message })
    }
  }

  async #inspect(kind: string, name: string): Promise<LockDetail> {
    const { holders, waiters } = await this.#parts.locks.inspect(name, { kind })
    return {
      now: Date.now(),
      kind,
      name,
      holders: holders.map(({ holder }) => holder),
      waiters: waiters.slice(0, 200).map(({ holder, mode, weight, waitedMs, metadata }) => ({
        holder,
        mode,
        weight: kind === 'semaphore' ? weight : undefined,
        waitedMs,
        metadata: metadataOf(metadata),
      })),
    }
  }

  async #release(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { releases } = this.#parts
    if (request.method !== 'POST') {
      response.setHeader('allow', 'POST')
      return sendText(response, 405, 'only POST')
    }
    const refused = crossSiteRefusal(request)
    if (refused !== undefined) return sendText(response, 403, refused)
    if (!releases) return sendText(response, 403, 'this dashboard only shows: it was started without --allow-release')
    const body = await bodyOf(request)
    if (body === undefined) return sendText(response, 413, 'the request is too large')
    const by = request.socket.remoteAddress ?? 'unknown'
    const { status, body: answer } = await releases.release(parsed(body), by)
    sendJson(response, status, answer)
  }

  async #signIn(request: IncomingMessage, response: ServerResponse, base: string): Promise<void> {
    const refused = crossSiteRefusal(request)
    if (refused !== undefined) return sendText(response, 403, refused)
    const { token } = (parsed((await bodyOf(request)) ?? '') ?? {}) as { token?: unknown }
    const cookie = typeof token === 'string' ? this.#parts.access.signIn(token, request, `${base}/`) : undefined
    if (cookie === undefined) {
      await new Promise((resolve) => setTimeout(resolve, WRONG_TOKEN_PAUSE_MS))
      return sendJson(response, 401, { error: 'this is not the token' })
    }
    response.setHeader('set-cookie', cookie)
    sendJson(response, 200, {})
  }
}

/** Undefined: too long. A framework may have read it already. */
async function bodyOf(request: IncomingMessage & { body?: unknown }): Promise<string | undefined> {
  if (request.body !== undefined) return JSON.stringify(request.body)
  const parts: Buffer[] = []
  let size = 0
  for await (const part of request) {
    size += (part as Buffer).length
    if (size > LONGEST_BODY) return undefined
    parts.push(part as Buffer)
  }
  return Buffer.concat(parts).toString('utf8')
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function sendText(response: ServerResponse, status: number, text: string): void {
  response.writeHead(status, { 'content-type': 'text/plain; charset=utf-8', 'cache-control': 'no-store' })
  response.end(`${text}\n`)
}

function sendJson(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json; charset=utf-8', 'cache-control': 'no-store' })
  response.end(JSON.stringify(body))
}

function sendAsset(request: IncomingMessage, response: ServerResponse, asset: Asset, status: number): void {
  const compressed = Buffer.from(asset.content, 'base64')
  const takesGzip = /\bgzip\b/.test(request.headers['accept-encoding'] ?? '')
  // Not kept by the browser: after an update of the package the page and the server have to fit.
  response.writeHead(status, {
    'content-type': asset.type,
    'cache-control': 'no-cache',
    vary: 'accept-encoding',
    ...(takesGzip ? { 'content-encoding': 'gzip' } : {}),
  })
  response.end(takesGzip ? compressed : gunzipSync(compressed))
}
