import { silence } from './census.js'
import { type Cause, type Cluster, count, Disagreement, limit, unavailable } from './cluster.js'
import type { RedlockNode } from './node.js'

/** What one node says to one item: yes, no, or nothing that counts. */
export type Said = 'yes' | 'no' | Cause

/** `yes`: a majority said so. `no`: so many said no that no majority can. An error: neither, and which node said what. */
export type Outcome = 'yes' | 'no' | Error

export interface PollOptions {
  cluster: Cluster
  size: number
  /** Asks one node; calls back with an answer per item, or with why it has none. */
  ask: (node: number, done: (said: readonly Said[] | Cause) => void) => void
  done: (outcomes: Outcome[]) => void
  /** All nodes have answered, or their time is up. */
  closed?: (() => void) | undefined
}

/** Asks all nodes the same question at once. The answer comes with the majority, never with the slowest node. */
export function poll({ cluster, size, ask, done, closed }: PollOptions): void {
  const { nodes, majority, world, nodeTimeoutMs } = cluster
  const everyone = 2 ** nodes.length - 1
  const yes = new Array<number>(size).fill(0)
  const no = new Array<number>(size).fill(0)
  const outcomes = new Array<Outcome | undefined>(size).fill(undefined)
  const causes = new Array<Cause | undefined>(nodes.length).fill(undefined)
  let undecided = size
  let heard = 0

  const decide = (item: number, outcome: Outcome): void => {
    if (outcomes[item] !== undefined) return
    outcomes[item] = outcome
    if (--undecided === 0) done(outcomes as Outcome[])
  }
  const close = (): void => {
    cancel()
    heard = everyone
    if (undecided > 0) {
      const error = unavailable(cluster, causes)
      for (let item = 0; item < size; item++) {
        const [has, hasNot] = [count(yes[item] as number), count(no[item] as number)]
        decide(item, has + hasNot < majority ? error : new Disagreement(has, hasNot, majority))
      }
    }
    closed?.()
  }
  const cancel = limit(world, nodeTimeoutMs, () => {
    for (const [i, node] of nodes.entries()) if (!(heard & (1 << i))) causes[i] = () => silence(node, nodeTimeoutMs)
    close()
  })
  for (let i = 0; i < nodes.length; i++) {
    const bit = 1 << i
    ask(i, (said) => {
      if (heard & bit) return
      heard |= bit
      if (typeof said === 'function') causes[i] = said
      else {
        for (const [item, word] of said.entries()) {
          if (word === 'yes') yes[item] = (yes[item] as number) | bit
          else if (word === 'no') no[item] = (no[item] as number) | bit
          else causes[i] = word
          if (count(yes[item] as number) >= majority) decide(item, 'yes')
          else if (count(no[item] as number) > nodes.length - majority) decide(item, 'no')
        }
      }
      if (heard === everyone) close()
    })
  }
}

/** A node by its place. */
export function nodeAt(cluster: Cluster, i: number): RedlockNode {
  return cluster.nodes[i] as RedlockNode
}
