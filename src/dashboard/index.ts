/**
 * A web page that shows who holds what, live: `leasehold dashboard`, or mounted in a server of your own.
 *
 * @module
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { InvalidOptionError } from '../errors.js'
import { type Locks, storeOf } from '../locks.js'
import { knownOptions } from '../util/options.js'
import { redact } from '../util/redact.js'
import { Access, tokenFrom } from './access.js'
import { RequestHandler } from './handler.js'
import type { Hello, ReleaseAction } from './protocol.js'
import { Releases } from './release.js'
import { Sampler } from './sampler.js'
import { Streams } from './streams.js'

export type { ReleaseAction } from './protocol.js'

/** Options of `dashboard`. */
export interface DashboardOptions {
  /** Where it is mounted in a server that does not say so itself, such as `/locks` with node:http. Express says it. */
  path?: string | undefined
  /** What the page calls this store, such as `orders, production`. */
  title?: string | undefined
  /** Visitors have to type it once; programs send `Authorization: Bearer …`. Absent: your server decides who may look. */
  token?: string | undefined
  /** Show a button that takes a lock away from its holders. Absent: the page only shows. */
  allowRelease?: boolean | undefined
  /** Called after each use of that button, to keep a log. */
  onAction?: ((action: ReleaseAction) => void) | undefined
  /** Answer only requests for localhost: protects a server without a token from web pages elsewhere. */
  loopbackOnly?: boolean | undefined
}

/** A request handler for node:http, Express and whatever calls handlers like them. */
export interface DashboardHandler {
  (request: IncomingMessage, response: ServerResponse, next?: (error?: unknown) => void): void
  /** Ends all open pages. The locks stay as they are. */
  close(): void
}

const KNOWN = ['path', 'title', 'token', 'allowRelease', 'onAction', 'loopbackOnly']

/**
 * The dashboard as a request handler. It reads the store only while a page is open, once for all pages.
 *
 * @example
 * ```ts
 * app.use('/locks', requireAdmin, dashboard(locks))
 * ```
 */
export function dashboard(locks: Locks, options: DashboardOptions = {}): DashboardHandler {
  if (typeof locks?.holderPages !== 'function') {
    throw new InvalidOptionError('locks', locks, 'what createLocks or openLocks returned')
  }
  const { allowRelease = false, onAction, token, title, loopbackOnly = false } = knownOptions(options, KNOWN)
  const path = pathFrom(options.path)
  const store = storeOf(locks)
  const actions: ReleaseAction[] = []
  const sampler: Sampler = new Sampler(locks, {
    sessions: store?.expiry === 'session',
    actions: () => actions,
    onSample: (changes) => streams.send(changes),
  })
  const hello = (): Hello => ({
    title: redact(title ?? store?.name ?? 'locks'),
    store: store?.name ?? 'unknown',
    queue: store === undefined || store.features.queue || store.blocks === true,
    expiry: store?.expiry ?? 'timed',
    allowRelease,
    limiters: store === undefined || store.take !== undefined,
    publish: store === undefined || store.features.values,
    now: Date.now(),
    history: sampler.contention.points,
  })
  const streams = new Streams(sampler, hello)
  const access = new Access({ token: token === undefined ? undefined : tokenFrom(token), loopbackOnly })
  const releases = allowRelease ? new Releases(locks, sampler.losses, actions, onAction) : undefined
  const requests = new RequestHandler({ locks, sampler, streams, access, releases })
  const handle = (request: IncomingMessage, response: ServerResponse, next?: (error?: unknown) => void): void => {
    const mounted = mountOf(request, path)
    if (mounted === undefined) return next ? next() : void notFound(response)
    if (mounted.redirect !== undefined) return void redirect(response, mounted.redirect)
    requests.answer(request, response, mounted.path, mounted.base).catch((error: unknown) => {
      if (next) return next(error)
      if (!response.headersSent) response.writeHead(500)
      response.end()
    })
  }
  return Object.assign(handle, {
    close(): void {
      sampler.close()
      streams.close()
    },
  })
}

function pathFrom(path: unknown): string {
  if (path === undefined || path === '/') return ''
  if (typeof path === 'string' && /^\/[^?#\s]*[^/?#\s]$/.test(path)) return path
  throw new InvalidOptionError('path', path, "a path without a slash at its end, such as '/locks'")
}

interface Mount {
  /** What is asked for, below the place where the dashboard is mounted. */
  path: string
  base: string
  /** Where to go instead: the page needs a slash at the end, because its files are relative to it. */
  redirect?: string
}

/** Express removes the mount path from `url` and keeps it in `baseUrl`. Undefined: not a request for us. */
function mountOf(
  request: IncomingMessage & { baseUrl?: string; originalUrl?: string },
  path: string,
): Mount | undefined {
  const url = request.url ?? '/'
  const base = request.baseUrl || path
  let rest = url
  if (!request.baseUrl && path !== '') {
    if (!url.startsWith(path) || !/^(?:[/?]|$)/.test(url.slice(path.length))) return undefined
    rest = url.slice(path.length)
  }
  const asked = request.baseUrl ? (request.originalUrl ?? url) : url
  const isRoot = base !== '' && asked.split('?')[0] === base
  if (isRoot) return { path: '/', base, redirect: `${base.slice(base.lastIndexOf('/') + 1)}/` }
  return { path: rest.startsWith('/') ? rest : `/${rest}`, base }
}

function redirect(response: ServerResponse, to: string): void {
  response.writeHead(308, { location: to })
  response.end()
}

function notFound(response: ServerResponse): void {
  response.writeHead(404)
  response.end()
}
