/** Rate limits, run-once and schedules in real processes: limits kept and used, one recorded run, one start per tick. */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import type { LimiterOptions } from '../../src/index.js'
import { createLocks } from '../../src/index.js'
import { realWorld, type World } from '../../src/util/world.js'
import { Locks } from '../../src/locks.js'
import {
  STORE_KINDS,
  type StoreKind,
  openStoreFixture,
  type StoreFixture,
  until,
} from '../../testbed/store-fixtures.js'
import type { TakerReport, Taken, Taking } from './jobs/taker.child.js'
import type { Proving } from './proving.js'
import { program } from '../../testbed/programs.js'

const PROCESSES = 4
const IN_FLIGHT = 64
const TAKE_SECONDS = 10
const SKEWS = [-3_000, -1_500, 0, 1_500, 3_000]

export default async function prove(p: Proving): Promise<void> {
  for (const kind of ['redis', 'postgres'] as const) {
    const fixture = await openStoreFixture(kind)
    await proveLimiter(p, kind, fixture)
    await proveEdges(p, kind, fixture)
    await fixture.close()
  }
  for (const kind of ['sqlite', 'redis', 'postgres'] as const) {
    const fixture = await openStoreFixture(kind)
    await proveOnce(p, kind, fixture)
    await fixture.close()
  }
  for (const kind of STORE_KINDS) await proveInjected(p, kind)
  for (const kind of ['redis', 'postgres'] as const) await proveProcesses(p, kind)
}

function child(path: string, ...args: string[]): ChildProcess {
  const file = program(new URL(path, import.meta.url))
  const one = fork(file, args, { execArgv: [], serialization: 'advanced' })
  one.on('exit', (code) => {
    // A killed child has no exit code. Thrown here, it ends the campaign, which would wait for the child otherwise.
    if (code) throw new Error(`${path} ended with status ${code}`)
  })
  return one
}

async function proveLimiter(p: Proving, kind: StoreKind, fixture: StoreFixture): Promise<void> {
  const bucket = { limit: 500, per: '1s', burst: 100 } as const
  const window = { limit: 1_000, per: '2s', algorithm: 'sliding-window' } as const
  p.say(`${kind}: ${PROCESSES} processes, ${IN_FLIGHT} takes in flight in each, ${TAKE_SECONDS} s`)
  const taken = await takeAll(p, kind, fixture, bucket)
  const [from, to] = span(taken)
  const allows = bucket.burst + ((to - from) * bucket.limit) / 1_000
  p.check(
    `${kind}: a token bucket is never exceeded`,
    ...neverMore(bucketExcess(taken, bucket.limit / 1_000, bucket.burst)),
  )
  p.check(
    `${kind}: at least 99 % of a token bucket is used`,
    taken.length / allows >= 0.99,
    share(taken.length, allows),
  )

  const windowed = await takeAll(p, kind, fixture, window)
  const fits = (TAKE_SECONDS * window.limit) / 2
  p.check(`${kind}: a sliding window is never exceeded`, ...neverMore(windowExcess(windowed, 2_000, window.limit)))
  p.check(
    `${kind}: at least 99 % of a sliding window is used`,
    windowed.length / fits >= 0.99,
    share(windowed.length, fits),
  )
}

const share = (taken: number, of: number): string =>
  `${taken} of ${of.toFixed(0)}, ${((taken / of) * 100).toFixed(2)} %`

const neverMore = (excess: number): [boolean, string] => [excess <= 0, `the fullest stretch was ${-excess} below it`]

async function takeAll(p: Proving, kind: StoreKind, fixture: StoreFixture, options: LimiterOptions): Promise<Taken[]> {
  const taking: Taking = { name: JSON.stringify(options), options, inFlight: IN_FLIGHT, seconds: TAKE_SECONDS }
  const children = Array.from({ length: PROCESSES }, () =>
    child('./jobs/taker.child.ts', kind, fixture.at, JSON.stringify(taking)),
  )
  await Promise.all(children.map((one) => once(one, 'message')))
  const done = children.map((one) => once(one, 'message') as Promise<[TakerReport]>)
  for (const one of children) one.send('go')
  const reports = (await Promise.all(done)).map(([report]) => report)
  const outages = reports.reduce((sum, report) => sum + report.outages, 0)
  if (outages > 0) p.say(`${kind}: ${outages} takes were not answered in time`)
  return reports.flatMap(({ taken }) => taken).sort(([a], [b]) => a - b)
}

function span(taken: readonly Taken[]): [number, number] {
  return [Math.min(...taken.map(([sent]) => sent)), Math.max(...taken.map(([, answered]) => answered))]
}

/** A take was decided between its request and its answer: counts the takes that were certainly inside an interval. */
function bucketExcess(taken: readonly Taken[], perMs: number, burst: number): number {
  const byAnswer = taken.toSorted(([, a], [, b]) => a - b)
  let worst = Number.NEGATIVE_INFINITY
  for (const [from] of taken) {
    let inside = 0
    for (const [sent, answered] of byAnswer) {
      if (sent >= from) worst = Math.max(worst, ++inside - burst - (answered - from) * perMs)
    }
  }
  return Math.ceil(worst - 0.001)
}

function windowExcess(taken: readonly Taken[], lengthMs: number, limit: number): number {
  let worst = Number.NEGATIVE_INFINITY
  for (const [i, [from]] of taken.entries()) {
    let inside = 0
    for (let j = i; j < taken.length; j++) {
      const [sent, answered] = taken[j] as Taken
      if (sent >= from + lengthMs) break
      if (answered < from + lengthMs) inside++
    }
    worst = Math.max(worst, inside - limit)
  }
  return worst
}

async function proveEdges(p: Proving, kind: StoreKind, fixture: StoreFixture): Promise<void> {
  const store = fixture.store()
  const locks = createLocks(store)
  const half = locks.limiter('half', { limit: 5, per: '500ms' })
  const first = await Promise.all(Array.from({ length: 8 }, () => half.take('key')))
  const passed = first.filter(({ allowed }) => allowed).length
  const { retryAfterMs } = await half.take('key')
  p.check(
    `${kind}: per '500ms' is half a second`,
    passed === 5 && retryAfterMs > 0 && retryAfterMs <= 100,
    `${passed} passed, ${retryAfterMs.toFixed(1)} ms to the next`,
  )
  const above = await half.take('key', 6)
  p.check(
    `${kind}: a cost above the burst never passes and says so`,
    !above.allowed && above.retryAfterMs === Number.POSITIVE_INFINITY,
  )
  const none = await locks.limiter('none', { limit: 0, per: '1s' }).take('key')
  p.check(`${kind}: a limit of 0 lets nothing pass`, !none.allowed && none.retryAfterMs === Number.POSITIVE_INFINITY)
  const negative = await half.take('key', -1).catch((error: Error) => error)
  p.check(
    `${kind}: a negative cost is a clear error`,
    negative instanceof Error,
    negative instanceof Error ? negative.message : '',
  )
  await locks.close()
}

/** 200 callers in 8 processes. The first two runners are killed during their run, and replaced. */
async function proveOnce(p: Proving, kind: StoreKind, fixture: StoreFixture): Promise<void> {
  const key = `charge-${p.seed}`
  const results: string[] = []
  const finished: Promise<void>[] = []
  const runs: string[] = []
  let kills = 2
  const start = (): void => {
    const caller = child('../../testbed/children/run-once-caller.child.ts', kind, fixture.at, key, '25', '400')
    const ended = new Promise<void>((resolve) => {
      caller.on('message', (message: { running?: string; results?: string[] }) => {
        if (message.results) {
          results.push(...message.results)
          resolve()
        } else if (message.running) {
          runs.push(message.running)
          if (kills-- > 0) {
            caller.kill('SIGKILL')
            start()
            resolve()
          }
        }
      })
    })
    finished.push(ended)
  }
  for (let i = 0; i < 8; i++) start()
  for (let i = 0; i < finished.length; i++) await finished[i]
  const values = new Set(results)
  p.check(
    `${kind}: all 200 callers of runOnce get the value of one run`,
    results.length === 200 && values.size === 1,
    `${results.length} callers, ${values.size} value, ${runs.length} runs began, 2 were killed`,
  )
  p.check(
    `${kind}: the recorded run is the last that began, and no other ran to its end`,
    runs.length === 3 && values.has(runs[2] as string),
  )
}

/** A job every second that lasts 5 ms, in five instances whose clocks differ by six seconds. */
class Ledger {
  readonly runs = new Map<number, number>()
  early = 0
  /** In milliseconds. */
  earliest = 0

  ran(tick: number, behind: number): void {
    this.runs.set(tick, (this.runs.get(tick) ?? 0) + 1)
    if (behind > 0) this.early++
    this.earliest = Math.max(this.earliest, behind)
  }

  /** Judges the ticks from this time on, as many as there are seconds. */
  judge(p: Proving, label: string, from: number): void {
    const ticks = Array.from({ length: p.seconds }, (_, i) => from + i * 1_000)
    const counts = ticks.map((tick) => this.runs.get(tick) ?? 0)
    const runs = counts.reduce((sum, count) => sum + count, 0)
    const twice = counts.filter((count) => count > 1).length
    const missed = counts.filter((count) => count === 0).length
    const figures = `${runs} runs of ${p.seconds} ticks, ${twice} twice, ${missed} missed, ${this.early} before their time${this.early > 0 ? ` (${this.earliest.toFixed(3)} ms)` : ''}`
    p.check(label, runs === p.seconds && twice === 0 && missed === 0 && this.early === 0, figures)
  }
}

const skewed = (ms: number): World => ({
  ...realWorld,
  now: (exact) => realWorld.now(exact) + ms,
  date: () => realWorld.date() + ms,
})

async function proveInjected(p: Proving, kind: StoreKind): Promise<void> {
  const fixture = await openStoreFixture(kind)
  const ledger = new Ledger()
  const instances = SKEWS.map((skew) => {
    const store = fixture.store()
    const locks = new Locks(store, {}, skewed(skew))
    locks.schedule('second', '* * * * * *', async ({ tick }) => {
      ledger.ran(tick.getTime(), tick.getTime() - ((await store.now?.()) ?? 0))
      await new Promise((resolve) => setTimeout(resolve, 5))
    })
    return locks
  })
  await until('it runs', () => ledger.runs.size > 0)
  const from = Math.max(...ledger.runs.keys()) + 1_000
  await until(
    'the time is over',
    () => Math.max(...ledger.runs.keys()) >= from + p.seconds * 1_000,
    p.seconds * 1_000 + 30_000,
  )
  await Promise.all(instances.map((locks) => locks.close()))
  await fixture.close()
  ledger.judge(p, `${kind}: 5 instances, injected clocks from -3 to +3 s, each tick once`, from)
}

async function proveProcesses(p: Proving, kind: StoreKind): Promise<void> {
  const fixture = await openStoreFixture(kind)
  const ledger = new Ledger()
  const seen = new Map<ChildProcess, number>()
  const children = SKEWS.map((skew) => {
    const instance = child('../../testbed/children/schedule-instance.child.ts', kind, fixture.at, String(skew))
    instance.on('message', (message: { ran?: number; behind?: number; saw?: number; skipped?: number }) => {
      seen.set(instance, message.ran ?? message.saw ?? message.skipped ?? 0)
      if (message.ran !== undefined) ledger.ran(message.ran, message.behind ?? 0)
    })
    return instance
  })
  await until('all of them take part', () => seen.size === children.length, 60_000)
  const from = Math.max(...seen.values()) + 1_000
  await until(
    'the time is over',
    () => Math.max(...ledger.runs.keys()) >= from + p.seconds * 1_000,
    p.seconds * 1_000 + 30_000,
  )
  const ends = children.map((instance) => once(instance, 'exit'))
  for (const instance of children) instance.send('stop')
  await Promise.all(ends)
  await fixture.close()
  ledger.judge(p, `${kind}: 5 processes, clocks from -3 to +3 s, each tick once`, from)
}
