/**
 * To look at, and to break glass: what a majority says.
 *
 * @module
 */
import { ALL, type HolderView } from '../../store.js'
import { type Cause, type Cluster, blame, limit, unavailable } from './cluster.js'
import type { Done, NodeView, ObservableNode, Page, Revoked } from './node.js'
import { isAttempt } from './register.js'
import { silence } from './census.js'

/** When most have answered, the others get so much longer: a view of all is better, but no view is worth a long wait. */
const PATIENCE = 2
const SHORTEST_PATIENCE_MS = 10

/**
 * Asks all nodes; resolves with what each said when all have, or when most have and the rest is slow. `limited`: whether
 * `ask` has a time limit of its own.
 */
export function survey<T>(
  cluster: Cluster,
  nodes: readonly ObservableNode[],
  ask: (node: ObservableNode, done: Done<T>) => void,
  limited = false,
): Promise<(T | undefined)[]> {
  const { world, majority, nodeTimeoutMs } = cluster
  const startedAt = world.now()
  return new Promise((resolve, reject) => {
    const said: (T | undefined)[] = nodes.map(() => undefined)
    const causes: (Cause | undefined)[] = nodes.map((node) => () => silence(node, nodeTimeoutMs))
    let pending = nodes.length
    let answered = 0
    let over = false
    const finish = (): void => {
      if (over) return
      over = true
      cancel()
      cancelPatience?.()
      if (answered >= majority) resolve(said)
      else reject(unavailable(cluster, causes))
    }
    const cancel = limited ? () => {} : limit(world, nodeTimeoutMs, finish)
    let cancelPatience: (() => void) | undefined
    for (const [i, node] of nodes.entries()) {
      ask(node, (answer) => {
        if (over) return
        pending--
        if (answer instanceof Error) causes[i] = () => blame(node, answer)
        else {
          said[i] = answer
          causes[i] = undefined
          answered++
        }
        if (pending === 0) finish()
        else if (answered === majority) {
          const patience = Math.max((world.now() - startedAt) * PATIENCE, SHORTEST_PATIENCE_MS)
          cancelPatience ??= limit(world, patience, finish)
        }
      })
    }
  })
}

/**
 * Asks one node after the other, page by page: a listing of a hundred thousand leases costs each server as much as it likes,
 * but never two of them at once, and never one for more than a page. Each page has the time limit of a node.
 */
export async function pageThrough(
  cluster: Cluster,
  nodes: readonly ObservableNode[],
  ask: (node: ObservableNode, from: string | undefined, done: Done<Page>) => void,
): Promise<(NodeView[] | undefined)[]> {
  const said: (NodeView[] | undefined)[] = []
  const causes: (Cause | undefined)[] = []
  for (const node of nodes) {
    const views = await allOf(cluster, node, (from, done) => ask(node, from, done)).catch((error: Error) => error)
    said.push(views instanceof Error ? undefined : views)
    causes.push(views instanceof Error ? () => blame(node, views) : undefined)
  }
  if (said.filter((views) => views !== undefined).length < cluster.majority) throw unavailable(cluster, causes)
  return said
}

/** All pages of one node, each holder once. */
export async function allOf(
  cluster: Cluster,
  node: ObservableNode,
  ask: (from: string | undefined, done: Done<Page>) => void,
): Promise<NodeView[]> {
  const found = new Map<string, NodeView>()
  const crowded = new Set<string>()
  const collect = async (turn: (from: string | undefined, done: Done<Page>) => void): Promise<void> => {
    for (let from: string | undefined, first = true; first || from !== undefined; first = false) {
      const page = await inTime<Page>(cluster, node, (done) => turn(from, done))
      for (const view of page.views) found.set(`${view.owner}\0${view.key}`, view)
      for (const key of page.crowded) crowded.add(key)
      from = page.next
    }
  }
  await collect(ask)
  for (const key of crowded) await collect((from, done) => node.inspect(key, from, done))
  return [...found.values()]
}

/** What a node answers, or that it did not. */
function inTime<T>(cluster: Cluster, node: ObservableNode, ask: (done: Done<T>) => void): Promise<T> {
  const { world, nodeTimeoutMs } = cluster
  return new Promise((resolve, reject) => {
    const cancel = limit(world, nodeTimeoutMs, () => reject(silence(node, nodeTimeoutMs)))
    ask((answer) => {
      cancel()
      if (answer instanceof Error) reject(answer)
      else resolve(answer)
    })
  })
}

/** Those who were cut off, with what was known of them before. */
export function cutOff(key: string, before: readonly NodeView[], { owners, shared }: Revoked): NodeView[] {
  const known = new Map(before.map((view) => [view.owner, view]))
  const unknown = { key, shared, ttlMs: undefined, token: undefined, version: 0, heldMs: undefined, value: undefined }
  return owners.map((owner) => known.get(owner) ?? { ...unknown, owner })
}

/** One view per holder: those that a majority has, or may have as far as those that answered can tell. */
export function merge(cluster: Cluster, said: readonly (readonly NodeView[] | undefined)[]): HolderView[] {
  const silent = said.filter((views) => views === undefined).length
  const byKey = new Map<string, Map<string, NodeView[]>>()
  for (const view of said.flatMap((views) => views ?? [])) {
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
        here.push(describe(views, cluster.majority))
      }
    }
    holders.push(...atOneTime(here, cluster.majority))
  }
  return holders.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
}

/**
 * Nodes are not all looked at in the same moment: of one key, some may have shown the holder of before. Whoever was seen on a
 * majority holds it, and else whoever came last.
 */
function atOneTime(holders: HolderView[], majority: number): HolderView[] {
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

function describe(views: readonly NodeView[], majority: number): HolderView {
  const newest = views.reduce((best, next) => (isNewer(next, best) ? next : best))
  const { key, owner, shared, token, value } = newest
  // It lasts for as long as a majority has it.
  const ends = views.map((view) => view.ttlMs ?? Number.POSITIVE_INFINITY).sort((a, b) => b - a)
  const ttlMs = ends[Math.min(majority, ends.length) - 1] as number
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

/** What was written last counts; and of two tokens the larger, since the other was a guess that did not hold. */
export function isNewer(one: Written, other: Written): boolean {
  const [version, before] = [one.version ?? 0, other.version ?? 0]
  return version > before || (version === before && (one.token ?? 0n) > (other.token ?? 0n))
}

interface Written {
  version?: number | undefined
  token?: bigint | undefined
}
