/**
 * Who holds what: from the indexes, without walking the keyspace; and, for holders who are not ours, by walking it a little.
 * In pages, one after the other: whoever lists must not keep the server from those who lock.
 *
 * @module
 */
import type { HolderView, WaiterView } from '../../store.js'
import { type Reply, text } from '../../clients/redis/adapter.js'
import { type KeyView, viewOf } from './codec.js'
import type { ForeignHolders } from './foreign-holders.js'
import { type Keys, kindOf, literally } from './keys.js'
import type { Scripts } from './scripts.js'
import type { Transport } from './transport.js'

/** PAGE: fields of an index, or holders and waiters of one key, in one call: some hundred microseconds of the server's time. */
const PAGE = 250
/** KEYS_AT_ONCE: keys inspected in one call. */
const KEYS_AT_ONCE = 50
/** HURRIED: keys listed without a pause. A longer listing pauses after each call, so that it leaves most of the server to others. */
const HURRIED = 1_000
const PAUSE_MS = 1
/** AT_ONCE: calls under way at once on a cluster, where there may be an index per slot. Elsewhere one. */
const AT_ONCE = 32

export class Inspector {
  readonly #transport: Transport
  readonly #keys: Keys
  readonly #scripts: Scripts
  readonly #foreign: ForeignHolders | undefined
  /** What a script is given besides the index and the plain keys. */
  readonly #sideKeys: (keys: readonly string[]) => string[]

  constructor(
    transport: Transport,
    keys: Keys,
    scripts: Scripts,
    foreign: ForeignHolders | undefined,
    sideKeys: (keys: readonly string[]) => string[],
  ) {
    this.#transport = transport
    this.#keys = keys
    this.#scripts = scripts
    this.#foreign = foreign
    this.#sideKeys = sideKeys
  }

  async holders(prefix: string): Promise<HolderView[]> {
    const calls = { keys: 0, sincePause: 0 }
    const [indexes, strangers] = await Promise.all([this.#indexes(prefix), this.#foreign?.keys(prefix) ?? []])
    const unlisted = new Set(strangers)
    const views: HolderView[] = []
    const atOnce = this.#keys.cluster ? AT_ONCE : 1
    await each(indexes, atOnce, async (index) => {
      for await (const plains of this.#plains(index, prefix, calls)) {
        const keys = plains.map((plain) => this.#keys.key(plain))
        for (const key of keys) unlisted.delete(key)
        views.push(...(await this.#holdersOf(index, keys, calls)))
      }
    })
    const byIndex = new Map<string, string[]>()
    for (const key of unlisted) {
      const { name } = this.#keys.index(key)
      byIndex.set(name, [...(byIndex.get(name) ?? []), key])
    }
    await each([...byIndex], atOnce, async ([index, keys]) => {
      views.push(...(await this.#holdersOf(index, keys, calls)))
    })
    return views.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    const { name } = this.#keys.index(key)
    const holders = new Map<string, HolderView>()
    const waiters = new Map<string, WaiterView>()
    for (let from = 0; ; from += PAGE) {
      const [view] = await this.#run(name, [key], 'all', from)
      // By owner: whoever comes or goes between two pages moves the others.
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
    const replies = (await this.#transport.run(this.#scripts.inspect, named, args)) as Reply[]
    return replies.map((reply, i) => viewOf(reply, keys[i] as string))
  }

  async #holdersOf(index: string, keys: readonly string[], calls: Calls): Promise<HolderView[]> {
    const found: HolderView[] = []
    for (const part of chunks(keys, KEYS_AT_ONCE)) {
      await pauseAfter(calls, part.length)
      const views = await this.#run(index, part, 'holders', 0)
      for (const [i, view] of views.entries()) {
        if (view.more) found.push(...(await this.inspect(part[i] as string)).holders)
        else found.push(...view.holders)
      }
    }
    return found
  }

  /** A whole kind in the prefix, on one server, has one index. Else the directory says which there are. */
  async #indexes(prefix: string): Promise<string[]> {
    const kind = kindOf(prefix)
    const whole = kind.length < prefix.length
    if (whole && !this.#keys.cluster) return [this.#keys.index(prefix).name]
    const found: string[] = []
    for (let from = 0; ; from += PAGE) {
      const args = [String(from), String(from + PAGE - 1)]
      const page = (await this.#transport.run(this.#scripts.list, [this.#keys.directory], args)) as Reply[]
      for (const index of page.map(text)) {
        const of = this.#keys.kindOfIndex(index)
        if (whole ? of === kind : of.startsWith(prefix)) found.push(index)
      }
      if (page.length < PAGE) return [...new Set(found)]
    }
  }

  async *#plains(index: string, prefix: string, calls: Calls): AsyncGenerator<string[]> {
    const pattern = `${literally(this.#keys.lead + prefix)}*`
    // HSCAN may return a field twice.
    const seen = new Set<string>()
    let cursor = '0'
    do {
      const args = [cursor, pattern, String(PAGE)]
      const [next, ...page] = (await this.#transport.run(this.#scripts.list, [index], args)) as Reply[]
      const anew = page.map(text).filter((plain) => !seen.has(plain))
      for (const plain of anew) seen.add(plain)
      await pauseAfter(calls, anew.length)
      if (anew.length > 0) yield anew
      cursor = text(next)
    } while (cursor !== '0')
  }
}

/** How many keys a listing has asked for. */
interface Calls {
  keys: number
  sincePause: number
}

async function pauseAfter(calls: Calls, keys: number): Promise<void> {
  calls.keys += keys
  calls.sincePause += keys
  if (calls.keys < HURRIED || calls.sincePause < KEYS_AT_ONCE) return
  calls.sincePause = 0
  await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
}

function chunks<T>(items: readonly T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, i) => items.slice(i * size, (i + 1) * size))
}

async function each<T>(items: readonly T[], atOnce: number, work: (item: T) => Promise<void>): Promise<void> {
  let next = 0
  const worker = async (): Promise<void> => {
    while (next < items.length) await work(items[next++] as T)
  }
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, worker))
}
