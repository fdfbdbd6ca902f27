/**
 * Who holds what: from the indexes, without walking the keyspace; and, for holders who are not ours, by walking it a little.
 * In pages, one after the other: a listing must not keep the server from granting locks.
 *
 * @module
 */
import type { HolderView, WaiterView } from '../../store.js'
import { type Adapter, type RedisReply, type RedisServer, text } from '../../clients/redis/adapter.js'
import { type KeyView, viewOf } from './codec.js'
import { type Keys, kindOf, literally } from './keys.js'
import { type RedisScripts, type Transport, settledWithin } from './transport.js'

/** PAGE: fields of an index, or holders and waiters of one key, in one call: some hundred microseconds of the server's time. */
const PAGE = 250
/** KEYS_AT_ONCE: keys inspected in one call. */
const KEYS_AT_ONCE = 50
/** HURRIED: keys listed without a pause. A longer listing pauses after each call, so that it leaves most of the server to others. */
const HURRIED = 1_000
/** PAUSE_MS: the pause after a call of a long listing. */
const PAUSE_MS = 1
/** MOST_IN_PAGE: by the contract of `holderPages`. A name with many readers fills several pages. */
const MOST_IN_PAGE = 1_000
/** AT_ONCE: calls under way at once on a cluster, where there may be an index per slot. Elsewhere one. */
const AT_ONCE = 32

export class RedisInspector {
  readonly #transport: Transport
  readonly #keys: Keys
  readonly #scripts: RedisScripts
  readonly #foreign: ForeignHolders | undefined
  /** What a script is given besides the index and the plain keys. */
  readonly #sideKeys: (keys: readonly string[]) => string[]
  /** Without it, a listing could miss what this store has just been granted. */
  readonly #announced: () => Promise<void>

  constructor(
    transport: Transport,
    keys: Keys,
    scripts: RedisScripts,
    options: {
      foreign: ForeignHolders | undefined
      sideKeys: (keys: readonly string[]) => string[]
      announced: () => Promise<void>
    },
  ) {
    this.#transport = transport
    this.#keys = keys
    this.#scripts = scripts
    this.#foreign = options.foreign
    this.#sideKeys = options.sideKeys
    this.#announced = options.announced
  }

  async holders(prefix: string): Promise<HolderView[]> {
    const views: HolderView[] = []
    for await (const page of this.pages(prefix)) views.push(...page)
    return views.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
  }

  /** One call after the other: no page is read before the caller asks for it. */
  async *pages(prefix: string): AsyncGenerator<HolderView[]> {
    const calls = { keys: 0, sincePause: 0 }
    // Foreign holders are searched for meanwhile.
    const searched = Promise.resolve(this.#foreign?.keys(prefix) ?? [])
    searched.catch(() => {})
    const listed = new Set<string>()
    const atOnce = this.#keys.cluster ? AT_ONCE : 1
    const ours = (await this.#indexes(prefix)).map((index) => this.#listed(index, prefix, { listed, calls }))
    for await (const page of merged(ours, atOnce)) yield* chunks(page, MOST_IN_PAGE)
    const byIndex = new Map<string, string[]>()
    for (const key of (await searched).filter((each) => !listed.has(each))) {
      const { name } = this.#keys.index(key)
      const keys = byIndex.get(name)
      if (keys) keys.push(key)
      else byIndex.set(name, [key])
    }
    const foreign = [...byIndex].map(([index, keys]) => this.#holdersOf(index, keys, calls))
    for await (const page of merged(foreign, atOnce)) yield* chunks(page, MOST_IN_PAGE)
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    const { name } = this.#keys.index(key)
    const holders = new Map<string, HolderView>()
    const waiters = new Map<string, WaiterView>()
    for (let from = 0; ; from += PAGE) {
      const [view] = await this.#run(name, [key], 'all', from)
      // By owner: a waiter that comes or goes between two pages moves the others, and one would be listed twice.
      for (const holder of view?.holders ?? []) holders.set(holder.owner, holder)
      for (const waiter of view?.waiters ?? []) waiters.set(waiter.owner, waiter)
      if (!view?.more) return { holders: [...holders.values()], waiters: [...waiters.values()] }
    }
  }

  async revoke(key: string): Promise<HolderView[]> {
    const [view] = await this.#run(this.#keys.index(key).name, [key], 'revoke', 0)
    return view?.holders ?? []
  }

  async #run(
    index: string,
    keys: readonly string[],
    mode: 'holders' | 'all' | 'revoke',
    from: number,
  ): Promise<KeyView[]> {
    const named = [index, ...keys.map((key) => this.#keys.plain(key)), ...this.#sideKeys(keys)]
    const args = [String(keys.length), mode, String(from), String(PAGE)]
    const replies = (await this.#transport.run(this.#scripts.inspect, named, args)) as RedisReply[]
    return replies.map((reply, i) => viewOf(reply, keys[i] as string))
  }

  async *#holdersOf(index: string, keys: readonly string[], calls: ListingCalls): AsyncGenerator<HolderView[]> {
    for (const part of chunks(keys, KEYS_AT_ONCE)) {
      await pauseAfter(calls, part.length)
      const found: HolderView[] = []
      const views = await this.#run(index, part, 'holders', 0)
      for (const [i, view] of views.entries()) {
        const { holders } = view.more ? await this.inspect(part[i] as string) : view
        for (const holder of holders) found.push(holder)
      }
      yield found
    }
  }

  /** A whole kind in the prefix, on one server, has one index. Else the directory says which there are. */
  async #indexes(prefix: string): Promise<string[]> {
    const kind = kindOf(prefix)
    const whole = kind.length < prefix.length
    if (whole && !this.#keys.cluster) return [this.#keys.index(prefix).name]
    await this.#announced()
    // ZSCAN may return a member twice.
    const found = new Set<string>()
    let cursor = '0'
    do {
      const args = [cursor, String(PAGE)]
      const [next, ...page] = (await this.#transport.run(
        this.#scripts.list,
        [this.#keys.directory],
        args,
      )) as RedisReply[]
      for (const index of page.map(text)) {
        const of = this.#keys.kindOfIndex(index)
        if (whole ? of === kind : of.startsWith(prefix)) found.add(index)
      }
      cursor = text(next)
    } while (cursor !== '0')
    return [...found]
  }

  /** The holders of all keys in an index that match. */
  async *#listed(
    index: string,
    prefix: string,
    { listed, calls }: { listed: Set<string>; calls: ListingCalls },
  ): AsyncGenerator<HolderView[]> {
    for await (const plains of this.#plains(index, prefix, calls)) {
      const keys = plains.map((plain) => this.#keys.key(plain))
      for (const key of keys) listed.add(key)
      yield* this.#holdersOf(index, keys, calls)
    }
  }

  async *#plains(index: string, prefix: string, calls: ListingCalls): AsyncGenerator<string[]> {
    const pattern = `${literally(this.#keys.lead + prefix)}*`
    // HSCAN may return a field twice.
    const seen = new Set<string>()
    let cursor = '0'
    do {
      const args = [cursor, pattern, String(PAGE)]
      const [next, ...page] = (await this.#transport.run(this.#scripts.list, [index], args)) as RedisReply[]
      const anew = page.map(text).filter((plain) => !seen.has(plain))
      for (const plain of anew) seen.add(plain)
      await pauseAfter(calls, anew.length)
      if (anew.length > 0) yield anew
      cursor = text(next)
    } while (cursor !== '0')
  }
}

/** How many keys a listing has asked for. */
interface ListingCalls {
  keys: number
  sincePause: number
}

async function pauseAfter(calls: ListingCalls, keys: number): Promise<void> {
  calls.keys += keys
  calls.sincePause += keys
  if (calls.keys < HURRIED || calls.sincePause < KEYS_AT_ONCE) return
  calls.sincePause = 0
  await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
}

function chunks<T>(items: readonly T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, i) => items.slice(i * size, (i + 1) * size))
}

/** The pages of several sources, as they come, from at most so many of them at once. */
async function* merged<T>(sources: readonly AsyncGenerator<T>[], atOnce: number): AsyncGenerator<T> {
  const pending = new Map<number, Promise<{ from: number; result: IteratorResult<T> }>>()
  const read = (from: number): void => {
    const result = (sources[from] as AsyncGenerator<T>).next().then((next) => ({ from, result: next }))
    // The first failure is thrown below; those of the others must not be unhandled rejections.
    result.catch(() => {})
    pending.set(from, result)
  }
  let started = 0
  for (; started < Math.min(atOnce, sources.length); started++) read(started)
  while (pending.size > 0) {
    const { from, result } = await Promise.race(pending.values())
    pending.delete(from)
    if (!result.done) {
      yield result.value
      read(from)
    } else if (started < sources.length) read(started++)
  }
}

/** STEP: keys per SCAN, half a millisecond of the server's time. */
const STEP = 1_000
/** A walk that took this long is not repeated before twenty times as long has passed: five per cent of the time at most. */
const REST = 20

/**
 * Keys that may be locks of another library: redis-py, node-redlock, a hand-written `SET NX PX`. They are in no index of ours,
 * so they are found by SCAN, over all masters, and never by KEYS.
 */
export class ForeignHolders {
  readonly #adapter: Adapter
  readonly #keys: Keys
  readonly #waitMs: number
  /** What the last whole walk found, and what the present one did so far. */
  #known = new Set<string>()
  #walking: Promise<void> | undefined
  #restUntil = 0
  #closed = false

  constructor(adapter: Adapter, keys: Keys, waitMs: number) {
    this.#adapter = adapter
    this.#keys = keys
    this.#waitMs = waitMs
  }

  /** Keys of kind `lock` under this prefix, ours among them. Waits for a walk, but not for ever: what it finds later counts later. */
  async keys(prefix: string): Promise<string[]> {
    if (!prefix.startsWith('lock:') && !'lock:'.startsWith(prefix)) return []
    if (!this.#walking && performance.now() >= this.#restUntil) this.#walk()
    if (this.#walking) await settledWithin(this.#waitMs, this.#walking)
    return [...this.#known].filter((key) => key.startsWith(prefix))
  }

  close(): void {
    this.#closed = true
  }

  #walk(): void {
    const startedAt = performance.now()
    this.#walking = this.#findAll()
      .catch(() => {})
      .finally(() => {
        const endedAt = performance.now()
        this.#walking = undefined
        this.#restUntil = endedAt + (endedAt - startedAt) * REST
      })
  }

  async #findAll(): Promise<void> {
    const found = new Set<string>()
    const servers = await this.#adapter.masters()
    // One server after the other: a listing is never urgent.
    for (const server of servers) await this.#findOn(server, found)
    this.#known = found
  }

  async #findOn(server: RedisServer, found: Set<string>): Promise<void> {
    const pattern = `${literally(`${this.#keys.lead}lock:`)}*`
    let cursor = '0'
    do {
      const page = await server.send('SCAN', cursor, 'MATCH', pattern, 'COUNT', String(STEP))
      const [next, plains] = page as [RedisReply, RedisReply[]]
      for (const plain of plains) {
        const key = this.#keys.key(text(plain))
        found.add(key)
        this.#known.add(key)
      }
      cursor = text(next)
    } while (cursor !== '0' && !this.#closed)
  }
}
