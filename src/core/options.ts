import { InvalidOptionError } from '../errors.js'
import { type Duration, milliseconds } from '../util/duration.js'
import { ALL, type Store } from '../store.js'
import type { AcquireRequest } from './request.js'
import { knownOptions } from '../util/options.js'
import { nameFrom, namespaceFrom } from './name.js'
import type { CallFacts } from './timed-call.js'

/** Options of each call that asks for a lock. */
export interface AcquireOptions {
  /** How long it is held unless renewed. A crashed holder blocks the others for at most this long. */
  ttl?: Duration | undefined
  /** Give up after this long. 0: one attempt. `'forever'`: never. */
  wait?: Duration | 'forever' | undefined
  /** Cancels the wait. Has no effect once the lock is held. */
  signal?: AbortSignal | undefined
  /** `shared`: any number at once, but never beside an exclusive one. */
  mode?: 'exclusive' | 'shared' | undefined
  /** JSON for others to see in `inspect` and listings, at most 4 KB. */
  metadata?: unknown
  /** false: the lock ends when its ttl has passed. */
  autoRenew?: boolean | undefined
  /** Never renew past this, so that a hung holder loses it. */
  maxHold?: Duration | undefined
}

/** Defaults for all calls of one `createLocks`. */
export interface LocksOptions {
  /** Default 30s. */
  ttl?: Duration | undefined
  /** Default 10s. */
  wait?: Duration | 'forever' | undefined
  /** Put before every name, so that several applications can share one store. */
  namespace?: string | undefined
  /** For metrics: called after each call to the store, with how long it took and what came of it. */
  onCall?: ((facts: CallFacts) => void) | undefined
  /**
   * Keep figures of this process in the store for dashboards, written this often: waits, holds, losses, schedules, limiters.
   * Absent: nothing is written.
   */
  publish?: Duration | undefined
}

/** Milliseconds. Shorter leases cannot be renewed in time by anything that shares a machine with others. */
export const SHORTEST_TTL = 10
/** SHORTEST_PUBLISH, LONGEST_PUBLISH: milliseconds. More often costs the store, less often shows nobody anything. */
const SHORTEST_PUBLISH = 500
const LONGEST_PUBLISH = 3_600_000
/** A bare number below this as a ttl is mostly meant as seconds. */
const LIKELY_SECONDS = 100
const MOST_REMEMBERED = 1_000
const LARGEST_METADATA = 4_096

/** What each call takes. An option that means nothing to a call is refused there, however well it is known elsewhere. */
export const optionsOf: {
  readonly [call in 'locks' | 'acquire' | 'tryAcquire' | 'withLock' | 'close' | 'inspect']: readonly string[]
} = {
  locks: ['ttl', 'wait', 'namespace', 'onCall', 'publish'],
  acquire: ['ttl', 'wait', 'signal', 'mode', 'metadata', 'autoRenew', 'maxHold'],
  tryAcquire: ['ttl', 'signal', 'mode', 'metadata', 'autoRenew', 'maxHold'],
  withLock: ['ttl', 'wait', 'signal', 'mode', 'metadata', 'autoRenew', 'maxHold', 'nested'],
  close: ['grace'],
  inspect: ['kind'],
}

/** Turns what callers write into an `AcquireRequest`, or says which option is wrong, before anything is touched. */
export class Defaults {
  readonly ttlMs: number
  readonly waitMs: number
  readonly namespace: string | undefined
  readonly onCall: ((facts: CallFacts) => void) | undefined
  /** Undefined: nothing is published. */
  readonly publishMs: number | undefined
  readonly prefix: string
  readonly #store: Store
  readonly #plain = new Map<string, AcquireRequest>()

  constructor(store: Store, options: LocksOptions) {
    const { ttl = '30s', wait = '10s', namespace, onCall, publish } = knownOptions(options, optionsOf.locks)
    this.#store = store
    this.ttlMs = ttlFrom('ttl', ttl, store)
    this.waitMs = waitFrom(wait)
    if (namespace !== undefined) namespaceFrom(namespace)
    this.namespace = namespace
    if (onCall !== undefined && typeof onCall !== 'function') {
      throw new InvalidOptionError('onCall', onCall, 'a function')
    }
    this.onCall = onCall
    this.publishMs =
      publish === undefined
        ? undefined
        : milliseconds('publish', publish, { min: SHORTEST_PUBLISH, max: LONGEST_PUBLISH })
    this.prefix = namespace === undefined ? '' : `${namespace}:`
  }

  key(kind: string, name: string): string {
    nameFrom('name', name)
    const key = `${kind}:${this.prefix}${name}`
    this.#store.partition?.(key)
    return key
  }

  /** A request is never changed once it is built, so plain ones are built once per name. */
  buildRequest(
    kind: string,
    name: string,
    options: AcquireOptions | undefined,
    known: readonly string[] = optionsOf.acquire,
  ): AcquireRequest {
    if (options !== undefined || kind !== 'lock') return this.#build(kind, name, options, known)
    let request = this.#plain.get(name)
    if (!request) {
      request = this.#build(kind, name, options, known)
      if (this.#plain.size >= MOST_REMEMBERED) this.#plain.clear()
      this.#plain.set(name, request)
    }
    return request
  }

  #build(kind: string, name: string, options: AcquireOptions | undefined, known: readonly string[]): AcquireRequest {
    const key = this.key(kind, name)
    const { ttlMs, waitMs } = this
    const request: AcquireRequest = {
      name,
      kind,
      key,
      mode: 'exclusive',
      weight: ALL,
      capacity: ALL,
      ttlMs,
      waitMs,
      autoRenew: true,
      maxHoldMs: undefined,
      value: undefined,
      signal: undefined,
    }
    if (options !== undefined) this.#apply(request, knownOptions(options, known))
    return request
  }

  #apply(request: AcquireRequest, options: AcquireOptions): void {
    const { ttl, wait, signal, mode, metadata, autoRenew, maxHold } = options
    if (ttl !== undefined) request.ttlMs = ttlFrom('ttl', ttl, this.#store)
    if (wait !== undefined) request.waitMs = waitFrom(wait)
    if (signal !== undefined) request.signal = signalFrom(signal)
    if (mode !== undefined) setMode(request, mode)
    if (metadata !== undefined) request.value = jsonFrom('metadata', metadata, LARGEST_METADATA)
    if (autoRenew !== undefined) request.autoRenew = flagFrom('autoRenew', autoRenew)
    if (maxHold !== undefined) {
      request.maxHoldMs = milliseconds('maxHold', maxHold, { min: SHORTEST_TTL })
      request.ttlMs = Math.min(request.ttlMs, request.maxHoldMs)
    }
  }
}

let warned = false

function warnOfSeconds(option: string, ttl: number): void {
  if (warned) return
  warned = true
  const meant = `a lock of ${ttl} milliseconds cannot be renewed reliably. Write '${ttl}s' for seconds, or '${ttl}ms'`
  process.emitWarning(`${option}: ${ttl} means ${ttl} milliseconds: ${meant} if that is meant.`, 'LeaseholdWarning')
}

export function ttlFrom(option: string, ttl: unknown, store: Store): number {
  const max = store.maxTtlMs
  if (typeof ttl === 'number' && ttl < LIKELY_SECONDS && ttl >= SHORTEST_TTL) warnOfSeconds(option, ttl)
  return Math.ceil(milliseconds(option, ttl, max === undefined ? { min: SHORTEST_TTL } : { min: SHORTEST_TTL, max }))
}

function waitFrom(wait: unknown): number {
  return wait === 'forever' ? Number.POSITIVE_INFINITY : milliseconds('wait', wait, { or: "'forever'" })
}

function setMode(request: AcquireRequest, mode: unknown): void {
  if (mode === 'shared') {
    request.mode = mode
    request.weight = 1
  } else if (mode !== 'exclusive') throw new InvalidOptionError('mode', mode, "'exclusive' or 'shared'")
}

export function signalFrom(signal: unknown): AbortSignal {
  // By shape: a test environment may have an AbortSignal of its own.
  const { aborted, addEventListener } = (signal ?? {}) as Partial<AbortSignal>
  if (typeof aborted === 'boolean' && typeof addEventListener === 'function') return signal as AbortSignal
  throw new InvalidOptionError('signal', signal, 'an AbortSignal')
}

export function flagFrom(option: string, value: unknown): boolean {
  if (typeof value === 'boolean') return value
  throw new InvalidOptionError(option, value, 'true or false')
}

/** As JSON text of at most `most` bytes. */
export function jsonFrom(option: string, value: unknown, most: number): string {
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch {
    text = undefined
  }
  if (text === undefined) throw new InvalidOptionError(option, value, 'something that JSON can carry')
  if (Buffer.byteLength(text) <= most) return text
  throw new InvalidOptionError(option, Buffer.byteLength(text), `at most ${most} bytes of JSON`)
}
