import { expect, test } from 'vitest'
import { BackgroundReleases } from '../../../src/stores/redlock/background-releases.js'
import type { Cluster } from '../../../src/stores/redlock/cluster.js'
import type { NodeRelease } from '../../../src/stores/redlock/node.js'
import { Quorum } from '../../../src/stores/redlock/quorum.js'
import { VirtualWorld } from '../../../testbed/virtual-world.js'

const claim = { key: 'lock:x', owner: 'a', weight: 1, capacity: 1, ttlMs: 30_000 }

/** One node that answers none of its first so many releases. */
function releasesTo(unanswered: number): { world: VirtualWorld; releases: BackgroundReleases; sent: string[] } {
  const world = new VirtualWorld(1)
  const sent: string[] = []
  const release = (items: readonly NodeRelease[], done: (answer: number[]) => void): void => {
    sent.push(...items.map(({ owner }) => owner))
    if (sent.length > unanswered) done(items.map(() => 1))
  }
  const cluster = { nodes: [{ name: 'node', release }], world, nodeTimeoutMs: 50 } as unknown as Cluster
  return { world, releases: new BackgroundReleases(cluster), sent }
}

test('a release that a node never answers is sent again until it is answered', async () => {
  const { world, releases, sent } = releasesTo(2)
  releases.add(1, ['attempt', claim], true)
  releases.flush()
  expect(sent).toHaveLength(1)
  await world.pass(2_000)
  expect(sent).toEqual(['attempt', 'attempt', 'attempt'])
  await world.pass(60_000)
  expect(sent).toHaveLength(3)
})

test('a release that a node never answers is given up after four tries', async () => {
  const { world, releases, sent } = releasesTo(Number.POSITIVE_INFINITY)
  releases.add(1, ['attempt', claim], true)
  releases.flush()
  await world.pass(60_000)
  expect(sent).toHaveLength(4)
})

test('the release of a held lease is sent again to a node that said nothing', async () => {
  const world = new VirtualWorld(1)
  const sent = [0, 0, 0]
  const nodes = sent.map((_, i) => ({
    name: `node ${i}`,
    release: (items: readonly NodeRelease[], done: (answer: number[]) => void): void => {
      // The first one to the last node is lost on its way.
      sent[i] = (sent[i] as number) + 1
      if (sent[i] === 2 || i < 2) done(items.map(() => 1))
    },
  }))
  const cluster = { nodes, world, majority: 2, nodeTimeoutMs: 50, maxTtlMs: 60_000 } as unknown as Cluster
  const answers: unknown[] = []
  new Quorum(cluster).release([{ key: 'lock:x', owner: 'a' }], (released) => answers.push(...released))
  expect(answers).toMatchObject([{ outcome: 'released' }])
  await world.pass(60_000)
  expect(sent).toEqual([1, 1, 2])
})
