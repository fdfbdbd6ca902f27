/**
 * Releasing: removes what is as we wrote it. What another client of the same owner wrote is read first.
 *
 * @module
 */
import type { LeaseId, Released } from '../../store.js'
import { grantRevisionOf } from './codec.js'
import type { EtcdContext } from './context.js'
import { readDirectory } from './directory.js'
import { EtcdError, isFinal } from './errors.js'
import type { KeyValue, Operation, TxnResult } from './messages.js'
import type { OpenRequests } from './open-requests.js'

/** A release on its way to an answer. */
interface Pending {
  lease: LeaseId
  /** What to remove, once it is known. */
  known: { etcdKey: Buffer; modRevision: number } | undefined
  answer: Released | undefined
}

const GONE: Released = { outcome: 'gone' }
const RELEASED: Released = { outcome: 'released' }

/** Leases ended in one transaction: etcd takes 128 operations, and smaller ones let client and server work at the same time. */
const AT_ONCE = 40

/** How often an entry that others rewrite meanwhile is read again. */
const MOST_ROUNDS = 5

export async function release(
  context: EtcdContext,
  leases: readonly LeaseId[],
  open: OpenRequests,
): Promise<Released[]> {
  const answers: Released[] = []
  const releaseAt = async (positions: readonly number[]): Promise<void> => {
    const wanted = positions.map((position) => leases[position] as LeaseId)
    for (const [i, answer] of (await releaseAnswered(context, wanted)).entries())
      answers[positions[i] as number] = answer
  }
  // Those of one acquire call together; what is held must not stay held until another owner's request is answered.
  const groups = new Map<Promise<unknown> | undefined, number[]>()
  for (const [position, lease] of leases.entries()) {
    const answered = open.end(lease)
    const group = groups.get(answered)
    if (group) group.push(position)
    else groups.set(answered, [position])
  }
  await Promise.all(
    [...groups].map(async ([answered, positions]) => {
      await answered?.catch(() => {})
      await releaseAt(positions)
    }),
  )
  return answers
}

/** Nothing that these owners asked for is under way any more. */
async function releaseAnswered(context: EtcdContext, leases: readonly LeaseId[]): Promise<Released[]> {
  await context.offset.ready()
  const pending = leases.map((lease): Pending => begin(context, lease))
  for (let round = 0; round < MOST_ROUNDS; round++) {
    const once = firstOfEach(pending.filter(({ answer }) => !answer))
    if (once.length === 0) break
    const parts: Promise<void>[] = []
    for (let from = 0; from < once.length; from += AT_ONCE) {
      const part = once.slice(from, from + AT_ONCE)
      parts.push(
        removeKnown(context, part).catch((error: unknown) => {
          for (const each of part) abandon(context, each, error)
        }),
      )
    }
    await Promise.all(parts)
  }
  return pending.map(
    ({ answer }) => answer ?? { outcome: 'unknown', error: new Error('etcd: other clients kept changing the entry') },
  )
}

/** The same lease twice in one call: the second is answered after the first. */
function firstOfEach(open: readonly Pending[]): Pending[] {
  if (open.length === 1) return [...open]
  const first = new Map<string, Pending>()
  for (const each of open) {
    const id = `${each.lease.key}\0${each.lease.owner}`
    if (!first.has(id)) first.set(id, each)
  }
  return [...first.values()]
}

function begin({ tracked, offset }: EtcdContext, lease: LeaseId): Pending {
  const entry = tracked.get(lease.key, lease.owner)
  const { token } = lease
  const isThisOne =
    entry && (token === undefined || (entry.record.state === 'held' && offset.tokenOf(entry.grantRevision) === token))
  return { lease, known: isThisOne ? entry : undefined, answer: undefined }
}

async function removeKnown(context: EtcdContext, round: readonly Pending[]): Promise<void> {
  const { client, keys } = context
  const parts = round.map(({ lease, known }): Operation => {
    const read: Operation = { range: keys.directory(lease.key) }
    if (!known) return read
    const { etcdKey: key, modRevision } = known
    return { txn: { compare: [{ key, is: '=', mod: modRevision }], success: [{ remove: { key } }], failure: [read] } }
  })
  const [sole] = parts
  const single = parts.length === 1 && sole && 'txn' in sole ? sole.txn : undefined
  const { answer, retried } = await client.txn(single ?? { compare: [], success: parts, failure: [] })
  for (const [i, each] of round.entries()) {
    const txn: TxnResult | undefined = single ? answer : answer.results[i]?.txn
    if (txn?.succeeded) finish(context, each, RELEASED)
    else look(context, each, (txn?.results[0] ?? answer.results[i])?.range?.kvs ?? [], retried)
  }
}

/**
 * What is there instead of what we knew. `retried`: an attempt was not answered and another one was, so that "not there" may be our
 * own doing.
 */
function look(context: EtcdContext, each: Pending, kvs: readonly KeyValue[], retried: boolean): void {
  const { keys, offset } = context
  const { owner, token } = each.lease
  const entries = readDirectory(keys, kvs, 0).entries.filter((entry) => entry.owner === owner && entry.record)
  const entry = entries.find(({ record, kv }) => {
    if (token === undefined) return true
    return record?.state === 'held' && offset.tokenOf(grantRevisionOf(record, kv)) === token
  })
  if (entry) each.known = { etcdKey: Buffer.from(entry.kv.key), modRevision: entry.kv.modRevision }
  else if (retried && each.known) finish(context, each, { outcome: 'unknown', error: lostAnswer() })
  else finish(context, each, GONE)
}

const lostAnswer = (): Error => new Error('etcd: the answer to the release was lost; the lock is not there any more')

function finish({ tracked, queue }: EtcdContext, each: Pending, answer: Released): void {
  each.answer = answer
  const { key, owner, token } = each.lease
  const entry = tracked.get(key, owner)
  if (!entry || (token !== undefined && each.known !== entry)) return
  tracked.forget(entry)
  queue.end(key, owner)
}

function abandon({ tracked }: EtcdContext, each: Pending, error: unknown): void {
  each.answer = { outcome: 'unknown', error }
  const entry = tracked.get(each.lease.key, each.lease.owner)
  // Nothing was carried out, or it may have been: in both cases it is not wanted any more.
  if (entry && each.known && !(error instanceof EtcdError && isFinal(error))) tracked.abandon(entry)
}
