import type { AcquireRequest } from '../core/request.js'
import type { Engine } from '../core/engine.js'
import type { Lock } from '../core/lock.js'
import { type AcquireOptions, type Defaults, optionsOf } from '../core/options.js'
import { knownOptions } from '../util/options.js'
import { InvalidOptionError, UnsupportedError } from '../errors.js'
import { type NestedOption, withLock } from './lock.js'
import { SUPPORTED_BY } from './supported-by.js'

/** The method determines `mode`. */
export type ReadWriteCall = Omit<AcquireOptions, 'mode'> & NestedOption

/** Options of `locks.readWrite`. */
export interface ReadWriteOptions {
  /**
   * `'accepted'`: also on a store without a queue (Redlock), where a steady stream of readers can keep a writer out.
   */
  starvation?: 'accepted' | undefined
}

/**
 * Readers share, a writer excludes; first come, first served, so that neither starves.
 *
 * @example
 * ```ts
 * const config = locks.readWrite('config')
 * const current = await config.read(() => load())
 * await config.write(async (lock) => save(next, lock.fencingToken))
 * ```
 */
export class ReadWriteLock {
  readonly #engine: Engine
  readonly #defaults: Defaults
  readonly #name: string

  /** @internal */
  constructor(engine: Engine, defaults: Defaults, name: string, options: ReadWriteOptions) {
    const { starvation } = knownOptions(options, ['starvation'])
    if (starvation !== undefined && starvation !== 'accepted') {
      throw new InvalidOptionError('starvation', starvation, "'accepted'")
    }
    if (!engine.store.features.queue && !starvation) {
      throw new UnsupportedError(
        `readWrite needs a queue so that writers do not starve, and the ${engine.store.name} store has none: pass { starvation: 'accepted' } if a steady stream of readers may keep a writer out, or use ${SUPPORTED_BY.readWrite}`,
      )
    }
    defaults.key('lock', name)
    this.#engine = engine
    this.#defaults = defaults
    this.#name = name
  }

  /** Runs `fn` beside other readers, never beside a writer. */
  async read<T>(fn: (lock: Lock) => T | Promise<T>, options?: ReadWriteCall): Promise<T> {
    return withLock(this.#engine, this.#buildRequest('shared', options), fn, options?.nested)
  }

  /** Runs `fn` alone. */
  async write<T>(fn: (lock: Lock) => T | Promise<T>, options?: ReadWriteCall): Promise<T> {
    return withLock(this.#engine, this.#buildRequest('exclusive', options), fn, options?.nested)
  }

  /** Holds it beside other readers until `release()`. */
  async acquireRead(options?: Omit<AcquireOptions, 'mode'>): Promise<Lock> {
    return this.#engine.acquire(this.#buildRequest('shared', options, optionsOf.acquire))
  }

  /** Holds it alone until `release()`. */
  async acquireWrite(options?: Omit<AcquireOptions, 'mode'>): Promise<Lock> {
    return this.#engine.acquire(this.#buildRequest('exclusive', options, optionsOf.acquire))
  }

  #buildRequest(
    mode: 'exclusive' | 'shared',
    options: ReadWriteCall | undefined,
    known: readonly string[] = optionsOf.withLock,
  ): AcquireRequest {
    const given = (options as AcquireOptions | undefined)?.mode
    if (given !== undefined) throw new InvalidOptionError('mode', given, 'no value in readWrite: its methods say it')
    if (options !== undefined) knownOptions(options, known)
    return this.#defaults.buildRequest('lock', this.#name, { ...options, mode }, known)
  }
}
