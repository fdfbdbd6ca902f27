import { InvalidOptionError } from '../errors.js'
import { type Duration, milliseconds } from '../kit/duration.js'
import { ALL, type Store } from '../store.js'
import type { Ask } from './ask.js'
import { knownOptions } from '../util/options.js'
import { nameFrom, namespaceFrom } from './name.js'

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
  /** Never renew past this, so that a hung holder lets go. */
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
}

/** Shorter leases cannot be renewed in time by anything that shares a machine with others. */
const SHORTEST_TTL = 10
/** Whoever writes a bare number below this as a ttl mostly means seconds. */
const LIKELY_SECONDS = 100
const MOST_REMEMBERED = 1_000
const LARGEST_METADATA = 4_096

/** What each call takes. An option that means nothing to a call is refused there, however well it is known elsewhere. */
export const optionsOf: {
  readonly [call in 'locks' | 'acquire' | 'tryAcquire' | 'withLock' | 'close' | 'inspect']: readonly string[]
} = {
  locks: ['ttl', 'wait', 'namespace'],
  acquire: ['ttl', 'wait', 'signal', 'mode', 'metadata', 'autoRenew', 'maxHold'],
  tryAcquire: ['ttl', 'signal', 'mode', 'metadata', 'autoRenew', 'maxHold'],
  withLock: ['ttl', 'wait', 'signal', 'mode', 'metadata', 'autoRenew', 'maxHold', 'nested'],
  close: ['grace'],
  inspect: ['kind'],
}

/** Turns what callers write into an `Ask`, or says which option is wrong, before anything is touched. */
export class Defaults {
  readonly ttlMs: number
  readonly waitMs: number
  readonly namespace: string | undefined
  readonly prefix: string
  readonly #store: Store
  readonly #plain = new Map<string, Ask>()

  constructor(store: Store, options: LocksOptions) {
    const { ttl = '30s', wait = '10s', namespace } = knownOptions(options, optionsOf.locks)
    this.#store = store
    this.ttlMs = ttlFrom('ttl', ttl, store)
    this.waitMs = waitFrom(wait)
    if (namespace !== undefined) namespaceFrom(namespace)
    this.namespace = namespace
    this.prefix = namespace === undefined ? '' : `${namespace}:`
  }

  key(kind: string, name: string): string {
    nameFrom('name', name)
    const key = `${kind}:${this.prefix}${name}`
    this.#store.partition?.(key)
    return key
  }

  /** An ask is never changed once it is made, so the plain ones are made once per name. */
  ask(
    kind: string,
    name: string,
    options: AcquireOptions | undefined,
    known: readonly string[] = optionsOf.acquire,
  ): Ask {
    if (options !== undefined || kind !== 'lock') return this.#build(kind, name, options, known)
    let ask = this.#plain.get(name)
    if (!ask) {
      ask = this.#build(kind, name, options, known)
      if (this.#plain.size >= MOST_REMEMBERED) this.#plain.clear()
      this.#plain.set(name, ask)
    }
    return ask
  }

  #build(kind: string, name: string, options: AcquireOptions | undefined, known: readonly string[]): Ask {
    const key = this.key(kind, name)
    const { ttlMs, waitMs } = this
    const ask: Ask = {
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
    if (options !== undefined) this.#apply(ask, knownOptions(options, known))
    return ask
  }

  #apply(ask: Ask, options: AcquireOptions): void {
    const { ttl, wait, signal, mode, metadata, autoRenew, maxHold } = options
    if (ttl !== undefined) ask.ttlMs = ttlFrom('ttl', ttl, this.#store)
    if (wait !== undefined) ask.waitMs = waitFrom(wait)
    if (signal !== undefined) ask.signal = signalFrom(signal)
    if (mode !== undefined) setMode(ask, mode)
    if (metadata !== undefined) ask.value = jsonFrom('metadata', metadata, LARGEST_METADATA)
    if (autoRenew !== undefined) ask.autoRenew = flagFrom('autoRenew', autoRenew)
    if (maxHold !== undefined) {
      ask.maxHoldMs = milliseconds('maxHold', maxHold, { min: SHORTEST_TTL })
      ask.ttlMs = Math.min(ask.ttlMs, ask.maxHoldMs)
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

function setMode(ask: Ask, mode: unknown): void {
  if (mode === 'shared') {
    ask.mode = mode
    ask.weight = 1
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
