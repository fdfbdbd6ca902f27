/** Redlock's algorithm over models of its nodes, with a hand on every request. */
import type { Cluster } from '../../../src/stores/redlock/cluster.js'
import { Quorum } from '../../../src/stores/redlock/quorum.js'
import { ALL, type Claim } from '../../../src/store.js'
import { VirtualWorld } from '../../../testbed/virtual-world.js'
import { ModelNode } from '../../../verify/simulation/redlock/model-node.js'

export const exclusive: Claim = { key: 'lock:x', owner: 'a', weight: ALL, capacity: ALL, ttlMs: 30_000 }

export interface ModelCluster {
  world: VirtualWorld
  quorum: Quorum
  nodes: ModelNode[]
  intercept: { on: (call: string, node: number, deliver: () => void, fail: (error: Error) => void) => void }
}

/** Three nodes of an old cluster; `intercept` decides when a request reaches its node: never, now or later. */
export function modelCluster(): ModelCluster {
  const world = new VirtualWorld(1)
  const later = (deliver: () => void): void => void world.after(1, deliver)
  const intercept: ModelCluster['intercept'] = { on: (_call, _node, deliver) => later(deliver) }
  const micros = (): number => Math.floor(world.now() * 1_000) + 1_000_000
  const models = [0, 1, 2].map(
    (i) => new ModelNode({ name: `node ${i}`, size: 3, maxTtlMs: 60_000, clock: () => world.now(), micros }),
  )
  for (const model of models) model.settle()
  const call = (i: number, name: 'vote' | 'raise' | 'renew' | 'release' | 'identify' | 'admit') => {
    const method = (models[i] as ModelNode)[name].bind(models[i]) as (request: unknown) => unknown
    return (request: unknown, done: (reply: unknown) => void): void =>
      intercept.on(name, i, () => done(method(request)), done)
  }
  const nodes = models.map((_, i) => ({
    name: `node ${i}`,
    vote: call(i, 'vote'),
    raise: call(i, 'raise'),
    renew: call(i, 'renew'),
    release: call(i, 'release'),
    identify: call(i, 'identify'),
    admit: call(i, 'admit'),
  }))
  const cluster = { nodes, world, majority: 2, nodeTimeoutMs: 50, maxTtlMs: 60_000, drift: 0.01 }
  const quorum = new Quorum(cluster as unknown as Cluster)
  return { world, quorum, nodes: models, intercept }
}
