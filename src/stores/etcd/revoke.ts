/**
 * Break glass: ends every lease of a key, and tells the processes that held them.
 *
 * @module
 */
import type { HolderView } from '../../store.js'
import { NOTICE_MS } from './acquire.js'
import { evictionOf } from './attempt.js'
import { grantRevisionOf } from './codec.js'
import type { EtcdContext } from './context.js'
import { type Entry, isHolder, readDirectory } from './directory.js'
import { inspectKey } from './inspect.js'
import type { EtcdLease } from './leases.js'
import type { Operation } from './messages.js'

/** Holders ended in one transaction: etcd takes 128 operations. */
const AT_ONCE = 50

/** How often holders that are written anew meanwhile are read again. */
const MOST_ROUNDS = 5

export async function revoke(context: EtcdContext, key: string): Promise<HolderView[]> {
  const { leases } = context
  const { holders } = await inspectKey(context, key)
  if (holders.length === 0) return []
  const known = new Set(holders.map(({ owner }) => owner))
  let entries = (await holdersOf(context, key)).filter(({ owner }) => known.has(owner))
  // Those that are granted the key from here on are not meant.
  const meant = new Set(entries.map(grantOf))
  const ended = new Set<string>()
  for (let round = 0; entries.length > 0; round++) {
    if (round === MOST_ROUNDS) throw new Error('etcd: the holders changed faster than they could be ended')
    const notices = await leases.shared(NOTICE_MS)
    const tried = entries
    const gone: Entry[] = []
    for (let from = 0; from < tried.length; from += AT_ONCE)
      gone.push(...(await end(context, key, tried.slice(from, from + AT_ONCE), notices)))
    for (const { owner } of gone) ended.add(owner)
    entries = (await holdersOf(context, key)).filter((entry) => meant.has(grantOf(entry)))
    for (const { owner } of entries) ended.delete(owner)
  }
  return holders.filter(({ owner }) => ended.has(owner))
}

async function holdersOf({ client, keys }: EtcdContext, key: string): Promise<Entry[]> {
  const { kvs, header } = await client.range(keys.directory(key))
  const directory = readDirectory(keys, kvs, header.revision)
  return directory.entries.filter((entry) => isHolder(entry, directory))
}

/** The same for a holder that was written anew since. */
const grantOf = ({ owner, record, kv }: Entry): string =>
  `${owner}\0${record ? grantRevisionOf(record, kv) : kv.createRevision}`

/**
 * Those that were as they had been read; or all, if an attempt was not answered: what is not as it was then has been ended by that
 * one, unless it is found again.
 */
async function end(context: EtcdContext, key: string, entries: Entry[], notices: EtcdLease): Promise<Entry[]> {
  const success = entries.map((entry): Operation => {
    const compare = [{ key: entry.kv.key, is: '=' as const, mod: entry.kv.modRevision }]
    return { txn: { compare, success: evictionOf(context, key, entry, notices), failure: [] } }
  })
  const { answer, retried } = await context.client.txn({ compare: [], success, failure: [] })
  return entries.filter((_, i) => retried || answer.results[i]?.txn?.succeeded)
}
