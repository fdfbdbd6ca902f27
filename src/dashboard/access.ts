import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { isIP } from 'node:net'
import { InvalidOptionError } from '../errors.js'

/** SHORTEST_TOKEN: characters. A shorter one could be guessed over the network. */
const SHORTEST_TOKEN = 16
const COOKIE = 'leasehold_dashboard'
const OTHER_SITE = 'requests from other sites are refused'

/** A token that is fit to protect a dashboard. No message shows it. */
export function tokenFrom(token: unknown): string {
  if (typeof token === 'string' && token.trim() === token && token.length >= SHORTEST_TOKEN) return token
  const message = `token takes at least ${SHORTEST_TOKEN} characters without spaces around them, such as the output of: openssl rand -hex 16`
  throw new InvalidOptionError('token', undefined, '', message)
}

/** Whether only this machine can reach a server that listens there. */
export function isLoopback(host: string): boolean {
  const bare = host.replace(/^\[|\]$/g, '').toLowerCase()
  return bare === 'localhost' || bare === '::1' || (isIP(bare) === 4 && bare.startsWith('127.'))
}

/** Who may read the dashboard and press its buttons. */
export class Access {
  readonly #token: string | undefined
  readonly #loopbackOnly: boolean
  /** Of this process: a restart ends all sessions. */
  readonly #secret: Buffer = randomBytes(32)

  constructor(options: { token: string | undefined; loopbackOnly: boolean }) {
    this.#token = options.token
    this.#loopbackOnly = options.loopbackOnly
  }

  /** Why this request is refused, with or without a token; undefined if it is not. */
  refusal(request: IncomingMessage): string | undefined {
    const host = request.headers.host
    // A web page elsewhere can make its own name point to 127.0.0.1, and would then be allowed to read this one.
    if (this.#loopbackOnly && (host === undefined || !isLoopback(hostnameOf(host)))) {
      return 'this dashboard answers only to requests for localhost'
    }
    return undefined
  }

  isAllowed(request: IncomingMessage): boolean {
    if (this.#token === undefined) return true
    const [, bearer] = /^Bearer (.+)$/i.exec(request.headers.authorization ?? '') ?? []
    if (bearer !== undefined) return same(bearer, this.#token)
    const session = cookies(request).find((cookie) => cookie.startsWith(`${COOKIE}=`))
    return session !== undefined && same(session.slice(COOKIE.length + 1), this.#session)
  }

  /** The cookie for a visitor who typed the right token; undefined if it was wrong. */
  signIn(typed: string, request: IncomingMessage, path: string): string | undefined {
    if (this.#token === undefined || !same(typed, this.#token)) return undefined
    const { encrypted } = request.socket as { encrypted?: boolean }
    const isTls = encrypted === true || request.headers['x-forwarded-proto'] === 'https'
    return `${COOKIE}=${this.#session}; Path=${path}; HttpOnly; SameSite=Strict${isTls ? '; Secure' : ''}`
  }

  get #session(): string {
    return createHmac('sha256', this.#secret)
      .update(this.#token ?? '')
      .digest('base64url')
  }
}

/**
 * Why a request of a page elsewhere is refused; undefined if it is none, or only follows a link. It could not read the answer,
 * but keep the store and this process busy.
 */
export function embeddingRefusal({ headers }: IncomingMessage, path: string): string | undefined {
  const site = headers['sec-fetch-site']
  if (site !== 'cross-site' && site !== 'same-site') return undefined
  return headers['sec-fetch-dest'] === 'document' && path !== '/events' ? undefined : OTHER_SITE
}

/**
 * Why a request that changes something is refused; undefined if it is not. Another site can make a browser send a form, but
 * neither this header nor this content type without asking first, which is never allowed.
 */
export function crossSiteRefusal({ headers }: IncomingMessage): string | undefined {
  const site = headers['sec-fetch-site']
  if (site !== undefined && site !== 'same-origin') return OTHER_SITE
  if (headers.origin !== undefined && originHost(headers.origin) !== headers.host) return OTHER_SITE
  if (!/^application\/json\b/i.test(headers['content-type'] ?? '')) return 'the content type has to be application/json'
  if (headers['x-leasehold-dashboard'] === undefined) return 'the header X-Leasehold-Dashboard is missing'
  return undefined
}

function originHost(origin: string): string | undefined {
  try {
    return new URL(origin).host
  } catch {
    return undefined
  }
}

function hostnameOf(host: string): string {
  return host.replace(/:\d+$/, '')
}

function cookies(request: IncomingMessage): string[] {
  return (request.headers.cookie ?? '').split(/; */)
}

/** In a time that does not tell how much of it was right. */
function same(given: string, right: string): boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest()
  return timingSafeEqual(digest(given), digest(right))
}

/** No script but ours, no markup from text, no frame around it, nothing from elsewhere. */
export const SECURITY_HEADERS: Readonly<Record<string, string>> = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; " +
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
}
