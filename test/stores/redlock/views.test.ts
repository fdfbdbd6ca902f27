import { expect, test } from 'vitest'
import type { World } from '../../../src/util/world.js'
import type { Cluster } from '../../../src/stores/redlock/cluster.js'
import type { NodeView } from '../../../src/stores/redlock/node.js'
import { mergeViews } from '../../../src/stores/redlock/inspect.js'

// A listing asks one server after the other, while locks come and go.

const cluster: Cluster = { nodes: [], majority: 3, world: {} as World, maxTtlMs: 1_000, drift: 0, nodeTimeoutMs: 500 }
const view = (owner: string, token: bigint | undefined, shared = false): NodeView => {
  return { key: 'lock:a', owner, shared, ttlMs: 500, token, version: 1, heldMs: 10, value: undefined }
}
const seen = (...nodes: (NodeView | undefined)[]): string[] =>
  mergeViews(
    cluster,
    nodes.map((one) => one && [one]),
  ).map(({ owner }) => owner)

const [before, after] = [view('before', 1n), view('after', 2n)]

test('a lock that changes hands during a listing has one holder', () => {
  expect(seen(before, before, after, after, after), 'a majority showed the later one').toEqual(['after'])
  expect(seen(before, before, before, after, after), 'a majority showed the earlier one').toEqual(['before'])
  expect(seen(before, before, undefined, after, after), 'no majority showed either').toEqual(['after'])
})

test('a listing shows all readers that follow a lock meanwhile, and not the lock', () => {
  const [one, two] = [view('one', 2n, true), view('two', 3n, true)]
  const nodes = [[before], [before], undefined, [one, two], [one, two]]
  expect(mergeViews(cluster, nodes).map(({ owner }) => owner)).toEqual(['one', 'two'])
})

test('a listing does not show an attempt that was not granted', () => {
  expect(seen(view('attempt', undefined), view('attempt', undefined), undefined, undefined, undefined)).toEqual([])
})
