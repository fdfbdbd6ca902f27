/**
 * Sending scripts: only when they leave at once, by their hash, and with their text where a server does not know them.
 *
 * @module
 */
import { StoreUnavailableError, UnsupportedError } from '../../errors.js'
import { formatDuration } from '../../util/duration.js'
import type { Adapter, RedisReply } from '../../clients/redis/adapter.js'
import { isNoScript, runScript, type Script, scriptOf } from '../../clients/redis/script.js'
import { type Index, type Keys, slotOf } from './keys.js'
import * as lua from './lua/embedded.js'
import { unavailable } from './errors.js'

/** The text of each .lua file. */
export type RedisScriptSources = Readonly<Record<keyof typeof lua, string>>

export interface RedisScripts {
  readonly acquire: Script
  readonly renew: Script
  readonly release: Script
  readonly inspect: Script
  readonly take: Script
  readonly index: Script
  readonly list: Script
  readonly probe: Script
  readonly time: Script
}

export const embedded: RedisScriptSources = lua

const INCLUDE = '-- INCLUDE common.lua\n'

/** On a cluster events are told within the shard: plain PUBLISH would visit every node of it. */
export function composeScripts(sources: RedisScriptSources, cluster: boolean): RedisScripts {
  const compose = (source: string): Script => {
    const whole = source.replace(INCLUDE, () => sources.common)
    return scriptOf(cluster ? whole.replaceAll("local PUBLISH = 'PUBLISH'", "local PUBLISH = 'SPUBLISH'") : whole)
  }
  return {
    acquire: compose(sources.acquire),
    renew: compose(sources.renew),
    release: compose(sources.release),
    inspect: compose(sources.inspect),
    take: compose(sources.take),
    index: compose(sources.index),
    list: compose(sources.list),
    probe: compose(sources.probe),
    time: compose(sources.time),
  }
}

/** PROBE_MS, LONGEST_PROBE_MS: how often a server is probed after a failure, at first and at most. Shorter hot-loops while it is down. */
const PROBE_MS = 50
const LONGEST_PROBE_MS = 1_000
/**
 * REFUSED_MS: how long a call waits for a client that has reported an error since it was last connected: long enough for one more
 * attempt, short enough that a caller is told why within its `wait`.
 */
const REFUSED_MS = 250
/** CALM_MS: a failure this long after the last recovery is a new one, and is probed soon. */
const CALM_MS = 5_000

export interface TransportOptions {
  timeoutMs: number
  /** A script that does no more than answer, with a key of the server that is to answer. */
  probe: Script
  /** A key to probe with where there is only one server. */
  anyKey: string
  /** A server answers again after a failure: nobody knows what it still knows of these slots. */
  onRecovered: (affected: (slot: number) => boolean) => void
}

/** Looking whether one server is back. */
interface Probe {
  timer: NodeJS.Timeout | undefined
  pauseMs: number
  recoveredAt: number
}

export class Transport {
  readonly #adapter: Adapter
  readonly #timeoutMs: number
  readonly #options: TransportOptions
  /** By the address of the server. */
  readonly #probes = new Map<string, Probe>()
  #closed = false

  constructor(adapter: Adapter, options: TransportOptions) {
    this.#adapter = adapter
    this.#timeoutMs = options.timeoutMs
    this.#options = options
    adapter.onConnectionLost(() => this.#probeSoon(options.anyKey))
  }

  close(): void {
    this.#closed = true
    for (const { timer } of this.#probes.values()) clearTimeout(timer)
  }

  /** Rejects with what is wrong, as a `StoreUnavailableError`. */
  run(script: Script, keys: string[], args: string[]): Promise<RedisReply> {
    return this.ask(script, keys, args, (reply) => reply)
  }

  /** `run`, and what is made of the reply: one promise, since every further one shows in the price of a lock. */
  ask<T>(script: Script, keys: string[], args: string[], read: (reply: RedisReply) => T | Promise<T>): Promise<T> {
    const adapter = this.#adapter
    if (!adapter.ready()) return this.whenReady().then(() => this.ask(script, keys, args, read))
    const failure = (error: unknown): never => this.#fail(error, keys[0] as string)
    return runScript(adapter, script, keys, args, { reply: read, failure })
  }

  #fail(error: unknown, key: string): never {
    // Not every client tells when it is connected again, and a server may come back as another than it was.
    if (!(error instanceof Error) || !/^(NOPERM|NOAUTH|OOM|WRONGTYPE|TRYAGAIN|ERR)\b/.test(error.message))
      this.#probeSoon(key)
    throw unavailable(error)
  }

  #slotOf(key: string): number {
    return this.#adapter.cluster ? slotOf(key) : 0
  }

  /** Soon, unless it had just recovered: a server that answers and refuses (a replica) would be asked without end. */
  #probeSoon(key: string): void {
    const address = this.#adapter.addressOf(this.#slotOf(key)) ?? ''
    let probe = this.#probes.get(address)
    if (!probe) {
      probe = { timer: undefined, pauseMs: PROBE_MS, recoveredAt: Number.NEGATIVE_INFINITY }
      this.#probes.set(address, probe)
    }
    if (probe.timer) return
    const calm = performance.now() - probe.recoveredAt > CALM_MS
    probe.pauseMs = calm ? PROBE_MS : Math.min(probe.pauseMs * 2, LONGEST_PROBE_MS)
    this.#probeIn(probe, key, probe.pauseMs)
  }

  #probeIn(probe: Probe, key: string, ms: number): void {
    if (this.#closed) return
    probe.timer = setTimeout(() => {
      const again = (): void => this.#probeIn(probe, key, Math.min(ms * 2, LONGEST_PROBE_MS))
      if (this.#adapter.closed()) return
      if (!this.#adapter.ready()) return again()
      this.#adapter.evalsha(this.#options.probe.sha, [key], []).then(
        () => this.#recovered(probe, key),
        (error: unknown) => (isNoScript(error) ? this.#recovered(probe, key) : again()),
      )
    }, ms)
    probe.timer.unref()
  }

  #recovered(probe: Probe, key: string): void {
    probe.timer = undefined
    probe.recoveredAt = performance.now()
    if (this.#closed) return
    this.#adapter.compareMasters()
    const address = this.#adapter.addressOf(this.#slotOf(key))
    this.#options.onRecovered((slot) => this.#adapter.addressOf(slot) === address)
  }

  /**
   * A client that is not connected would put the question into a queue, and carry it out minutes later, when the caller
   * has long given up. So it is not given to the client before that is ready, and not at all if that takes too long.
   */
  whenReady(): Promise<void> {
    const adapter = this.#adapter
    if (adapter.ready()) return Promise.resolve()
    adapter.wake()
    return new Promise((resolve, reject) => {
      const settle = (error?: Error): void => {
        clearTimeout(timer)
        stop()
        if (error) reject(error)
        else resolve()
      }
      const giveUp = (waitedMs: number): void => {
        const reason = unavailable(adapter.whyNotReady()).message
        const waited = `not connected within ${formatDuration(waitedMs)}`
        settle(new StoreUnavailableError(`${reason}; ${waited}`, { cause: adapter.whyNotReady() }))
      }
      const limit = (ms: number): void => {
        clearTimeout(timer)
        timer = setTimeout(giveUp, ms, ms)
        timer.unref()
      }
      const look = (): void => {
        if (adapter.ready()) settle()
        else if (adapter.closed()) settle(unavailable(adapter.whyNotReady()))
        else if (adapter.lastError !== undefined && !refused) {
          refused = true
          limit(Math.min(REFUSED_MS, this.#timeoutMs))
        }
      }
      let refused = false
      let timer: NodeJS.Timeout | undefined
      limit(this.#timeoutMs)
      const stop = adapter.onStateChange(look)
      look()
    })
  }
}

/**
 * Each group of a batch in a call of its own, the answers in the order of the items. A group whose call fails is answered
 * by `failed`, item by item: the other groups have been carried out, and their answers must not be lost with it.
 */
export async function regrouped<I, O, G>(
  items: readonly I[],
  groupOf: (item: I) => G,
  call: (part: I[], group: G) => Promise<O[]>,
  failed: (error: unknown) => O,
): Promise<O[]> {
  const groups = new Map<G, number[]>()
  for (const [i, item] of items.entries()) {
    const group = groupOf(item)
    const members = groups.get(group)
    if (members) members.push(i)
    else groups.set(group, [i])
  }
  const answers: O[] = []
  await Promise.all(
    [...groups].map(async ([group, members]) => {
      try {
        const part = await call(
          members.map((i) => items[i] as I),
          group,
        )
        for (const [at, i] of members.entries()) answers[i] = part[at] as O
      } catch (error) {
        for (const i of members) answers[i] = failed(error)
      }
    }),
  )
  return answers
}

/** Items of one index, and the names of their keys behind that of the index. */
export interface IndexedCall<I> {
  readonly items: readonly I[]
  readonly index: Index
  readonly names: string[]
}

/**
 * `regrouped` by index: the core never mixes slots in a call, but may mix kinds, which have an index each. `together`: all or
 * none, which one call has to decide.
 */
export function byIndex<I extends { key: string }, O>(
  keys: Keys,
  items: readonly I[],
  together: boolean,
  call: (indexed: IndexedCall<I>) => Promise<O[]>,
  failed: (error: unknown) => O,
): Promise<O[]> {
  if (items.length === 0) return Promise.resolve([])
  const indexed = indexedCall(keys, items)
  if (indexed) return call(indexed)
  if (together)
    throw new UnsupportedError('redis grants all or none only for keys of one kind and, on a cluster, of one slot')
  const ask = (part: readonly I[], group: Index | Error): Promise<O[]> => {
    if (group instanceof Error) throw group
    return call(indexedCall(keys, part) as IndexedCall<I>)
  }
  return regrouped(items, (item) => indexOf(keys, item), ask, failed)
}

/** Undefined if the items have several indexes, or one of them cannot be carried. */
function indexedCall<I extends { key: string }>(keys: Keys, items: readonly I[]): IndexedCall<I> | undefined {
  try {
    const { index, plain } = keys.of((items[0] as I).key)
    const names = [index.name, plain]
    for (let i = 1; i < items.length; i++) {
      const name = keys.plainIn(index, (items[i] as I).key)
      if (name === undefined) return undefined
      names.push(name)
    }
    return { items, index, names }
  } catch {
    return undefined
  }
}

/** The index of this key, or why the key cannot be carried. */
function indexOf(keys: Keys, { key }: { key: string }): Index | Error {
  try {
    return keys.index(key)
  } catch (error) {
    return error as Error
  }
}

/** Waits for a promise that never rejects, but not longer than this. */
export async function settledWithin(ms: number, promise: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms)
    timer.unref()
  })
  await Promise.race([promise, late])
  clearTimeout(timer)
}
