import { strict as assert } from 'node:assert'
import type { Election, ElectionOptions, Leadership, Locks, LossReason } from '../../../src/index.js'
import { LeaseholdError } from '../../../src/index.js'
import type { Store } from '../../../src/store.js'
import type { TestContext } from '../../../src/testing/index.js'

/** A candidate whose work ends when its signal aborts, unless the case passes other work. */
export interface TestCandidate {
  locks: Locks
  election: Election
  /** Each term it has led, in order. */
  terms: Leadership[]
  /** The promise of `run`, until `stop` aborts. */
  running: Promise<void>
  stop: AbortController
  /** True if a lease has expired because it was not renewed in time. */
  expired(): boolean
  /** Waits for its nth term. */
  leads(nth?: number): Promise<Leadership>
  /** Ends the candidacy. Resolves when `run` has ended. */
  leave(): Promise<void>
}

export interface TestCandidateOptions extends ElectionOptions {
  work?: (leadership: Leadership, candidate: TestCandidate) => unknown
  store?: Store
  locks?: Locks
}

/** Why a lease was lost that was not renewed in time. */
const RAN_OUT: ReadonlySet<LossReason> = new Set(['expired', 'blocked', 'frozen', 'unreachable', 'server-down'])

/** Starts a candidate. */
export async function candidate(
  t: TestContext,
  name: string,
  options: TestCandidateOptions = {},
): Promise<TestCandidate> {
  const { work = ({ signal }) => aborted(signal), store, locks = await t.locks({}, store), ...rest } = options
  const election = locks.election(name, rest)
  const stop = new AbortController()
  const terms: Leadership[] = []
  let expired = false
  locks.on('lost', ({ why }) => (expired ||= RAN_OUT.has(why)))
  const one: TestCandidate = {
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
  // A case that fails earlier no longer awaits this promise, so its rejection would be unhandled.
  one.running.catch(() => {})
  t.afterwards(() => stop.abort())
  return one
}

export function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }))
}

/** Waits until this candidate is queued, or on a store without a queue until it has asked repeatedly. */
export async function waits(t: TestContext, { locks, election }: TestCandidate, count = 1): Promise<void> {
  const store = await t.client()
  if (!store.features.queue) return t.sleep(300)
  await t.until(
    `${count} in the queue`,
    async () => (await locks.waiters(election.name, { kind: 'election' })).length === count,
  )
}

/** A promise that the test resolves. */
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
