import type { Blocker, Refusal } from '../../store.js'
import type { Candidate } from './candidate.js'
import { type Cluster, count } from './cluster.js'
import type { Obstacle } from './node.js'
import { isNewer } from './views.js'

/** Those who come away empty from a split vote ask again after a random part of this at least. */
const SHORTEST_SCATTER_MS = 5

/** Who holds how many of the nodes that refused us. */
function tally({ obstacles, refused }: Candidate): Map<string, number> {
  const votes = new Map<string, number>()
  for (const [i, obstacle] of obstacles.entries()) {
    if (obstacle && refused & (1 << i)) votes.set(obstacle.owner, (votes.get(obstacle.owner) ?? 0) + 1)
  }
  return votes
}

/**
 * Whether this candidate has the most votes of all who want the same, and so is the one that should stay. Among equals
 * the names decide: every candidate that heard all nodes comes to the same conclusion.
 */
export function leads(candidate: Candidate): boolean {
  const mine = count(candidate.held)
  if (mine === 0) return false
  for (const [owner, votes] of tally(candidate)) {
    if (votes > mine || (votes === mine && owner < candidate.owner)) return false
  }
  return true
}

/** Busy. Says who is in the way, as far as the nodes that refused us can tell. */
export function refusal(candidate: Candidate, cluster: Cluster, elapsedMs: number): Refusal {
  const votes = [...tally(candidate)]
  if (votes.length === 0) return { granted: false, ahead: 0 }
  const [owner, most] = votes.reduce((best, next) => (next[1] > best[1] ? next : best))
  const unheard = cluster.nodes.length - count(candidate.held | candidate.refused)
  const blocker = describe(
    candidate.obstacles.filter(
      (obstacle, i) => obstacle?.owner === owner && candidate.refused & (1 << i),
    ) as Obstacle[],
  )
  // Nobody has a majority, so all who asked just now are giving back what they got. Whoever comes next, and alone, gets
  // it all; hence everyone comes back at a moment of its own, and the more there are, the farther apart.
  if (most + unheard < cluster.majority && !blocker.foreign) {
    const scatter = Math.max(SHORTEST_SCATTER_MS, elapsedMs * 2 * (votes.length + 1))
    blocker.ttlMs = cluster.world.random() * scatter
    // What it would have said as a holder, which it is not.
    blocker.token = blocker.value = undefined
  }
  return { granted: false, ahead: 0, blocker }
}

/** One owner as several nodes see it: what was written last counts. */
function describe(obstacles: readonly Obstacle[]): Blocker {
  const newest = obstacles.reduce((best, next) => (isNewer(next, best) ? next : best))
  const { owner, token, value, foreign } = newest
  const ends = obstacles.map((obstacle) => obstacle.ttlMs ?? Number.POSITIVE_INFINITY)
  const ttlMs = Math.max(...ends)
  return { owner, token, value, ttlMs: Number.isFinite(ttlMs) ? ttlMs : undefined, ...(foreign ? { foreign } : {}) }
}
