import { strict as assert } from 'node:assert'
import { ClosedError, LeaseholdError, type Leadership } from '../../../src/index.js'
import type { TestContext, Case } from '../../../src/testing/index.js'
import { aborted, type TestCandidate, candidate, type Gate, gate, rejectsWith, waits } from './candidate.js'

/** Fails the attempt if the lease expired because the machine was too slow: then the case proves nothing. */
async function stillLeads(t: TestContext, { election, expired }: TestCandidate): Promise<void> {
  const [leads, { staleMs }] = [election.isLeader, election.health({ maxStale: 0 })]
  // The event that tells why follows in a later turn.
  if (!leads) await t.sleep(20)
  if (expired()) t.tooSlow()
  assert.ok(leads, 'it still leads')
  assert.equal(staleMs, 0)
}

/** A candidate whose work continues after its signal has aborted, until the case ends it. */
async function slowToEnd(t: TestContext, name: string, ttl: number): Promise<{ one: TestCandidate; end: Gate }> {
  const end = gate()
  const work = async ({ signal }: Leadership): Promise<void> => {
    await aborted(signal)
    await end.opened
  }
  const one = await candidate(t, name, { ttl, drain: '10m', work })
  t.afterwards(end.open)
  return { one, end }
}

/** How terms end. */
export const steppingDownCases: Case[] = [
  {
    name: 'resign() aborts the work, waits for its end, and only then lets another lead; at once where the store has events',
    async run(t) {
      const name = t.name()
      const happened: string[] = []
      const one = await candidate(t, name, {
        work: async ({ signal }) => {
          happened.push('one leads')
          await aborted(signal)
          happened.push('one is told')
          await t.sleep(50)
          happened.push('one has ended')
        },
      })
      const { signal } = await one.leads()
      const two = await candidate(t, name, {
        work: async (leadership) => {
          happened.push('two leads')
          await aborted(leadership.signal)
        },
      })
      await waits(t, two)
      const tookMs: number[] = []
      const resigned = async (leader: TestCandidate, next: TestCandidate, nth: number): Promise<void> => {
        const began = t.now()
        await leader.election.resign()
        assert.ok(!leader.election.isLeader, 'resign() resolves when the lease has been released')
        await next.leads(nth)
        tookMs.push(t.now() - began)
      }
      await resigned(one, two, 1)
      assert.deepEqual(happened, ['one leads', 'one is told', 'one has ended', 'two leads'])
      assert.ok(signal.reason instanceof LeaseholdError)
      assert.equal(signal.reason.code, 'RESIGNED')
      await waits(t, one)
      await resigned(two, one, 2)
      await waits(t, two)
      await resigned(one, two, 2)
      // A candidate that is not woken asks again after a second at the earliest, each time. A stall of the machine is rarer.
      assert.ok(Math.min(...tookMs) < 1_000, `${tookMs} ms`)
      await two.leave()
      await one.leads(3)
    },
  },
  {
    name: 'resign() called by the work itself resolves at once, and the next candidate leads when the work has ended',
    async run(t) {
      const name = t.name()
      const end = gate()
      const resigned = gate()
      const one = await candidate(t, name, {
        work: async ({ signal }, self) => {
          if (self.terms.length > 1) return aborted(signal)
          await aborted(AbortSignal.timeout(50))
          await self.election.resign()
          assert.ok(signal.aborted && self.election.isLeader)
          resigned.open()
          await end.opened
        },
      })
      await one.leads()
      const two = await candidate(t, name)
      await t.settled('it has resigned', resigned.opened)
      await waits(t, two)
      assert.equal(two.terms.length, 0)
      end.open()
      await two.leads()
      assert.ok(!one.election.isLeader)
    },
  },
  {
    name: 'resign() of a candidate that does not lead has no effect',
    async run(t) {
      const name = t.name()
      const one = await candidate(t, name)
      const { signal } = await one.leads()
      const two = await candidate(t, name)
      await waits(t, two)
      await two.election.resign()
      await (await t.locks()).election(name).resign()
      assert.ok(one.election.isLeader && !signal.aborted)
      await one.leave()
      await two.leads()
      await one.election.resign()
      assert.ok(two.election.isLeader)
    },
  },
  {
    name: 'work whose signal has aborted has time to drain: the lease is renewed meanwhile, and no other candidate leads',
    run: (t) =>
      t.unhurried(600, async (ttl) => {
        const name = t.name()
        const { one, end } = await slowToEnd(t, name, ttl)
        const { term } = await one.leads()
        const two = await candidate(t, name)
        await waits(t, two)
        const resigning = one.election.resign()
        const until = t.now() + ttl * 3
        while (t.now() < until) {
          await stillLeads(t, one)
          assert.equal(two.terms.length, 0)
          await t.sleep(20)
        }
        const seen = await two.election.leader()
        await stillLeads(t, one)
        assert.equal(seen?.term, term)
        end.open()
        await t.settled('it has resigned', resigning)
        await two.leads()
      }),
  },
  {
    name: 'work that exceeds its drain time lets another candidate lead, health reports it, and no second work runs beside it',
    async run(t) {
      const name = t.name()
      const end = gate()
      const one = await candidate(t, name, {
        drain: '100ms',
        work: async ({ signal }, self) => {
          await aborted(signal)
          if (self.terms.length === 1) await end.opened
        },
      })
      await one.leads()
      const two = await candidate(t, name)
      await waits(t, two)
      await t.settled('it has resigned', one.election.resign())
      await two.leads()
      assert.ok(!one.election.isLeader)
      await t.until('unhealthy', () => !one.election.health({ maxStale: '300ms' }).healthy)
      const { staleMs } = one.election.health({ maxStale: '1h' })
      assert.ok(staleMs > 300, `${staleMs}`)
      assert.ok(one.election.health({ maxStale: '1h' }).healthy)
      await two.leave()
      await t.sleep(300)
      assert.equal(one.terms.length, 1)
      end.open()
      await one.leads(2)
      assert.ok(one.election.health({ maxStale: 0 }).healthy)
    },
  },
  {
    name: 'the outer signal ends the term and run() resolves; if the work does not end in time, run() rejects with DRAIN_TIMEOUT',
    async run(t) {
      const name = t.name()
      const end = gate()
      const why = new Error('shutting down')
      const one = await candidate(t, name, { drain: '200ms', work: () => end.opened })
      const { signal } = await one.leads()
      one.stop.abort(why)
      assert.equal(signal.reason, why)
      assert.ok(one.election.isLeader, 'it leads while it drains')
      await rejectsWith('DRAIN_TIMEOUT', t.settled('it rejects', one.running))
      assert.ok(!one.election.isLeader)
      const two = await candidate(t, name)
      await two.leads()
      await rejectsWith(
        'ALREADY_RUNNING',
        one.election.run(() => {}),
      )
      end.open()
      await two.leave()
      await t.until('its work has ended', () => one.election.health().staleMs === 0)
      const stop = new AbortController()
      await t.settled(
        'it runs again',
        one.election.run(() => stop.abort(), { signal: stop.signal }),
      )
    },
  },
  {
    name: 'run() rejects with the error of the work, and the lease is released at once',
    async run(t) {
      const name = t.name()
      const own = new Error('mine')
      const one = await candidate(t, name, {
        work: async () => {
          throw own
        },
      })
      await assert.rejects(t.settled('it rejects', one.running), own)
      const two = await candidate(t, name)
      await two.leads()
      const last = await candidate(t, t.name(), {
        // The work fails after its signal has aborted, for another reason.
        work: async ({ signal }) => {
          await aborted(signal)
          throw own
        },
      })
      await last.leads()
      last.stop.abort()
      await assert.rejects(t.settled('it rejects', last.running), own)
    },
  },
  {
    name: 'work that throws the reason of its aborted signal has ended as requested',
    async run(t) {
      const name = t.name()
      const one = await candidate(t, name, {
        work: async ({ signal }, self) => {
          await aborted(signal)
          if (self.terms.length === 1) throw signal.reason
          if (self.terms.length === 2) throw new DOMException('stopped', 'AbortError')
        },
      })
      for (const nth of [1, 2, 3]) {
        await one.leads(nth)
        await one.election.resign()
      }
      await one.leave()
    },
  },
  {
    name: 'work that returns by itself starts again in a later term, not in a hot loop',
    async run(t) {
      const one = await candidate(t, t.name(), { work: () => 'done' })
      const third = await one.leads(3)
      const [first, second] = one.terms as [typeof third, typeof third]
      assert.ok(first.term < second.term && second.term < third.term)
      const [before, began] = [one.terms.length, t.now()]
      await t.sleep(300)
      const [terms, tookMs] = [one.terms.length - before, t.now() - began]
      // One every 100 ms at most, and the two at both ends.
      assert.ok(terms <= tookMs / 100 + 2, `${terms} terms in ${tookMs} ms`)
      await one.leave()
    },
  },
  {
    name: 'a campaign that is cancelled resolves and leaves no queue entry behind',
    async run(t) {
      const name = t.name()
      const one = await candidate(t, name)
      await one.leads()
      const two = await candidate(t, name)
      await waits(t, two)
      await two.leave()
      assert.equal(two.terms.length, 0)
      const three = await candidate(t, name)
      await waits(t, three)
      await one.leave()
      await three.leads()
      await two.election.run(() => assert.fail('not wanted any more'), { signal: AbortSignal.abort() })
      assert.ok(three.election.isLeader)
    },
  },
  {
    name: 'one election object campaigns once at a time',
    async run(t) {
      const name = t.name()
      const one = await candidate(t, name)
      await one.leads()
      await rejectsWith(
        'ALREADY_RUNNING',
        one.election.run(() => {}),
      )
      const two = await candidate(t, name)
      await waits(t, two)
      await rejectsWith(
        'ALREADY_RUNNING',
        two.election.run(() => {}),
      )
      await one.leave()
      await two.leads()
      // One campaign after the other is allowed without limit.
      const stop = new AbortController()
      await two.leave()
      await t.settled(
        'it runs again',
        one.election.run(() => stop.abort(), { signal: stop.signal }),
      )
    },
  },
  {
    name: 'close() during a campaign ends run(), and leaves no queue entry behind',
    async run(t) {
      const name = t.name()
      const one = await candidate(t, name)
      await one.leads()
      const two = await candidate(t, name)
      await waits(t, two)
      await two.locks.close()
      await t.settled('run has ended', two.running)
      assert.equal(two.terms.length, 0)
      const three = await candidate(t, name)
      await one.leave()
      await three.leads()
      await assert.rejects(
        two.election.run(() => {}),
        ClosedError,
      )
    },
  },
  {
    name: 'close() of a leader aborts the work and renews the lease until it has ended, then another candidate leads',
    run: (t) =>
      t.unhurried(600, async (ttl) => {
        const name = t.name()
        const { one, end } = await slowToEnd(t, name, ttl)
        const { signal } = await one.leads()
        const two = await candidate(t, name)
        await waits(t, two)
        const closing = one.locks.close({ grace: '10m' })
        if (one.expired()) t.tooSlow()
        assert.ok(signal.aborted && signal.reason instanceof ClosedError)
        await t.sleep(ttl * 2)
        await stillLeads(t, one)
        assert.equal(two.terms.length, 0)
        end.open()
        await t.settled('run has ended', one.running)
        await t.settled('closed', closing)
        await two.leads()
      }),
  },
  {
    name: 'releaseAll() ends the term as well: isLeader is false and the signal aborted, and the candidate campaigns again',
    async run(t) {
      const name = t.name()
      const one = await candidate(t, name, {
        work: async (leadership, self) => {
          if (self.terms.length === 1) await t.until('told', () => leadership.signal.aborted)
          else await aborted(leadership.signal)
        },
      })
      const first = await one.leads()
      await one.locks.releaseAll()
      assert.ok(first.signal.aborted)
      const again = await one.leads(2)
      assert.ok(again.term > first.term)
    },
  },
]
