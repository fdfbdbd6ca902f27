// Everything the page knows, and what was typed into it.
import { batch, computed, type ReadonlySignal, signal } from '@preact/signals'
import type { DashboardFacts, HeldPoint, Hello, HolderChanges, HolderRow } from '../protocol.js'

/** At most so many rows are in the document, however many locks are held: more would make typing slow. */
export const ROWS_SHOWN = 50
/** Milliseconds between two updates of everything that counts time. */
const TICK_MS = 250
/** Milliseconds of the curve of held and waiting. */
const HISTORY_MS = 300_000

export type Tab = 'locks' | 'contention' | 'losses' | 'elections' | 'schedules' | 'limiters' | 'processes'
export const TABS: readonly Tab[] = ['locks', 'contention', 'losses', 'elections', 'schedules', 'limiters', 'processes']
export type SortBy = 'waiting' | 'name' | 'longest' | 'ends'
export type Connection = 'connecting' | 'live' | 'paused' | 'lost' | 'refused'

export const hello = signal<Hello | undefined>(undefined)
export const facts = signal<DashboardFacts | undefined>(undefined)
export const connection = signal<Connection>('connecting')
export const history = signal<HeldPoint[]>([])
/** The server's time. */
export const now = signal(Date.now())

export const tab = signal<Tab>('locks')
export const search = signal('')
export const prefix = signal('')
export const kind = signal('')
export const state = signal('')
export const sortBy = signal<SortBy>('waiting')
export const pageIndex = signal(0)
/** `kind\0name` of the name in the panel. */
export const selected = signal<string | undefined>(undefined)
/** Index of the row that the keyboard is at. */
export const cursor = signal(-1)
export const helpOpen = signal(false)

interface IndexedRow extends HolderRow {
  /** What a search looks through. */
  text: string
  /** The first part of its name, `order:` of `order:7`; empty if it has only one. */
  start: string
}

let clockOffset = 0
const rows = new Map<number, IndexedRow>()
/** Counts changes of `rows`, which is too large to be copied for each. */
const version = signal(0)

export const keyOf = ({ kind: of, name }: { kind: string; name: string }): string => `${of}\0${name}`

interface Totals {
  held: number
  waiting: number
  silent: number
  /** Those whose renewals fail, the one that ends first at the beginning. */
  risky: HolderRow[]
  prefixes: [string, number][]
}

export const totals: ReadonlySignal<Totals> = computed(() => {
  void version.value
  const risky: HolderRow[] = []
  const prefixes = new Map<string, number>()
  const waiting = new Map<string, number>()
  let silent = 0
  for (const row of rows.values()) {
    if (row.health.state === 'at-risk') risky.push(row)
    if (row.health.state === 'silent' || row.health.state === 'gone') silent++
    // Candidates of an election wait for as long as it has a leader: that is no contention.
    if (row.waiting > 0 && row.kind !== 'election') waiting.set(keyOf(row), row.waiting)
    if (row.start !== '') prefixes.set(row.start, (prefixes.get(row.start) ?? 0) + 1)
  }
  let waiters = 0
  for (const each of waiting.values()) waiters += each
  const common = [...prefixes].sort((a, b) => b[1] - a[1]).slice(0, 30)
  return { held: rows.size, waiting: waiters, silent, risky: risky.sort(ORDER.ends), prefixes: common }
})

/** Candidates of an election wait for as long as it has a leader: that is no contention. */
const contended = (row: HolderRow): number => (row.kind === 'election' ? 0 : row.waiting)

const ORDER: Record<SortBy, (a: HolderRow, b: HolderRow) => number> = {
  waiting: (a, b) => contended(b) - contended(a) || ORDER.longest(a, b),
  name: (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.id - b.id),
  longest: (a, b) => (a.since ?? Infinity) - (b.since ?? Infinity) || a.id - b.id,
  ends: (a, b) => (a.ends ?? Infinity) - (b.ends ?? Infinity) || a.id - b.id,
}

/** All rows in order. Apart from the filter, so that typing does not sort thousands of rows again. */
const sorted: ReadonlySignal<IndexedRow[]> = computed(() => {
  void version.value
  return [...rows.values()].sort(ORDER[sortBy.value])
})

/** All rows that match what was typed, in order. */
export const matching: ReadonlySignal<HolderRow[]> = computed(() => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean)
  const [start, ofKind, inState] = [prefix.value, kind.value, state.value]
  return sorted.value.filter((row) => {
    if (ofKind !== '' && row.kind !== ofKind) return false
    if (inState !== '' && row.health.state !== inState) return false
    return row.name.startsWith(start) && words.every((word) => row.text.includes(word))
  })
})

export const pageCount: ReadonlySignal<number> = computed(() =>
  Math.max(Math.ceil(matching.value.length / ROWS_SHOWN), 1),
)
export const shown: ReadonlySignal<HolderRow[]> = computed(() => {
  const from = Math.min(pageIndex.value, pageCount.value - 1) * ROWS_SHOWN
  return matching.value.slice(from, from + ROWS_SHOWN)
})

/** All holders of one name. */
export function holdersOf(key: string): HolderRow[] {
  void version.value
  return [...rows.values()].filter((row) => keyOf(row) === key).sort((a, b) => a.id - b.id)
}

/** The leaders of elections. */
export function ofKind(wanted: string): HolderRow[] {
  void version.value
  return [...rows.values()].filter((row) => row.kind === wanted).sort(ORDER.name)
}

export function apply(changes: HolderChanges): void {
  batch(() => {
    setClock(changes.now)
    if (changes.reset) rows.clear()
    for (const id of changes.gone) rows.delete(id)
    for (const row of changes.rows) rows.set(row.id, indexed(row))
    for (const [id, ends, renewedAt] of changes.renewed) {
      const row = rows.get(id)
      if (!row) continue
      const health = { ...row.health, renewedAt }
      rows.set(id, { ...row, ends, ttlMs: Math.max(ends - renewedAt, 1), health })
    }
    version.value++
  })
}

export function greet(message: Hello): void {
  batch(() => {
    setClock(message.now)
    hello.value = message
    history.value = message.history
    connection.value = 'live'
  })
  document.title = `${message.title} · leasehold`
}

export function learn(message: DashboardFacts): void {
  batch(() => {
    setClock(message.now)
    facts.value = message
    const { point } = message
    const last = history.value.at(-1)
    if (!last || point[0] - last[0] > 900) {
      history.value = [...history.value.filter(([at]) => at > point[0] - HISTORY_MS), point]
    }
  })
}

function indexed(row: HolderRow): IndexedRow {
  const start = /^[^:/.]+[:/.]/.exec(row.name)?.[0] ?? ''
  return { ...row, start, text: `${row.name}\n${row.holder}\n${row.metadata ?? ''}\n${row.kind}`.toLowerCase() }
}

/** The clocks of the browser and of the server may differ. */
function setClock(serverTime: number): void {
  clockOffset = serverTime - Date.now()
  now.value = serverTime
}

setInterval(() => {
  if (!document.hidden && connection.value === 'live') now.value = Date.now() + clockOffset
}, TICK_MS)
