import type { HolderView, WaiterView } from '../../store.js'
import { type EtcdRecord, grantRevisionOf } from './codec.js'
import type { EtcdContext } from './context.js'
import { type Directory, type Entry, isHolder, readDirectory } from './directory.js'
import type { KeyValue } from './messages.js'

/** Holders on one page, by the contract of `holderPages`. */
const MAX_PAGE = 1_000
/** Leases of one page whose remaining time is asked for, each with a request: those of more are shown with the ttl they had last. */
const MOST_ASKED = 50

/** What is left of each lease, in milliseconds; 0 if it is gone. */
async function remaining({ client }: EtcdContext, entries: readonly Entry[]): Promise<Map<bigint, number>> {
  const ids = new Set(entries.map(({ kv }) => kv.lease).filter((id) => id !== 0n))
  const left = new Map<bigint, number>()
  await Promise.all(
    [...ids].slice(0, MOST_ASKED).map(async (id) => {
      const { ttlS } = await client.timeToLive(id)
      // Whole seconds, rounded down: 0 is a lease that ends within a second.
      left.set(id, ttlS < 0 ? 0 : Math.max(ttlS * 1_000, 1))
    }),
  )
  return left
}

function holderView(
  { offset, tracked, world }: EtcdContext,
  key: string,
  { kv, owner, record }: Entry,
  facts: { waiting: number; ttlMs: number | undefined },
): HolderView {
  const { waiting, ttlMs } = facts
  if (!record) return { key, owner, weight: 1, capacity: 1, ttlMs, waiting, foreign: true }
  const { weight, capacity, value, since } = record
  const known = tracked.get(key, owner)
  return {
    key,
    owner,
    weight,
    capacity,
    token: offset.tokenOf(grantRevisionOf(record, kv)),
    // Our own end when their time has passed, also if their lease in etcd lasts longer.
    ttlMs: known ? Math.max(known.deadline - world.now(), 1) : Math.min(ttlMs ?? record.ttlMs, record.ttlMs),
    heldMs: Math.max(world.date() - since, 0),
    value,
    waiting,
  }
}

/** One key, or a page of them. */
async function views(
  context: EtcdContext,
  pages: readonly { key: string; directory: Directory }[],
): Promise<HolderView[]> {
  const holdersOf = ({ directory }: { directory: Directory }): Entry[] =>
    directory.entries.filter((entry) => isHolder(entry, directory))
  const left = await remaining(context, pages.flatMap(holdersOf))
  return pages.flatMap((page) => {
    const holders = holdersOf(page)
    const waiting = page.directory.entries.length - holders.length
    return holders
      .filter(({ kv }) => left.get(kv.lease) !== 0)
      .map((entry) => holderView(context, page.key, entry, { waiting, ttlMs: left.get(entry.kv.lease) }))
  })
}

export async function inspectKey(
  context: EtcdContext,
  key: string,
): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
  const { client, keys, world, offset } = context
  await offset.ready()
  const { kvs, header } = await client.range(keys.directory(key))
  const directory = readDirectory(keys, kvs, header.revision)
  const waiting = directory.entries.filter((entry) => !isHolder(entry, directory))
  const waiterView = ({ owner, record }: Entry): WaiterView => {
    const { weight = 1, capacity = 1, since, value } = record ?? ({} as Partial<EtcdRecord>)
    const waitedMs = since === undefined ? undefined : Math.max(world.date() - since, 0)
    return { key, owner, weight, capacity, waitedMs, value }
  }
  return { holders: await views(context, [{ key, directory }]), waiters: waiting.map(waiterView) }
}

/** All holders below a prefix, in pages of one revision each. The entries of a key are never torn apart. */
export async function* holderPages(context: EtcdContext, prefix: string): AsyncGenerator<HolderView[]> {
  const { client, keys, offset } = context
  await offset.ready()
  const { key: start, end } = keys.beginningWith(prefix)
  let from = start
  let carried: KeyValue[] = []
  for (;;) {
    const { kvs, more, header } = await client.range({ key: from, end, limit: MAX_PAGE })
    const groups = groupByKey(context, [...carried, ...kvs])
    carried = more ? (groups.pop()?.kvs ?? []) : []
    const directories = groups.map(({ key, kvs: part }) => ({
      key,
      directory: readDirectory(keys, part, header.revision),
    }))
    const page = await views(context, directories)
    for (let at = 0; at === 0 || at < page.length; at += MAX_PAGE) yield page.slice(at, at + MAX_PAGE)
    const last = kvs.at(-1)
    if (!more || !last) return
    from = Buffer.concat([last.key, Buffer.of(0)])
  }
}

function groupByKey({ keys }: EtcdContext, kvs: readonly KeyValue[]): { key: string; kvs: KeyValue[] }[] {
  const groups: { key: string; kvs: KeyValue[] }[] = []
  for (const kv of kvs) {
    const parsed = keys.parse(kv.key)
    if (!parsed) continue
    const last = groups.at(-1)
    if (last?.key === parsed.key) last.kvs.push(kv)
    else groups.push({ key: parsed.key, kvs: [kv] })
  }
  return groups
}
