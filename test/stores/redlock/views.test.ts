import { expect, test } from 'vitest'
import type { World } from '../../../src/kit/world.js'
import type { Cluster } from '../../../src/stores/redlock/cluster.js'
import type { NodeView } from '../../../src/stores/redlock/node.js'
import { merge } from '../../../src/stores/redlock/views.js'

// A listing looks at one server after the other, while locks come and go.

const cluster: Cluster = { nodes: [], majority: 3, world: {} as World, maxTtlMs: 1_000, drift: 0, nodeTimeoutMs: 500 }
const view = (owner: string, token: bigint | undefined, shared = false): NodeView => {
  return { key: 'lock:a', owner, shared, ttlMs: 500, token, version: 1, heldMs: 10, value: undefined }
}
const seen = (...nodes: (NodeView | undefined)[]): string[] =>
  merge(
    cluster,
    nodes.map((one) => one && [one]),
  ).map(({ owner }) => owner)

const [before, after] = [view('before', 1n), view('after', 2n)]

test('a lock that changes hands during a listing has one holder', () => {
  expect(seen(before, before, after, after, after), 'a majority saw the later one').toEqual(['after'])
  expect(seen(before, before, before, after, after), 'a majority saw the earlier one').toEqual(['before'])
  expect(seen(before, before, undefined, after, after), 'nobody can tell').toEqual(['after'])
})

test('readers that follow a lock during a listing are all shown, and the lock is not', () => {
  const [one, two] = [view('one', 2n, true), view('two', 3n, true)]
  const nodes = [[before], [before], undefined, [one, two], [one, two]]
  expect(merge(cluster, nodes).map(({ owner }) => owner)).toEqual(['one', 'two'])
})

test('an attempt that nobody granted is not shown', () => {
  expect(seen(view('attempt', undefined), view('attempt', undefined), undefined, undefined, undefined)).toEqual([])
})
