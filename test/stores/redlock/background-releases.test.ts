import { expect, test } from 'vitest'
import { NotSent } from '../../../src/stores/redlock/errors.js'
import { BackgroundReleases } from '../../../src/stores/redlock/background-releases.js'
import type { Cluster } from '../../../src/stores/redlock/cluster.js'
import type { NodeRelease } from '../../../src/stores/redlock/node.js'
import { Quorum } from '../../../src/stores/redlock/quorum.js'
import type { Answer, Grant } from '../../../src/store.js'
import { VirtualWorld } from '../../../testbed/virtual-world.js'
import type { ModelNode } from '../../../verify/simulation/redlock/model-node.js'
import { exclusive, type ModelCluster, modelCluster } from './model-cluster.js'

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

/** The first acquisition asks those nodes that were quickest to tell that they vote; later ones ask all of them. */
async function usedCluster(): Promise<ModelCluster> {
  const cluster = modelCluster()
  cluster.quorum.acquire([{ ...exclusive, key: 'lock:first' }], () => {})
  await cluster.world.pass(100)
  return cluster
}

const holdersOf = (nodes: readonly ModelNode[]): number[] => nodes.map((node) => node.inspect(exclusive.key).length)

test('a lease that a majority has lost is released on the node that still has it', async () => {
  const { world, quorum, nodes } = await usedCluster()
  const granted: Answer[] = []
  quorum.acquire([exclusive], (answers) => granted.push(...answers))
  await world.pass(100)
  const { owner } = granted[0] as Grant
  expect(holdersOf(nodes)).toEqual([1, 1, 1])
  // The third node is not told of the revocation.
  for (const node of nodes.slice(0, 2)) node.revoke(exclusive.key)
  const renewed: unknown[] = []
  quorum.renew([{ key: exclusive.key, owner, ttlMs: 30_000 }], (answers) => renewed.push(...answers))
  await world.pass(100)
  expect(renewed).toEqual([{ outcome: 'gone' }])
  expect(holdersOf(nodes)).toEqual([0, 0, 0])
})

test.each(['released', 'lost'])('a vote that arrives after its lease was %s is released', async (end) => {
  const { world, quorum, nodes, intercept } = await usedCluster()
  let late: (() => void) | undefined
  intercept.on = (call, node, deliver) => {
    if (call === 'vote' && node === 2) late = deliver
    else world.after(1, deliver)
  }
  const granted: Answer[] = []
  quorum.acquire([exclusive], (answers) => granted.push(...answers))
  await world.pass(200)
  const { owner, token } = granted[0] as Grant
  expect(holdersOf(nodes)).toEqual([1, 1, 0])
  const lease = { key: exclusive.key, owner, token }
  if (end === 'lost') {
    for (const node of nodes.slice(0, 2)) node.revoke(exclusive.key)
    quorum.renew([{ ...lease, ttlMs: 30_000 }], () => {})
  } else quorum.release([lease], () => {})
  await world.pass(1_000)
  expect(late).toBeDefined()
  late?.()
  await world.pass(100)
  expect(holdersOf(nodes)).toEqual([0, 0, 0])
})

test('a vote that restores a lease on a node is released if the lease has ended when it arrives', async () => {
  const { world, quorum, nodes, intercept } = await usedCluster()
  const granted: Answer[] = []
  quorum.acquire([exclusive], (answers) => granted.push(...answers))
  await world.pass(100)
  const { owner, token } = granted[0] as Grant
  nodes[2]?.expire(exclusive.key)
  let late: (() => void) | undefined
  intercept.on = (call, _node, deliver) => {
    if (call === 'vote') late = deliver
    else world.after(1, deliver)
  }
  const lease = { key: exclusive.key, owner, token }
  quorum.renew([{ ...lease, ttlMs: 30_000 }], () => {})
  await world.pass(100)
  quorum.release([lease], () => {})
  await world.pass(1_000)
  expect(late).toBeDefined()
  late?.()
  await world.pass(100)
  expect(holdersOf(nodes)).toEqual([0, 0, 0])
})

test('a vote that arrives while its release is on the way behind it is not released a second time', async () => {
  const { world, quorum, nodes, intercept } = await usedCluster()
  let releases = 0
  intercept.on = (call, node, deliver) => {
    if (call === 'release' && node === 2) releases++
    world.after(node === 2 ? 20 : 1, deliver)
  }
  const granted: Answer[] = []
  quorum.acquire([exclusive], (answers) => granted.push(...answers))
  await world.pass(5)
  const { owner, token } = granted[0] as Grant
  expect(holdersOf(nodes)).toEqual([1, 1, 0])
  const released: unknown[] = []
  quorum.release([{ key: exclusive.key, owner, token }], (answers) => released.push(...answers))
  await world.pass(1_000)
  expect(released).toMatchObject([{ outcome: 'released' }])
  expect(holdersOf(nodes)).toEqual([0, 0, 0])
  expect(releases).toBe(1)
})

test('a node that was sent no vote is sent no release', async () => {
  const { world, quorum, nodes, intercept } = await usedCluster()
  const sent: string[] = []
  intercept.on = (call, node, deliver, fail) => {
    if (node === 2) sent.push(call)
    if (node === 2) fail(new NotSent('node 2', 'has not answered for a second'))
    else world.after(1, deliver)
  }
  const granted: Answer[] = []
  quorum.acquire([exclusive], (answers) => granted.push(...answers))
  await world.pass(5)
  const { owner, token } = granted[0] as Grant
  const released: unknown[] = []
  quorum.release([{ key: exclusive.key, owner, token }], (answers) => released.push(...answers))
  await world.pass(10_000)
  expect(released).toMatchObject([{ outcome: 'released' }])
  expect(holdersOf(nodes)).toEqual([0, 0, 0])
  expect(sent).toEqual(['vote'])
})

test('a node that was sent no vote is sent the release of a lease that a renewal restored there', async () => {
  const { world, quorum, nodes, intercept } = await usedCluster()
  let isSilent = true
  intercept.on = (_call, node, deliver, fail) => {
    if (node === 2 && isSilent) fail(new NotSent('node 2', 'has not answered for a second'))
    else world.after(1, deliver)
  }
  const granted: Answer[] = []
  quorum.acquire([exclusive], (answers) => granted.push(...answers))
  await world.pass(5)
  const { owner, token } = granted[0] as Grant
  isSilent = false
  quorum.renew([{ key: exclusive.key, owner, token, ttlMs: 30_000 }], () => {})
  await world.pass(100)
  expect(holdersOf(nodes)).toEqual([1, 1, 1])
  quorum.release([{ key: exclusive.key, owner, token }], () => {})
  await world.pass(100)
  expect(holdersOf(nodes)).toEqual([0, 0, 0])
})
