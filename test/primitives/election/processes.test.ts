import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import type { Child } from '../../../testbed/children.js'
import { createLocks, type Locks } from '../../../src/index.js'
import type { Store } from '../../../src/store.js'
import { startChild } from '../../../testbed/children.js'
import { startStopwatch } from '../../../testbed/running-time.js'
import { kinds, type Fixture } from '../../../testbed/fixtures.js'
import type { CandidateBehaviour, CandidateReport } from '../../../testbed/children/candidate.child.js'

const CANDIDATE = new URL('../../../testbed/children/candidate.child.ts', import.meta.url)
/** TTL_MS: a leader must not lose its term because the machine is busy for a second or two. */
const TTL_MS = 3_000

describe.each([kinds.sqlite, kinds.redis, kinds.postgres, kinds.redlock])('processes on $name', (kind) => {
  let fixture: Fixture
  let store: Store
  let locks: Locks

  beforeAll(async () => {
    fixture = await kind.open()
    store = await fixture.store()
    locks = createLocks(store)
  })

  afterAll(async () => {
    await locks.close()
    await store.close()
    await fixture.close()
  })

  /** Starts two candidates: the first leads, and the second waits. */
  async function pair(
    name: string,
    how: CandidateBehaviour,
  ): Promise<{ term: bigint; leader: Child<CandidateReport>; other: Child<CandidateReport> }> {
    const start = (): Child<CandidateReport> =>
      startChild<CandidateReport>(CANDIDATE, [fixture.url as string, name, String(TTL_MS), how], onTestFinished)
    const leader = start()
    const term = await led(leader)
    const other = start()
    await other.until(({ type }) => type === 'ready')
    await expect.poll(() => waiting(name), { timeout: 20_000 }).toBe(true)
    return { term, leader, other }
  }

  async function waiting(name: string): Promise<boolean> {
    if (store.features.queue) return (await locks.waiters(name, { kind: 'election' })).length === 1
    // The store does not list waiters. The second candidate has asked by then.
    return new Promise((resolve) => setTimeout(resolve, 500, true))
  }

  test('a leader killed with kill -9 is replaced within its ttl and a second, and observers see the next one', async () => {
    const name = 'killed'
    const { term, leader, other } = await pair(name, 'believing')
    const stop = new AbortController()
    onTestFinished(() => stop.abort())
    const leaders = locks.election(name).observe({ signal: stop.signal })
    expect((await leaders.next()).value).toMatchObject({ term, value: leader.pid })
    const watch = startStopwatch()
    leader.kill('SIGKILL')
    const replaced = report(other, 'led')
    const slowestMs = await slowestCall(() => locks.election(name).leader(), replaced)
    const { term: text, stalledMs = 0 } = await replaced
    const next = BigInt(text)
    // Nobody can promise anything for the times at which the candidate had no processor, or the server did not answer.
    expect(watch.ms() - stalledMs - slowestMs).toBeLessThan(TTL_MS + 1_000)
    watch.stop()
    expect(next).toBeGreaterThan(term)
    expect((await leaders.next()).value).toMatchObject({ term: next, value: other.pid })
    other.tell({ order: 'leave' })
    expect(await other.ended).toBe(0)
  })

  test('a leader that was frozen beyond its ttl reports the loss at its first check, and the next leader is not affected', async () => {
    const { term, leader, other } = await pair('frozen', 'freezing')
    leader.tell({ order: 'freeze' })
    const next = await led(other)
    leader.kill('SIGCONT')
    const woke = await leader.until(({ type }) => type === 'woke')
    expect(woke).toMatchObject({ isLeader: false, aborted: true, healthy: false, toldAfterATurn: true })
    expect(next).toBeGreaterThan(term)
    await expect.poll(() => waiting('frozen'), { timeout: 20_000 }).toBe(true)
    other.tell({ order: 'leave' })
    expect(await other.ended).toBe(0)
    expect(await led(leader), 'it campaigned again').toBeGreaterThan(next)
  })

  test('resign() hands the election off to another process at once', async () => {
    const { term, leader, other } = await pair('resigned', 'believing')
    const reports = collected([leader, other])
    let [last, from] = [term, leader]
    const tookMs: number[] = []
    while (tookMs.length < 3) {
      const seen = reports.length
      from.tell({ order: 'resign' })
      const after = (wanted: 'told' | 'led'): CollectedReport | undefined =>
        reports.slice(seen).find(({ report: { type } }) => type === wanted)
      // Reports of two processes arrive in any order.
      await expect.poll(() => after('told') && after('led')).toBeDefined()
      const [told, next] = [after('told'), after('led')] as [CollectedReport, CollectedReport]
      expect(BigInt(next.report.term)).toBeGreaterThan(last)
      expect(next.report.at).toBeGreaterThan(told.report.at)
      // Without a queue, the one that resigned steps aside for half a second. It leads again if the other was stopped for longer.
      if (next.child !== from) tookMs.push((next.report.at - told.report.at) / 1_000)
      ;[last, from] = [BigInt(next.report.term), next.child]
      await expect.poll(() => waiting('resigned')).toBe(true)
    }
    // Without a wake-up it would take up to a second, and with a lease left behind longer than that, each time.
    expect(Math.min(...tookMs)).toBeLessThan(1_000)
  })
})

interface CollectedReport {
  child: Child<CandidateReport>
  report: LedReport
}

/** What these report from now on about their terms, in the order of its arrival. */
function collected(children: readonly Child<CandidateReport>[]): CollectedReport[] {
  const all: CollectedReport[] = []
  for (const child of children) {
    const read = async (): Promise<void> => {
      for (;;) {
        const report = await child.next()
        if (report.type === 'led' || report.type === 'told') all.push({ child, report: report as LedReport })
      }
    }
    // The process is killed at the end of the test.
    void read().catch(() => {})
  }
  return all
}

type LedReport = Extract<CandidateReport, { term: string }>

async function report(child: Child<CandidateReport>, wanted: 'led' | 'told'): Promise<LedReport> {
  return (await child.until(({ type }) => type === wanted)) as LedReport
}

async function led(child: Child<CandidateReport>): Promise<bigint> {
  return BigInt((await report(child, 'led')).term)
}

/** Calls again and again until the promise settles. Resolves with the longest that a call took, in milliseconds. */
async function slowestCall(call: () => Promise<unknown>, end: Promise<unknown>): Promise<number> {
  let over = false
  let slowest = 0
  void end.finally(() => (over = true))
  while (!over) {
    const began = performance.now()
    await call()
    slowest = Math.max(slowest, performance.now() - began)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  return slowest
}
