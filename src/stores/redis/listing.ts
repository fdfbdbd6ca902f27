/**
 * Who holds what: from the indexes, without walking the keyspace; and, for holders who are not ours, by walking it a little.
 *
 * @module
 */
import type { HolderView } from '../../store.js'
import { type Reply, text } from '../../clients/redis/adapter.js'
import type { Foreigners } from './foreigners.js'
import { type Names, kindOf, literally } from './names.js'
import { viewOf } from './replies.js'
import type { Scripts } from './scripts.js'
import type { Transport } from './transport.js'

/** Fields per page of an index: some hundred microseconds of the server's time. */
const PAGE = 1_000
/** Keys looked at in one call. */
const LOOK = 100
/** Calls under way at once: on a cluster there may be an index per slot. */
const AT_ONCE = 64

export class Listing {
  readonly #transport: Transport
  readonly #names: Names
  readonly #scripts: Scripts
  readonly #foreigners: Foreigners | undefined

  constructor(transport: Transport, names: Names, scripts: Scripts, foreigners: Foreigners | undefined) {
    this.#transport = transport
    this.#names = names
    this.#scripts = scripts
    this.#foreigners = foreigners
  }

  async holders(prefix: string): Promise<HolderView[]> {
    const [indexes, strangers] = await Promise.all([this.#indexes(prefix), this.#foreigners?.keys(prefix) ?? []])
    const found = new Map<string, Set<string>>()
    const note = (index: string, plain: string): void => {
      const known = found.get(index)
      if (known) known.add(plain)
      else found.set(index, new Set([plain]))
    }
    await each(indexes, async (index) => {
      for (const plain of await this.#plains(index, prefix)) note(index, plain)
    })
    for (const key of strangers) note(this.#names.index(key).name, this.#names.lead + key)
    const pages = [...found].flatMap(([index, plains]) => chunks([...plains], LOOK).map((page) => ({ index, page })))
    const views: HolderView[] = []
    await each(pages, async ({ index, page }) => {
      const replies = (await this.#transport.run(this.#scripts.look, [index, ...page], ['holders'])) as Reply[]
      for (const [i, reply] of replies.entries())
        views.push(...viewOf(reply, this.#names.key(page[i] as string)).holders)
    })
    return views.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
  }

  /** A whole kind in the prefix, on one server, has one index. Else the directory says which there are. */
  async #indexes(prefix: string): Promise<string[]> {
    const kind = kindOf(prefix)
    const whole = kind.length < prefix.length
    if (whole && !this.#names.cluster) return [this.#names.index(prefix).name]
    const known = ((await this.#transport.run(this.#scripts.list, [this.#names.directory], [])) as Reply[]).map(text)
    return known.filter((index) => {
      const of = this.#names.kindOfIndex(index)
      return whole ? of === kind : of.startsWith(prefix)
    })
  }

  async #plains(index: string, prefix: string): Promise<string[]> {
    const pattern = `${literally(this.#names.lead + prefix)}*`
    const plains: string[] = []
    let cursor = '0'
    do {
      const args = [cursor, pattern, String(PAGE)]
      const [next, ...page] = (await this.#transport.run(this.#scripts.list, [index], args)) as Reply[]
      plains.push(...page.map(text))
      cursor = text(next)
    } while (cursor !== '0')
    return plains
  }
}

function chunks<T>(items: readonly T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, i) => items.slice(i * size, (i + 1) * size))
}

async function each<T>(items: readonly T[], work: (item: T) => Promise<void>): Promise<void> {
  let next = 0
  const worker = async (): Promise<void> => {
    while (next < items.length) await work(items[next++] as T)
  }
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, items.length) }, worker))
}
