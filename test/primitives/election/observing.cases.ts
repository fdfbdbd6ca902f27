import { strict as assert } from 'node:assert'
import { type Election, type LeaderInfo, StoreUnavailableError } from '../../../src/index.js'
import { realWorld, type World } from '../../../src/util/world.js'
import { Locks } from '../../../src/locks.js'
import type { TestContext, Case } from '../../../src/testing/index.js'
import { candidate, waits } from './candidate.js'

/** Reads an observer until it is stopped. */
function reader(
  election: Election,
  signal?: AbortSignal,
): { seen: LeaderInfo[]; over: Promise<void>; isOver: () => boolean } {
  const seen: LeaderInfo[] = []
  let ended = false
  const read = async (): Promise<void> => {
    for await (const info of election.observe(signal ? { signal } : {})) seen.push(info)
    ended = true
  }
  return { seen, over: read(), isOver: () => ended }
}

async function observer(t: TestContext, name: string): Promise<Election> {
  return (await t.locks()).election(name)
}

/** Proclaims until the store has answered: on five servers of a busy machine a majority may be late, which is an outage. */
async function proclaimed(t: TestContext, election: Election, value: unknown): Promise<void> {
  await t.until(`${value} is proclaimed`, async () => {
    try {
      await election.proclaim(value)
      return true
    } catch (error) {
      if (error instanceof StoreUnavailableError) return false
      throw error
    }
  })
}

/** A world without timers for pauses: an observer in it is woken by events only. */
const patient: World = {
  ...realWorld,
  after: (ms, run, keepAlive) => (ms >= 250 ? () => {} : realWorld.after(ms, run, keepAlive)),
}

/** What an observer sees, and when it ends. */
export const observingCases: Case[] = [
  {
    name: 'an observer sees the current leader, each later one, and what they proclaim, in order and once',
    async run(t) {
      const name = t.name()
      const { seen } = reader(await observer(t, name))
      const one = await candidate(t, name, { value: 'one' })
      const first = await one.leads()
      await t.until('the first', () => seen.length === 1)
      const two = await candidate(t, name, { value: 'two' })
      await waits(t, two)
      await one.election.proclaim('one, ready')
      await t.until('what it proclaims', () => seen.length === 2)
      await one.election.proclaim('one, ready')
      await one.election.resign()
      const second = await two.leads()
      await t.until('the second', () => seen.length === 3)
      await two.leave()
      const third = await one.leads(2)
      await t.until('the third', () => seen.length === 4)
      assert.deepEqual(
        seen.map(({ term, value }) => [term, value]),
        [
          [first.term, 'one'],
          [first.term, 'one, ready'],
          [second.term, 'two'],
          [third.term, 'one, ready'],
        ],
      )
      assert.ok(seen[0]?.leader.startsWith(one.locks.clientId) && seen[2]?.leader.startsWith(two.locks.clientId))
      const late = await observer(t, name)
      const { value } = await t.settled('the current leader', late.observe().next())
      assert.deepEqual(value, seen[3])
    },
  },
  {
    name: 'an observer that is not read meanwhile gets the latest leader, and terms never go back',
    async run(t) {
      const name = t.name()
      const leaders = (await observer(t, name)).observe()
      const next = async (): Promise<LeaderInfo> => {
        const { value, done } = await t.settled('the next', leaders.next())
        assert.ok(!done)
        return value
      }
      const one = await candidate(t, name, { value: 1 })
      await one.leads()
      const first = await next()
      for (const nth of [2, 3, 4]) {
        await one.election.resign()
        await one.leads(nth)
      }
      await one.election.proclaim('latest')
      const latest = await next()
      assert.equal(latest.term, one.terms[3]?.term)
      assert.equal(latest.value, 'latest')
      assert.ok(latest.term > first.term)
    },
  },
  {
    name: 'every observer sees the last of a hundred changes',
    async run(t) {
      const name = t.name()
      const readers = await Promise.all(Array.from({ length: 3 }, async () => reader(await observer(t, name))))
      const one = await candidate(t, name, { value: 0 })
      await one.leads()
      for (let i = 1; i <= 100; i++) await proclaimed(t, one.election, i)
      for (const { seen } of readers) {
        await t.until('the last', () => seen.at(-1)?.value === 100)
        const values = seen.map(({ value }) => value as number)
        assert.deepEqual(
          values,
          [...new Set(values)].sort((a, b) => a - b),
        )
      }
    },
  },
  {
    name: 'an observer is woken by each new leader, including one to which the lease was handed off',
    needs: ['watch'],
    async run(t) {
      const name = t.name()
      const locks = new Locks(await t.client(), {}, patient)
      t.afterwards(() => locks.close({ grace: 0 }))
      const { seen } = reader(locks.election(name))
      const sees = (value: number): Promise<unknown> => t.until(`leader ${value}`, () => seen.at(-1)?.value === value)
      const one = await candidate(t, name, { value: 1 })
      await one.leads()
      await sees(1)
      const two = await candidate(t, name, { value: 2 })
      await waits(t, two)
      await one.leave()
      await sees(2)
      await two.leave()
      await candidate(t, name, { value: 3 })
      await sees(3)
      // On Redlock a grant that arrives too late is given up and asked for again: the same leader is seen twice.
      const values = seen.map(({ value }) => value)
      assert.deepEqual(
        values.filter((value, i) => value !== values[i - 1]),
        [1, 2, 3],
      )
    },
  },
  {
    name: 'observe() ends with its signal, with break and with return, also while it waits; close() ends all observers',
    async run(t) {
      const name = t.name()
      const locks = await t.locks()
      const election = locks.election(name)
      const stop = new AbortController()
      const stopped = reader(election, stop.signal)
      const already = reader(election, AbortSignal.abort())
      await t.settled('ended before it began', already.over)
      const returned = election.observe()
      const waiting = returned.next()
      await t.sleep(50)
      assert.deepEqual(await t.settled('return', returned.return?.()), { done: true, value: undefined })
      assert.deepEqual(await t.settled('the one that waited', waiting), { done: true, value: undefined })
      assert.deepEqual(await returned.next(), { done: true, value: undefined })
      assert.ok(!stopped.isOver())
      stop.abort()
      await t.settled('stopped', stopped.over)
      const one = await candidate(t, name)
      await one.leads()
      for await (const { term } of election.observe()) {
        assert.equal(term, one.terms[0]?.term)
        break
      }
      const closed = reader(election)
      await t.until('it reads', () => closed.seen.length === 1)
      await locks.close()
      await t.settled('closed', closed.over)
      await t.settled('closed before', reader(election).over)
    },
  },
  {
    name: 'an outage delays an observer and does not end it',
    async run(t) {
      const name = t.name()
      const store = await t.faulty()
      const { seen, isOver } = reader((await t.locks({}, store)).election(name))
      const one = await candidate(t, name, { value: 'before' })
      await one.leads()
      await t.until('before', () => seen.length === 1)
      const outage = store.inject({ effect: 'break-call', on: 'inspect' })
      const silence = store.inject({ effect: 'lose-event' })
      await one.election.proclaim('during')
      await outage.strikes(2)
      outage.lift()
      silence.lift()
      await t.until('after', () => seen.at(-1)?.value === 'during')
      assert.ok(!isOver())
      const lost = store.inject({ effect: 'lose-reply', on: 'inspect', times: 1 })
      await one.election.proclaim('lost')
      await lost.strikes()
      await t.until('after a reply that was lost', () => seen.at(-1)?.value === 'lost')
    },
  },
  {
    name: 'an observer that gets no events sees the latest leader all the same, a little later',
    async run(t) {
      const name = t.name()
      const store = await t.faulty({ effect: 'dead-watch' })
      const { seen } = reader((await t.locks({}, store)).election(name))
      const one = await candidate(t, name, { value: 1 })
      await one.leads()
      await t.until('the first', () => seen.length === 1)
      await one.election.proclaim(2)
      await t.until('the second', () => seen.length === 2)
    },
  },
  {
    name: 'an iterator that is not read costs nothing: no request, no subscription',
    async run(t) {
      const store = await t.faulty()
      const leaders = (await t.locks({}, store)).election(t.name()).observe()
      await t.sleep(50)
      assert.deepEqual(store.calls, [])
      await leaders.return?.()
    },
  },
]
