/**
 * To look at, and to break glass: what a majority says.
 *
 * @module
 */
import { ALL, type HolderView } from '../../store.js'
import { type Cause, type Cluster, blame, limit, unavailable } from './cluster.js'
import type { Done, NodeView, ObservableNode } from './node.js'
import { isAttempt } from './register.js'
import { silence } from './census.js'

/** When most have answered, the others get so much longer: a view of all is better, but no view is worth a long wait. */
const PATIENCE = 2
const SHORTEST_PATIENCE_MS = 10

/** Asks all nodes; resolves with what each said when all have, or when most have and the rest is slow. */
export function survey<T>(
  cluster: Cluster,
  nodes: readonly ObservableNode[],
  ask: (node: ObservableNode, done: Done<T>) => void,
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
    const cancel = limit(world, nodeTimeoutMs, finish)
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

/** One view per holder: those that a majority has, or may have as far as those that answered can tell. */
export function merge(cluster: Cluster, said: readonly (readonly NodeView[] | undefined)[]): HolderView[] {
  const byHolder = new Map<string, NodeView[]>()
  for (const view of said.flatMap((views) => views ?? [])) {
    const id = `${view.key}\0${view.owner}`
    const views = byHolder.get(id)
    if (views) views.push(view)
    else byHolder.set(id, [view])
  }
  const silent = said.filter((views) => views === undefined).length
  const holders: HolderView[] = []
  for (const views of byHolder.values()) {
    const wasGranted = views.some((view) => view.token !== undefined)
    if (views.length >= cluster.majority || (wasGranted && views.length + silent >= cluster.majority)) {
      holders.push(describe(views, cluster.majority))
    }
  }
  return holders.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
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
