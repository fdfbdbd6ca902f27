import { describe, expect, test } from 'vitest'
import { decideAdmissions } from '../../../src/stores/redlock/census.js'
import type { NodeRecord } from '../../../src/stores/redlock/node.js'

const MAX_TTL_MS = 1_000
const rulesOf = (size: number) => ({ majority: Math.floor(size / 2) + 1, maxTtlMs: MAX_TTL_MS })

let runs = 0
const node = (state: NodeRecord['state'], more: Partial<NodeRecord> = {}): NodeRecord => {
  const run = `run-${runs++}`
  return {
    run,
    id: `id-${run}`,
    state,
    ageMs: 0,
    counter: 0,
    longestMs: 0,
    nodes: 0,
    manifest: '',
    format: '2',
    ...more,
  }
}
const voter = (counter = 0, manifest = ''): NodeRecord =>
  node('votes', { counter, manifest, nodes: 5, ageMs: 9_999, longestMs: MAX_TTL_MS })
const lost = (ageMs: number): NodeRecord => node('lost', { ageMs })

/** What is decided when two readings are the same. */
const decided = (records: (NodeRecord | undefined)[]) =>
  decideAdmissions(records, records, rulesOf(records.length)).admissions

describe('a new cluster', () => {
  test('a new cluster votes at once when two readings show all nodes new', () => {
    const nodes = [node('new'), node('new'), node('new')]
    const first = decideAdmissions(nodes, [undefined, undefined, undefined], rulesOf(3))
    expect(first).toEqual({ admissions: [undefined, undefined, undefined], readAgain: true })
    const manifest = nodes.map(({ id }) => id).join(' ')
    expect(decided(nodes)).toEqual(nodes.map(({ id }) => ({ as: 'founder', id, manifest })))
  })

  test('a new cluster is not founded while a node is silent, which might be the one that remembers', () => {
    expect(decided([node('new'), node('new'), undefined])).toEqual([undefined, undefined, undefined])
  })

  test('a new cluster is not founded by two readings between which a node was emptied', () => {
    const [a, b, c] = [node('new'), node('new'), node('new')]
    const emptied = { ...b, id: 'another' }
    expect(decideAdmissions([a, emptied, c], [a, b, c], rulesOf(3))).toEqual({
      admissions: [undefined, undefined, undefined],
      readAgain: true,
    })
  })

  test('a client that finds a cluster half founded completes it', () => {
    const late = node('new')
    const manifest = `x y ${late.id}`
    expect(decided([voter(0, manifest), voter(0, manifest), late])[2]).toEqual({ as: 'founder', id: late.id, manifest })
  })

  test('an empty node that is not in the manifest of the voters has lost something', () => {
    const stranger = node('new')
    expect(decided([voter(0, 'x y z'), voter(0, 'x y z'), stranger])[2]).toEqual({ as: 'loser', id: stranger.id })
  })
})

describe('a node that lost its data', () => {
  test('a node that lost its data sits out until the longest lease it may have forgotten is over', () => {
    expect(decided([voter(7), voter(9), lost(MAX_TTL_MS - 1)])[2]).toBeUndefined()
    expect(decided([voter(7), voter(9), lost(MAX_TTL_MS)])[2]).toMatchObject({ as: 'returner', counter: 9 })
  })

  test('a node that lost its data sits out for the longest maxTtl that any client used', () => {
    const generous = { ...voter(9), longestMs: 5_000 }
    expect(decided([voter(7), generous, lost(4_999)])[2]).toBeUndefined()
    expect(decided([voter(7), generous, lost(5_000)])[2]).toMatchObject({ as: 'returner', longestMs: 5_000 })
  })

  test('a node that lost its data returns only with the counters of so many others that each majority has one of them', () => {
    // Of five, a token is known to three. This one forgot it: two still know it, and any three of four meet one of them.
    const returner = lost(MAX_TTL_MS)
    expect(decided([voter(1), voter(2), undefined, undefined, returner])[4]).toBeUndefined()
    expect(decided([voter(1), voter(2), voter(3), undefined, returner])[4]).toMatchObject({ counter: 3 })
    // Of four, it is known to three: any two of three others will do.
    expect(decided([voter(1), voter(2), undefined, returner])[3]).toMatchObject({ counter: 2 })
    expect(decided([voter(1), undefined, undefined, returner])[3]).toBeUndefined()
  })

  test('a node that lost its data returns with counters read after it had sat out, not before', () => {
    const [a, b] = [voter(1), voter(1)]
    const before = lost(MAX_TTL_MS - 5)
    const now = { ...before, ageMs: MAX_TTL_MS + 5 }
    expect(decideAdmissions([a, b, now], [a, b, before], rulesOf(3))).toEqual({
      admissions: [undefined, undefined, undefined],
      readAgain: true,
    })
  })

  test('a node that lost its data does not take counters of others that lost theirs', () => {
    expect(decided([voter(1), voter(2), lost(0), undefined, lost(MAX_TTL_MS)])[4]).toBeUndefined()
  })
})

describe('a majority that lost its data', () => {
  test('a majority that lost its data returns when each node has sat out, with the largest counter known', () => {
    const nodes = [lost(MAX_TTL_MS), { ...lost(MAX_TTL_MS), counter: 4 }, voter(3)]
    expect(decided(nodes).map((admission) => admission?.as)).toEqual(['returner', 'returner', undefined])
    expect(decided(nodes)[0]).toMatchObject({ counter: 4 })
  })

  test('a majority that lost its data waits until the last of its nodes has sat out', () => {
    expect(decided([lost(MAX_TTL_MS), lost(10), voter(3)])).toEqual([undefined, undefined, undefined])
  })

  test('empty nodes are not taken for a new cluster if one of them is known to have lost something', () => {
    const nodes = [lost(10), node('new'), node('new')]
    expect(decided(nodes).map((admission) => admission?.as)).toEqual([undefined, 'loser', 'loser'])
  })
})
