/**
 * Break glass: ends every lease of a key, and tells the processes that held them.
 *
 * @module
 */
import type { HolderView } from '../../store.js'
import { NOTICE_MS } from './acquire.js'
import { evictionOf } from './attempt.js'
import type { EtcdContext } from './context.js'
import { type Entry, isHolder, readDirectory } from './directory.js'
import { inspectKey } from './inspect.js'
import type { Operation } from './messages.js'

/** Holders ended in one transaction: etcd takes 128 operations. */
const AT_ONCE = 50

export async function revoke(context: EtcdContext, key: string): Promise<HolderView[]> {
  const { client, keys, leases } = context
  const { holders } = await inspectKey(context, key)
  if (holders.length === 0) return []
  const { kvs, header } = await client.range(keys.directory(key))
  const directory = readDirectory(keys, kvs, header.revision)
  const known = new Set(holders.map(({ owner }) => owner))
  const entries = directory.entries.filter((entry) => isHolder(entry, directory) && known.has(entry.owner))
  const notices = await leases.shared(NOTICE_MS)
  const ended = new Set<string>()
  const end = (entry: Entry): Operation => {
    const compare = [{ key: entry.kv.key, is: '=' as const, mod: entry.kv.modRevision }]
    return { txn: { compare, success: evictionOf(context, key, entry, notices), failure: [] } }
  }
  for (let from = 0; from < entries.length; from += AT_ONCE) {
    const part = entries.slice(from, from + AT_ONCE)
    const { answer } = await client.txn({ compare: [], success: part.map(end), failure: [] })
    for (const [i, { owner }] of part.entries()) if (answer.results[i]?.txn?.succeeded) ended.add(owner)
  }
  return holders.filter(({ owner }) => ended.has(owner))
}
