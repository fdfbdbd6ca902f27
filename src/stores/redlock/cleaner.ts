import type { Claim } from '../../store.js'
import type { Cluster } from './cluster.js'
import type { NodeRelease, RedlockNode } from './node.js'

/** More than this is not worth remembering for a node that does not answer: its keys expire by themselves. */
const WAITING_AT_MOST = 1_000
const TRIES = 4
const FIRST_PAUSE_MS = 100

interface Remains extends NodeRelease {
  /** When the key has expired by itself. */
  expiresAt: number
  tries: number
}

/**
 * Takes back what attempts left behind that came to nothing, also on nodes that never replied: a vote may arrive although
 * its answer does not. In the background, a few times, and never past the time when the key is gone anyway.
 */
export class Cleaner {
  readonly #cluster: Cluster
  readonly #outgoing: Remains[][]
  readonly #waiting: number[]
  #dirty = false
  #closed = false

  constructor(cluster: Cluster) {
    this.#cluster = cluster
    this.#outgoing = cluster.nodes.map(() => [])
    this.#waiting = cluster.nodes.map(() => 0)
  }

  /** Goes out with the next `flush`. */
  clean(nodes: number, [owner, claim]: readonly [string, Claim], quiet: boolean): void {
    const expiresAt = this.#cluster.world.now() + claim.ttlMs
    for (const [i, outgoing] of this.#outgoing.entries()) {
      if (nodes & (1 << i)) outgoing.push({ key: claim.key, owner, quiet, expiresAt, tries: TRIES })
    }
    this.#dirty = true
  }

  /** One message per node. */
  flush(): void {
    if (!this.#dirty) return
    this.#dirty = false
    for (const [i, outgoing] of this.#outgoing.entries()) {
      if (outgoing.length === 0) continue
      this.#outgoing[i] = []
      this.#send(i, outgoing)
    }
  }

  /** A release that a node did not take. */
  retry(node: number, releases: readonly NodeRelease[], ttlMs: number): void {
    const expiresAt = this.#cluster.world.now() + ttlMs
    this.#later(
      node,
      releases.map((release) => ({ ...release, expiresAt, tries: TRIES })),
    )
  }

  close(): void {
    this.#closed = true
  }

  #send(i: number, remains: Remains[]): void {
    const { nodes } = this.#cluster
    ;(nodes[i] as RedlockNode).release(remains, (answer) => {
      const failed = answer instanceof Error ? remains : remains.filter((_, at) => answer[at] instanceof Error)
      if (failed.length > 0) this.#later(i, failed)
    })
  }

  #later(i: number, failed: readonly Remains[]): void {
    const { world } = this.#cluster
    const now = world.now()
    const worthIt = failed.filter((remains) => --remains.tries > 0 && remains.expiresAt > now)
    const room = WAITING_AT_MOST - (this.#waiting[i] as number)
    const kept = worthIt.slice(0, Math.max(room, 0))
    if (kept.length === 0 || this.#closed) return
    this.#waiting[i] = (this.#waiting[i] as number) + kept.length
    const pause = FIRST_PAUSE_MS * 2 ** (TRIES - 1 - (kept[0] as Remains).tries)
    world.after(pause * (0.5 + world.random()), () => {
      this.#waiting[i] = (this.#waiting[i] as number) - kept.length
      if (!this.#closed) this.#send(i, kept)
    })
  }
}
