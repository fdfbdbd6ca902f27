// A candidate that reports what it believes. Arguments: the URL, the election, its ttl, and its behaviour while it
// leads.
import { createInterface } from 'node:readline'
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import { openStore } from '../../src/open-store.js'
import { createLocks, type Leadership } from '../../src/index.js'
import { startStopwatch } from '../running-time.js'

export type CandidateBehaviour =
  /** Checks every few milliseconds whether it still leads, and reports each time it believes so. */
  | 'believing'
  /** Stops its own process on demand, in the middle of code, and checks before anything else can run. */
  | 'freezing'

/** Times are microseconds of the clock that all processes of a machine share. */
export type CandidateReport =
  | { type: 'ready' | 'resigning' | 'left'; at: number }
  | { type: 'led' | 'believes' | 'told'; term: string; at: number; stalledMs?: number }
  | { type: 'woke'; gapMs: number; isLeader: boolean; aborted: boolean; healthy: boolean; toldAfterATurn: boolean }

export type CandidateOrder = 'resign' | 'freeze' | 'leave'

const [, , url, name, ttl, how] = process.argv as [string, string, string, string, string, CandidateBehaviour]
const say = (line: CandidateReport): boolean => process.stdout.write(`${JSON.stringify(line)}\n`)
const clock = (): number => Number(process.hrtime.bigint() / 1_000n)

const store = await openStore(url)
const locks = createLocks(store, { ttl: Number(ttl) })
const election = locks.election(name, { value: process.pid })
const stop = new AbortController()
let freeze: (() => void) | undefined

const orders: Record<CandidateOrder, () => void> = {
  resign() {
    say({ type: 'resigning', at: clock() })
    void election.resign()
  },
  freeze: () => freeze?.(),
  leave: () => stop.abort(),
}
createInterface({ input: process.stdin })
  .on('line', (text) => orders[(JSON.parse(text) as { order: CandidateOrder }).order]())
  .on('close', () => process.exit())

async function believe(leadership: Leadership): Promise<void> {
  const { signal } = leadership
  for (;;) {
    // Read before the check: a process that believes now also believed then, and may be stopped in between.
    const at = clock()
    if (!election.isLeader || leadership.signal.aborted) return
    say({ type: 'believes', term: String(leadership.term), at })
    await sleep(3, undefined, { signal }).catch(() => {})
  }
}

async function freezeWhenTold(leadership: Leadership): Promise<void> {
  const { signal } = leadership
  await new Promise<void>((resolve) => {
    signal.addEventListener('abort', () => resolve(), { once: true })
    freeze = () => {
      const before = clock()
      process.kill(process.pid, 'SIGSTOP')
      // The kernel may take a moment to stop this process.
      while (clock() - before < Number(ttl) * 1_000);
      const { isLeader } = election
      const { aborted } = leadership.signal
      const { healthy } = election.health({ maxStale: 0 })
      const gapMs = (clock() - before) / 1_000
      void turn().then(() => {
        say({ type: 'woke', gapMs, isLeader, aborted, healthy, toldAfterATurn: signal.aborted })
        resolve()
      })
    }
  })
  freeze = undefined
}

const watch = startStopwatch()
say({ type: 'ready', at: clock() })
await election.run(
  async (leadership) => {
    const term = String(leadership.term)
    say({ type: 'led', term, at: clock(), stalledMs: watch.stalledMs() })
    leadership.signal.addEventListener('abort', () => say({ type: 'told', term, at: clock() }), { once: true })
    await (how === 'freezing' ? freezeWhenTold(leadership) : believe(leadership))
  },
  { signal: stop.signal },
)
say({ type: 'left', at: clock() })
await locks.close()
await store.close()
process.exit()
