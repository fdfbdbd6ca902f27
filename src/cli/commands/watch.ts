import { StoreUnavailableError } from '../../errors.js'
import type { Locks } from '../../locks.js'
import type { HolderInfo } from '../../primitives/inspect.js'
import { reasonOf } from '../../util/reason.js'
import { redact } from '../../util/redact.js'
import type { Command, Input } from '../command.js'
import { exitCode, exitCodeOfSignal } from '../exit-codes.js'
import { type Change, changesBetween, frameOf, type Snapshot, type ViewState } from '../live-view.js'
import { anyKindOption, holderAsJson, kindsFrom } from '../listing.js'
import { isRead, print, printJsonLine } from '../output.js'
import { visible } from '../../util/visible.js'
import { Screen, canRedraw } from '../screen.js'
import { sharedStoreUrl, storeOption, withStore } from '../stores.js'

export const watch: Command = {
  usage: '[prefix] [options]',
  summary: 'a live view of who holds what, until q or ctrl-c',
  about: `
On a terminal, redrawn in place. Otherwise, and with --json, a line for each change: "held" (already so at the start),
"acquired", "ended" (released, expired or lost), "waiting" (more or fewer wait), "unavailable" and "available" (the store).
It looks once per --interval: a lock that was held in between only is not seen.`,
  options: {
    interval: { value: 'DURATION', help: 'how often to look (default 1s, at least 100ms)' },
    for: { value: 'DURATION', help: 'stop so long after the first look' },
    json: { help: 'for programs: one line of JSON for each change' },
    kind: anyKindOption,
    ...storeOption,
  },
  examples: [
    ['leasehold watch', 'all locks'],
    ['leasehold watch order: --interval 250ms', 'names that begin so, more often'],
    ['leasehold watch --kind election --json', 'a log of who leads'],
    ['leasehold watch --for 1m --json > changes.jsonl', 'a minute of it'],
  ],
  run: watchStore,
}

/** Bounds of --interval in milliseconds: more often would be load, more seldom no live view. */
const MIN_INTERVAL_MS = 100
const MAX_INTERVAL_MS = 3_600_000
/** Holders that are read at each look: a terminal shows few of them, and the store has other work. */
const MOST_HOLDERS = 5_000

interface WatchPlan {
  prefix: string | undefined
  kinds: readonly string[]
  intervalMs: number
  forMs: number | undefined
}

async function watchStore(input: Input): Promise<number> {
  const plan: WatchPlan = {
    prefix: input.atMostOne('prefix'),
    kinds: kindsFrom(input),
    intervalMs: input.duration('interval', { min: MIN_INTERVAL_MS, max: MAX_INTERVAL_MS }) ?? 1_000,
    forMs: input.duration('for'),
  }
  const title = [redact(sharedStoreUrl(input)), plan.prefix].filter(Boolean).join('  ')
  const end = new WatchEnd()
  const output =
    !input.has('json') && canRedraw() ? new LiveOutput(title, plan, end) : new LineOutput(input.has('json'))
  try {
    await withStore(input, (locks) => look(locks, plan, output, end))
  } finally {
    output.close()
  }
  return end.signal === undefined ? exitCode.ok : exitCodeOfSignal(end.signal)
}

/** Where changes are shown. */
interface WatchOutput {
  show(snapshot: Snapshot): void
  fail(error: Error): void
  close(): void
}

async function look(locks: Locks, plan: WatchPlan, output: WatchOutput, end: WatchEnd): Promise<void> {
  let first = true
  do {
    try {
      output.show(await snapshotOf(locks, plan))
      if (first) end.after(plan.forMs)
      first = false
    } catch (error) {
      // At the start a wrong address is more likely than an outage.
      if (first || !(error instanceof StoreUnavailableError)) throw error
      output.fail(error)
    }
    if (!(await isRead())) return
    await end.within(plan.intervalMs)
  } while (!end.reached)
}

async function snapshotOf(locks: Locks, { prefix, kinds }: WatchPlan): Promise<Snapshot> {
  const holders: HolderInfo[] = []
  for (const kind of kinds) {
    for await (const page of locks.holderPages(prefix, { kind })) {
      holders.push(...page.slice(0, MOST_HOLDERS - holders.length))
      if (holders.length === MOST_HOLDERS) return { holders: sorted(holders), more: true }
    }
  }
  return { holders: sorted(holders), more: false }
}

/** Pages come in any order: lines must not jump from one look to the next. */
function sorted(holders: HolderInfo[]): HolderInfo[] {
  const keyOf = (one: HolderInfo): string => `${one.kind}:${one.name}\0${one.holder}`
  return holders.sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1))
}

/** When watching is over: a key, a signal, --for. */
class WatchEnd {
  reached = false
  signal: NodeJS.Signals | undefined
  #wake: (() => void) | undefined

  constructor() {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
      process.on(signal, () => {
        this.signal = signal
        this.reach()
      })
    }
  }

  after(ms: number | undefined): void {
    if (ms !== undefined) setTimeout(() => this.reach(), ms).unref()
  }

  reach(): void {
    this.reached = true
    this.#wake?.()
  }

  /** Resolves after so long, or at the end. */
  async within(ms: number): Promise<void> {
    if (this.reached) return
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms)
      this.#wake = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }
}

class LiveOutput implements WatchOutput {
  readonly #screen = new Screen()
  readonly #state: ViewState

  constructor(title: string, { intervalMs }: WatchPlan, end: WatchEnd) {
    this.#state = { title, snapshot: undefined, outage: undefined, intervalMs }
    this.#screen.onQuit = () => end.reach()
    this.#screen.onRedraw = () => this.#draw()
  }

  show(snapshot: Snapshot): void {
    this.#state.snapshot = snapshot
    this.#state.outage = undefined
    // Opened only now: what goes wrong before is said on the terminal as it is.
    this.#screen.open()
    this.#draw()
  }

  fail(error: Error): void {
    this.#state.outage = { since: this.#state.outage?.since ?? Date.now(), reason: redact(reasonOf(error)) }
    this.#draw()
  }

  close(): void {
    this.#screen.close()
  }

  #draw(): void {
    this.#screen.draw(frameOf(this.#state, this.#screen.size, Date.now()))
  }
}

class LineOutput implements WatchOutput {
  readonly #json: boolean
  #last: Snapshot | undefined
  #failing = false

  constructor(json: boolean) {
    this.#json = json
  }

  show(snapshot: Snapshot): void {
    if (this.#failing) this.#print('available')
    this.#failing = false
    for (const change of changesBetween(this.#last, snapshot)) this.#print(change.event, { change })
    this.#last = snapshot
  }

  fail(error: Error): void {
    if (!this.#failing) this.#print('unavailable', { error: redact(reasonOf(error)) })
    this.#failing = true
  }

  close(): void {}

  #print(event: string, { change, error }: { change?: Change; error?: string } = {}): void {
    const at = new Date()
    if (this.#json) return printJsonLine({ at, event, error, holder: change && holderAsJson(change.holder) })
    const words: string[] = [at.toISOString(), event.padEnd('unavailable'.length)]
    if (error !== undefined) words.push(error)
    if (change) {
      const { kind, name, holder, waiting } = change.holder
      words.push(kind === 'lock' ? name : `${kind}:${name}`, holder, `waiting ${waiting}`)
    }
    print(
      words
        .map((each) => visible(each))
        .join('  ')
        .trimEnd(),
    )
  }
}
