/**
 * Listings, inspections and revocations: what a majority of the nodes shows.
 *
 * @module
 */
import { ALL, type HolderView } from '../../store.js'
import { type Cluster, limit } from './cluster.js'
import { type Cause, nodeFailure, nodeTimeout, unavailable } from './errors.js'
import { isAttempt } from './keys.js'
import type { NodeCallback, NodePage, NodeRevoked, NodeView, ObservableNode } from './node.js'

/**
 * STRAGGLER_FACTOR: when a majority has answered, the other nodes get this times what it needed. A view of all nodes is
 * better, but no view is worth waiting for a frozen one.
 */
const STRAGGLER_FACTOR = 2
/** MIN_STRAGGLER_MS: the least that the other nodes get. Less would leave them out by chance on a busy machine. */
const MIN_STRAGGLER_MS = 10

type AskPage = (from: string | undefined, done: NodeCallback<NodePage>) => void

/**
 * Asks all nodes; resolves with what each answered when all have, or when most have and the others are slow. `limited`:
 * whether `ask` has a time limit of its own.
 */
export function survey<T>(
  cluster: Cluster,
  nodes: readonly ObservableNode[],
  ask: (node: ObservableNode, done: NodeCallback<T>) => void,
  limited = false,
): Promise<(T | undefined)[]> {
  const { world, majority, nodeTimeoutMs } = cluster
  const startedAt = world.now()
  return new Promise((resolve, reject) => {
    const answers: (T | undefined)[] = nodes.map(() => undefined)
    const causes: (Cause | undefined)[] = nodes.map((node) => () => nodeTimeout(node, nodeTimeoutMs))
    let pending = nodes.length
    let answered = 0
    let over = false
    const finish = (): void => {
      if (over) return
      over = true
      cancel()
      cancelStragglers?.()
      if (answered >= majority) resolve(answers)
      else reject(unavailable(cluster.majority, causes))
    }
    const cancel = limited ? () => {} : limit(world, nodeTimeoutMs, finish)
    let cancelStragglers: (() => void) | undefined
    for (const [i, node] of nodes.entries()) {
      ask(node, (answer) => {
        if (over) return
        pending--
        if (answer instanceof Error) causes[i] = () => nodeFailure(node, answer)
        else {
          answers[i] = answer
          causes[i] = undefined
          answered++
        }
        if (pending === 0) finish()
        else if (answered === majority) {
          const stragglerMs = Math.max((world.now() - startedAt) * STRAGGLER_FACTOR, MIN_STRAGGLER_MS)
          cancelStragglers ??= limit(world, stragglerMs, finish)
        }
      })
    }
  })
}

/**
 * Asks one node after the other, page by page: a listing of a hundred thousand leases never keeps two servers busy at once,
 * and never one for more than a page. Each page has the time limit of a node. Yields after each page, and returns what each
 * node listed.
 */
export async function* pageThrough(
  cluster: Cluster,
  nodes: readonly ObservableNode[],
  ask: (node: ObservableNode, from: string | undefined, done: NodeCallback<NodePage>) => void,
): AsyncGenerator<void, (NodeView[] | undefined)[]> {
  const listed: (NodeView[] | undefined)[] = []
  const causes: (Cause | undefined)[] = []
  for (const node of nodes) {
    try {
      listed.push(yield* pagesOf(cluster, node, (from, done) => ask(node, from, done)))
      causes.push(undefined)
    } catch (error) {
      listed.push(undefined)
      causes.push(() => nodeFailure(node, error as Error))
    }
  }
  if (listed.filter((views) => views !== undefined).length < cluster.majority)
    throw unavailable(cluster.majority, causes)
  return listed
}

/** All pages of one node, each holder once. */
export async function allPages(cluster: Cluster, node: ObservableNode, ask: AskPage): Promise<NodeView[]> {
  const pages = pagesOf(cluster, node, ask)
  for (;;) {
    const { done, value } = await pages.next()
    if (done) return value
  }
}

/** Yields after each page; returns what was in all of them. */
async function* pagesOf(cluster: Cluster, node: ObservableNode, ask: AskPage): AsyncGenerator<void, NodeView[]> {
  const found = new Map<string, NodeView>()
  const crowded = new Set<string>()
  async function* collect(askPage: AskPage): AsyncGenerator<void, void> {
    for (let from: string | undefined, first = true; first || from !== undefined; first = false) {
      const page = await inTime<NodePage>(cluster, node, (done) => askPage(from, done))
      for (const view of page.views) found.set(`${view.owner}\0${view.key}`, view)
      for (const key of page.crowded) crowded.add(key)
      from = page.next
      yield
    }
  }
  yield* collect(ask)
  for (const key of crowded) yield* collect((from, done) => node.inspect(key, from, done))
  return [...found.values()]
}

/** What a node answers; rejects if its time limit passes. */
function inTime<T>(cluster: Cluster, node: ObservableNode, ask: (done: NodeCallback<T>) => void): Promise<T> {
  const { world, nodeTimeoutMs } = cluster
  return new Promise((resolve, reject) => {
    const cancel = limit(world, nodeTimeoutMs, () => reject(nodeTimeout(node, nodeTimeoutMs)))
    ask((answer) => {
      cancel()
      if (answer instanceof Error) reject(answer)
      else resolve(answer)
    })
  })
}

/** The holders that were cut off, with what an inspection before showed of them. */
export function revokedViews(key: string, before: readonly NodeView[], { owners, shared }: NodeRevoked): NodeView[] {
  const known = new Map(before.map((view) => [view.owner, view]))
  const unknown = { key, shared, ttlMs: undefined, token: undefined, version: 0, heldMs: undefined, value: undefined }
  return owners.map((owner) => known.get(owner) ?? { ...unknown, owner })
}

/** One view per holder: of those that a majority has, or may have as far as the nodes that answered can tell. */
export function mergeViews(cluster: Cluster, answers: readonly (readonly NodeView[] | undefined)[]): HolderView[] {
  const silent = answers.filter((views) => views === undefined).length
  const byKey = new Map<string, Map<string, NodeView[]>>()
  for (const view of answers.flatMap((views) => views ?? [])) {
    let owners = byKey.get(view.key)
    if (!owners) byKey.set(view.key, (owners = new Map()))
    const views = owners.get(view.owner)
    if (views) views.push(view)
    else owners.set(view.owner, [view])
  }
  const holders: HolderView[] = []
  for (const owners of byKey.values()) {
    const here: HolderView[] = []
    for (const views of owners.values()) {
      const wasGranted = views.some((view) => view.token !== undefined)
      if (views.length >= cluster.majority || (wasGranted && views.length + silent >= cluster.majority)) {
        here.push(holderOf(views, cluster.majority))
      }
    }
    holders.push(...latestHolders(here, cluster.majority))
  }
  return holders.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
}

/**
 * Nodes are not all listed in the same moment: of one key, some may have shown an earlier holder. The one that a majority
 * showed holds it; without a majority, the one that came last.
 */
function latestHolders(holders: HolderView[], majority: number): HolderView[] {
  if (holders.length < 2 || holders.every(({ weight }) => weight !== ALL)) return holders
  const rank = ({ detail, token }: HolderView): [boolean, bigint] => [
    Number(detail?.['nodes']) >= majority,
    token ?? 0n,
  ]
  const last = holders.reduce((best, next) => {
    const [one, other] = [rank(best), rank(next)]
    return other[0] !== one[0] ? (other[0] ? next : best) : other[1] > one[1] ? next : best
  })
  return last.weight === ALL ? [last] : holders.filter(({ weight }) => weight !== ALL)
}

function holderOf(views: readonly NodeView[], majority: number): HolderView {
  const newest = views.reduce((best, next) => (isNewer(next, best) ? next : best))
  const { key, owner, shared, token, value } = newest
  // The lease lasts for as long as a majority has it.
  const expirations = views.map((view) => view.ttlMs ?? Number.POSITIVE_INFINITY).sort((a, b) => b - a)
  const ttlMs = expirations[Math.min(majority, expirations.length) - 1] as number
  const held = views.map((view) => view.heldMs).filter((ms) => ms !== undefined)
  return {
    key,
    owner,
    weight: shared ? 1 : ALL,
    capacity: ALL,
    token,
    value,
    ttlMs: Number.isFinite(ttlMs) ? ttlMs : undefined,
    heldMs: held.length > 0 ? Math.max(...held) : undefined,
    ...(isAttempt(owner) ? {} : { foreign: true }),
    detail: { nodes: views.length },
  }
}

/** What was written last counts; and of two tokens the larger, since the other was a guess that was not accepted. */
export function isNewer(one: VersionedEntry, other: VersionedEntry): boolean {
  const [version, before] = [one.version ?? 0, other.version ?? 0]
  return version > before || (version === before && (one.token ?? 0n) > (other.token ?? 0n))
}

interface VersionedEntry {
  version?: number | undefined
  token?: bigint | undefined
}
