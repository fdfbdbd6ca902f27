import type { World } from '../../kit/world.js'
import type { Lease, Watch } from '../../store.js'
import { type Cluster, count } from './cluster.js'
import { REVOKED } from './keys.js'
import type { NodeChannel, NodeChannels } from './node-channels.js'

/** How long the nodes have to tell the same: then too few have for it to be certain. */
const HEARSAY_MS = 10
/** How long a report is remembered, so that a slow node does not tell it again. */
const REMEMBERED_MS = 2_000

interface Report {
  /** Who told it, as a bit mask. */
  nodes: number
  told: boolean
}

/**
 * Who was cut off by `revoke` or `steal`: one channel on every node, for all keys. It is true when a majority says so. A
 * minority may have been cut off in vain, by a steal that was refused: then the holder had better ask.
 */
export class Revocations {
  readonly #channels: NodeChannels
  readonly #world: World
  readonly #majority: number
  readonly #listeners = new Set<(lease: Lease) => void>()
  readonly #doubters = new Set<(affected: (key: string) => boolean) => void>()
  readonly #reports = new Map<string, Report>()
  #channel: NodeChannel | undefined

  constructor(channels: NodeChannels, { majority, world }: Cluster) {
    this.#channels = channels
    this.#world = world
    this.#majority = majority
  }

  watch(listener: (lease: Lease) => void): Watch {
    // A function given twice listens twice.
    const own = (lease: Lease): void => listener(lease)
    this.#listeners.add(own)
    const channel = (this.#channel ??= this.#channels.open(REVOKED, {
      message: (node, text) => this.#hear(node, text),
      // What was told meanwhile is lost, and may concern any of them.
      resumed: () => this.#doubt(() => true),
    }))
    return {
      ready: channel.ready(),
      live: () => this.#listeners.has(own) && channel.live(),
      close: () => {
        if (!this.#listeners.delete(own) || this.#listeners.size > 0) return
        this.#channel = undefined
        channel.close()
      },
    }
  }

  onDoubt(listener: (affected: (key: string) => boolean) => void): () => void {
    const own = (affected: (key: string) => boolean): void => listener(affected)
    this.#doubters.add(own)
    return () => void this.#doubters.delete(own)
  }

  /** `[key, owner, …]` */
  #hear(node: number, text: string): void {
    const [key, ...owners] = JSON.parse(text) as [string, ...string[]]
    const fresh: Report[] = []
    for (const owner of owners) {
      const id = `${owner}\0${key}`
      let report = this.#reports.get(id)
      if (!report) {
        report = { nodes: 0, told: false }
        this.#reports.set(id, report)
        fresh.push(report)
      }
      report.nodes |= 1 << node
      if (report.told || count(report.nodes) < this.#majority) continue
      report.told = true
      // The owner of an attempt is nobody else's: there is no other grant that a token would tell apart.
      for (const listener of [...this.#listeners]) listener({ key, owner })
    }
    if (fresh.length === 0) return
    this.#world.after(HEARSAY_MS, () => {
      if (fresh.some(({ told }) => !told)) this.#doubt((other) => other === key)
    })
    this.#world.after(REMEMBERED_MS, () => {
      for (const owner of owners) this.#reports.delete(`${owner}\0${key}`)
    })
  }

  #doubt(affected: (key: string) => boolean): void {
    for (const doubter of [...this.#doubters]) doubter(affected)
  }
}
