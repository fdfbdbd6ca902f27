/** When a holder counts as alive, and when not. */
import { expect, test } from 'vitest'
import { type HealthFacts, type ProcessEvidence, healthOf } from '../../src/dashboard/health.js'
import { type EndedHolder, TrackedHolders } from '../../src/dashboard/holders.js'
import type { HolderRow } from '../../src/dashboard/protocol.js'
import type { HolderInfo } from '../../src/index.js'

const NOTHING: ProcessEvidence = {
  publishedAt: undefined,
  publishingEndedAt: undefined,
  process: undefined,
  session: false,
  atRisk: false,
}

/** Held since 100 s, with this much left of 30 s. */
function state(
  leftMs: number,
  changes: { facts?: Partial<HealthFacts>; evidence?: Partial<ProcessEvidence>; row?: Partial<HolderRow> } = {},
): string {
  const now = 1_000_000
  const row = { since: now - 100_000, ends: now + leftMs, ttlMs: 30_000, ...changes.row } as HolderRow
  const facts = { firstSeenAt: now - 20_000, renewedAt: undefined, ...changes.facts }
  return healthOf(row, facts, now, { ...NOTHING, ...changes.evidence }).state
}

test('a holder is alive only with evidence, and silent when a renewal is overdue', () => {
  expect(state(25_000)).toBe('unknown')
  expect(state(25_000, { facts: { renewedAt: 995_000 } })).toBe('alive')
  expect(state(25_000, { evidence: { publishedAt: 999_000 } })).toBe('alive')
  expect(state(29_000, { row: { since: 999_000 } })).toBe('alive')
  // Two thirds are left when a renewal is due: until it is overdue, nothing is said against the holder.
  expect(state(19_000, { facts: { renewedAt: 989_000 } })).toBe('alive')
  expect(state(15_000, { facts: { renewedAt: 985_000 } })).toBe('silent')
  expect(state(15_000, { evidence: { publishedAt: 999_000 } })).toBe('silent')
  expect(state(25_000, { facts: { renewedAt: 995_000 }, evidence: { publishingEndedAt: 998_000 } })).toBe('silent')
})

test('a holder whose process says that renewals fail is at risk, also before and after a renewal is overdue', () => {
  const evidence = { publishedAt: 999_000, atRisk: true }
  expect(state(25_000, { evidence })).toBe('at-risk')
  expect(state(5_000, { evidence })).toBe('at-risk')
  expect(state(5_000, { evidence: { ...evidence, process: 'missing' } })).toBe('gone')
})

test('a process that is missing on this host counts as gone, unless its lease is renewed: another host may have the same name', () => {
  expect(state(25_000, { evidence: { process: 'missing' } })).toBe('gone')
  expect(state(25_000, { evidence: { process: 'missing' }, facts: { renewedAt: 995_000 } })).toBe('alive')
  expect(state(15_000, { evidence: { process: 'missing' }, facts: { renewedAt: 985_000 } })).toBe('gone')
  // A process with this number proves nothing: it may be another one.
  expect(state(25_000, { evidence: { process: 'running' } })).toBe('unknown')
})

test('nothing is said of holders that are not leasehold’s, or whose lease has no end', () => {
  expect(state(5_000, { row: { foreign: true } })).toBe('unknown')
  expect(state(0, { row: { ends: undefined } })).toBe('unknown')
  expect(state(0, { row: { ends: undefined }, evidence: { session: true } })).toBe('alive')
})

function holder(leftMs: number, now: number): HolderInfo {
  return {
    name: 'a',
    kind: 'lock',
    holder: 'h',
    mode: 'exclusive',
    weight: undefined,
    capacity: undefined,
    fencingToken: 1n,
    acquiredAt: new Date(0),
    expiresAt: new Date(now + leftMs),
    metadata: undefined,
    foreign: false,
    waiting: 0,
    detail: undefined,
  }
}

/** Sees these amounts of time left, 1 s apart, and then nothing any more. */
function seen(...left: number[]): { tracked: TrackedHolders; ended: EndedHolder[]; states: string[]; sent: number[] } {
  const none = (): undefined => undefined
  const tracked = new TrackedHolders({
    publishedAt: none,
    publishingEndedAt: none,
    process: none,
    atRisk: () => false,
    sessions: false,
  })
  const states: string[] = []
  const sent: number[] = []
  for (const [i, ms] of left.entries()) {
    const now = 1_000_000 + i * 1_000
    const { changes } = tracked.update([holder(ms, now)], now)
    sent.push(changes.rows.length + changes.renewed.length)
    for (const { health } of tracked.rows()) states.push(health.state)
  }
  const { ended } = tracked.update([], 1_000_000 + left.length * 1_000)
  return { tracked, ended, states, sent }
}

test('a renewal is seen by an end that moved, and a slow answer of the store is none', () => {
  // Answers that are some milliseconds late move the end by as much.
  expect(seen(3_000, 2_010, 2_980, 1_990).states).toEqual(['unknown', 'unknown', 'alive', 'alive'])
  expect(seen(30_000, 29_010, 28_020).states).toEqual(['unknown', 'unknown', 'unknown'])
})

test('a lease that ends after it fell silent ran out, and one that ends before that may have been released', () => {
  expect(seen(3_000, 2_000, 1_000).ended).toMatchObject([{ ranOut: true }])
  expect(seen(3_000, 2_000, 2_900).ended).toMatchObject([{ ranOut: false }])
  expect(seen(900, 900, 900).ended).toMatchObject([{ ranOut: false }])
})

test('how a lease ended is not known after a time without samples', () => {
  const { tracked } = seen()
  tracked.update([holder(3_000, 2_000_000)], 2_000_000)
  tracked.update([holder(1_000, 2_002_000)], 2_002_000)
  expect(tracked.update([], 2_060_000)).toMatchObject({ changes: { gone: [1] }, ended: [] })
})

test('a page is sent what changes, and nothing while nothing does', () => {
  expect(seen(30_000, 29_000, 28_000, 30_000, 29_000).sent).toEqual([1, 0, 0, 1, 0])
})
