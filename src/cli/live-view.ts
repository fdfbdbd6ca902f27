/**
 * What `leasehold watch` shows: one frame of it as lines, and the changes from one look at the store to the next.
 *
 * @module
 */
import type { HolderInfo } from '../primitives/inspect.js'
import { formatDuration } from '../util/duration.js'
import { visible } from '../util/visible.js'
import { expiresIn, heldFor, shortened } from './listing.js'
import { paint } from './output.js'
import { fitted } from './text-width.js'

/** What was read from the store. */
export interface Snapshot {
  holders: readonly HolderInfo[]
  /** There are more than were read. */
  more: boolean
}

export interface ViewState {
  /** What is watched: the store without secrets, and the prefix. */
  title: string
  snapshot: Snapshot | undefined
  /** Since when the store cannot be read, and why. */
  outage: { since: number; reason: string } | undefined
  intervalMs: number
}

/** The columns of fixed width, behind the name and the holder. */
const NARROW = [
  { title: 'HELD', width: 6, of: heldFor },
  { title: 'EXPIRES', width: 7, of: expiresIn },
  { title: 'WAIT', width: 4, of: (one: HolderInfo): string => String(one.waiting) },
]
/** The width of the terminal, in characters, from which on the token is shown too. */
const WIDE_FROM = 110
const TOKEN = { title: 'TOKEN', width: 16, of: (one: HolderInfo): string => String(one.fencingToken ?? '-') }
const GAP = '  '
/** Lines above the first holder: the title, the counts, an empty line and the titles of the columns. */
const FRAME_LINES = 4
/** Fewer columns than this cannot be laid out. */
const LEAST_COLUMNS = 40

/** At most `rows` lines of at most `columns` columns. */
export function frameOf(state: ViewState, size: { columns: number; rows: number }, now: number): string[] {
  const columns = Math.max(size.columns, LEAST_COLUMNS)
  const { snapshot, outage, title } = state
  const holders = snapshot?.holders ?? []
  const room = Math.max(size.rows - FRAME_LINES, 1)
  const shown = holders.length > room ? holders.slice(0, room - 1) : holders
  const cells = layoutFor(columns)
  const line = (values: readonly string[]): string =>
    cells.map(({ width }, i) => fitted(values[i] as string, width)).join(GAP)
  const clock = new Date(now).toTimeString().slice(0, 8)
  const lines = [
    paint('bold', `${fitted(`leasehold watch  ${visible(title)}`, columns - clock.length - 2)}${GAP}${clock}`),
    outage ? outageLine(outage, now, columns) : fitted(countsOf(state), columns),
    '',
    paint('dim', line(cells.map((cell) => cell.title))),
    ...shown.map((one) => line(cells.map((cell) => visible(cell.of(one))))),
  ]
  const hidden = holders.length - shown.length
  if (hidden > 0) lines.push(fitted(`… ${hidden}${snapshot?.more ? ' or more' : ''} more`, columns))
  return lines.slice(0, size.rows).map((text) => text.trimEnd())
}

function countsOf({ snapshot, intervalMs }: ViewState): string {
  const hint = `every ${formatDuration(intervalMs)}, q quits`
  if (!snapshot) return hint
  const { holders, more } = snapshot
  // Holders of one name each carry the number of those who wait for it.
  const waiting = new Map(holders.map((one) => [`${one.kind}:${one.name}`, one.waiting]))
  const total = [...waiting.values()].reduce((sum, count) => sum + count, 0)
  return `${holders.length}${more ? ' or more' : ''} held, ${total} waiting; ${hint}`
}

function outageLine({ since, reason }: { since: number; reason: string }, now: number, columns: number): string {
  const long = formatDuration(Math.round((now - since) / 1_000) * 1_000)
  return paint('red', fitted(`the store has been unavailable for ${long}: ${visible(reason)}`, columns))
}

interface Column {
  title: string
  width: number
  of: (one: HolderInfo) => string
}

/** Name and holder share what the others leave. */
function layoutFor(columns: number): Column[] {
  const fixed: Column[] = columns >= WIDE_FROM ? [...NARROW, TOKEN] : NARROW
  const taken = fixed.reduce((sum, { width }) => sum + width + GAP.length, GAP.length)
  const left = columns - taken
  const name = Math.ceil(left * 0.58)
  return [
    { title: 'NAME', width: name, of: (one) => (one.kind === 'lock' ? one.name : `${one.kind}:${one.name}`) },
    {
      title: 'HOLDER',
      width: left - name,
      of: (one) =>
        `${shortened(one.holder)}${one.foreign ? ' (foreign)' : ''}${one.mode === 'shared' ? ' (shared)' : ''}`,
    },
    ...fixed,
  ]
}

/** `held`: already so at the first look. `ended`: released, expired or lost; the store does not say which. */
export type ChangeName = 'held' | 'acquired' | 'ended' | 'waiting'

export interface Change {
  event: ChangeName
  holder: HolderInfo
}

/** What is different in the second snapshot; all of it, if there is no first one. */
export function changesBetween(before: Snapshot | undefined, after: Snapshot): Change[] {
  const identity = (one: HolderInfo): string => `${one.kind}:${one.name}\0${one.holder}`
  const old = new Map(before?.holders.map((one) => [identity(one), one]))
  const changes: Change[] = []
  for (const holder of after.holders) {
    const known = old.get(identity(holder))
    old.delete(identity(holder))
    if (!known) changes.push({ event: before ? 'acquired' : 'held', holder })
    else if (known.waiting !== holder.waiting) changes.push({ event: 'waiting', holder })
  }
  // What was not read because there was too much of it may still be held.
  if (after.more) return changes
  return [...[...old.values()].map((holder): Change => ({ event: 'ended', holder })), ...changes]
}
