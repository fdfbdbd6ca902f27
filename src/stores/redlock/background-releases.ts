import { type Cluster, limit, nodeAt } from './cluster.js'
import type { NodeRelease } from './node.js'

/** MAX_WAITING: releases kept for one node that does not answer. More are not worth the memory: its keys expire by themselves. */
const MAX_WAITING = 1_000
/** RELEASE_TRIES: how often one release is sent. Its key expires without it, so trying for ever gains nothing. */
const RELEASE_TRIES = 4
/** FIRST_RELEASE_PAUSE_MS: the pause before the second try; each later one is twice as long. Shorter ones load a node that struggles. */
const FIRST_RELEASE_PAUSE_MS = 100

interface Leftover extends NodeRelease {
  /** When the key has expired by itself. */
  expiresAt: number
  tries: number
}

/**
 * Releases what failed attempts and lost leases left behind, also on nodes that never replied: a vote may arrive although its reply does not.
 * Tries a few times, and never past the time when the key has expired anyway.
 */
export class BackgroundReleases {
  readonly #cluster: Cluster
  readonly #outgoing: Leftover[][]
  readonly #waiting: number[]
  #hasOutgoing = false
  #closed = false

  constructor(cluster: Cluster) {
    this.#cluster = cluster
    this.#outgoing = cluster.nodes.map(() => [])
    this.#waiting = cluster.nodes.map(() => 0)
  }

  /** To be sent with the next `flush`, to this set of nodes. */
  add(nodes: number, [owner, { key, ttlMs }]: readonly [string, { key: string; ttlMs: number }], quiet: boolean): void {
    const expiresAt = this.#cluster.world.now() + ttlMs
    for (const [i, outgoing] of this.#outgoing.entries()) {
      if (nodes & (1 << i)) outgoing.push({ key, owner, quiet, expiresAt, tries: RELEASE_TRIES })
    }
    this.#hasOutgoing = true
  }

  /** Sends one message per node. */
  flush(): void {
    if (!this.#hasOutgoing) return
    this.#hasOutgoing = false
    for (const [i, outgoing] of this.#outgoing.entries()) {
      if (outgoing.length === 0) continue
      this.#outgoing[i] = []
      this.#send(i, outgoing)
    }
  }

  /** Tries releases again that failed on a node. */
  retry(node: number, releases: readonly NodeRelease[], ttlMs: number): void {
    const expiresAt = this.#cluster.world.now() + ttlMs
    this.#later(
      node,
      releases.map((release) => ({ ...release, expiresAt, tries: RELEASE_TRIES })),
    )
  }

  close(): void {
    this.#closed = true
  }

  #send(i: number, leftovers: Leftover[]): void {
    const { world, nodeTimeoutMs } = this.#cluster
    let isPending = true
    // A node that says nothing counts as one that failed: otherwise its first release would be its last.
    const cancel = limit(world, nodeTimeoutMs, () => {
      isPending = false
      this.#later(i, leftovers)
    })
    nodeAt(this.#cluster, i).release(leftovers, (answer) => {
      if (!isPending) return
      isPending = false
      cancel()
      const failed = answer instanceof Error ? leftovers : leftovers.filter((_, at) => answer[at] instanceof Error)
      if (failed.length > 0) this.#later(i, failed)
    })
  }

  #later(i: number, failed: readonly Leftover[]): void {
    const { world } = this.#cluster
    const now = world.now()
    const worthIt = failed.filter((leftover) => --leftover.tries > 0 && leftover.expiresAt > now)
    const room = MAX_WAITING - (this.#waiting[i] as number)
    const kept = worthIt.slice(0, Math.max(room, 0))
    if (kept.length === 0 || this.#closed) return
    this.#waiting[i] = (this.#waiting[i] as number) + kept.length
    const pause = FIRST_RELEASE_PAUSE_MS * 2 ** (RELEASE_TRIES - 1 - (kept[0] as Leftover).tries)
    world.after(pause * (0.5 + world.random()), () => {
      this.#waiting[i] = (this.#waiting[i] as number) - kept.length
      if (!this.#closed) this.#send(i, kept)
    })
  }
}
