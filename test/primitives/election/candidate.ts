import { strict as assert } from 'node:assert'
import type { Election, ElectionOptions, Leadership, Locks } from '../../../src/index.js'
import { LeaseholdError } from '../../../src/index.js'
import type { Store } from '../../../src/store.js'
import type { Bench } from '../../../src/testing/index.js'

/** One who wants to lead, with work that ends when it is told to, unless the case has other work for it. */
export interface Candidate {
  locks: Locks
  election: Election
  /** Each term it led, in order. */
  terms: Leadership[]
  /** `run`, until `stop` aborts. */
  running: Promise<void>
  stop: AbortController
  /** A lease ran out, because it was not renewed in time. */
  expired(): boolean
  /** Its nth term. */
  leads(nth?: number): Promise<Leadership>
  /** Stops wanting to lead, and is gone when this settles. */
  leave(): Promise<void>
}

export interface CandidateOptions extends ElectionOptions {
  work?: (leadership: Leadership, candidate: Candidate) => unknown
  store?: Store
  locks?: Locks
}

/** Campaigns from now on. */
export async function candidate(t: Bench, name: string, options: CandidateOptions = {}): Promise<Candidate> {
  const { work = ({ signal }) => aborted(signal), store, locks = await t.locks({}, store), ...rest } = options
  const election = locks.election(name, rest)
  const stop = new AbortController()
  const terms: Leadership[] = []
  let expired = false
  locks.on('lost', ({ error }) => (expired ||= error.why === 'expired'))
  const one: Candidate = {
    locks,
    election,
    terms,
    stop,
    running: Promise.resolve(),
    expired: () => expired,
    leads: (nth = 1) => t.until(`it leads (${nth})`, () => terms[nth - 1]),
    leave: async () => {
      stop.abort()
      await t.settled('it leaves', one.running)
    },
  }
  one.running = election.run(
    async (leadership) => {
      terms.push(leadership)
      await work(leadership, one)
    },
    { signal: stop.signal },
  )
  // A case that fails earlier has nobody left to look at it.
  one.running.catch(() => {})
  t.afterwards(() => stop.abort())
  return one
}

export function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }))
}

/** Until this one stands in line, or asks again and again where there is no line. */
export async function waits(t: Bench, { locks, election }: Candidate, count = 1): Promise<void> {
  const store = await t.client()
  if (!store.features.line) return t.sleep(300)
  await t.until(
    `${count} in line`,
    async () => (await locks.waiters(election.name, { kind: 'election' })).length === count,
  )
}

/** Something that is settled from outside. */
export interface Gate {
  open: () => void
  opened: Promise<void>
}

export function gate(): Gate {
  let open = (): void => {}
  const opened = new Promise<void>((resolve) => (open = resolve))
  return { open, opened }
}

export function rejectsWith(code: string, promise: Promise<unknown>): Promise<void> {
  return assert.rejects(promise, (error) => {
    assert.ok(error instanceof LeaseholdError, String(error))
    assert.equal(error.code, code)
    return true
  })
}
