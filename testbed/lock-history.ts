/** What processes recorded of the locks they held while servers were disturbed, and whether it can have been right. */
import { readFileSync } from 'node:fs'

/** What one process recorded of one lock that it was granted, by the clock that all processes share. */
export interface HistoryEntry {
  name: string
  shared: boolean
  token: string
  /** When its attempt began, when it had it, and when it was last seen to be held. */
  startedAt: number
  grantedAt: number
  until: number
  pid: number
  /** How many StoreUnavailableErrors this process had received until then. */
  outages: number
}

export interface HistoryVerdict {
  grants: number
  processes: number
  duplicates: string[]
  inversions: string[]
  overlaps: string[]
}

export function readHistory(path: string): HistoryEntry[] {
  const lines = readFileSync(path, 'utf8').split('\n')
  // A process that was killed may have left half a line.
  return lines.flatMap((line) => (line.endsWith('}') ? [JSON.parse(line) as HistoryEntry] : []))
}

/** Readers among themselves may share a token and overlap; no other holders may. */
export function judge(history: readonly HistoryEntry[]): HistoryVerdict {
  const verdict: HistoryVerdict = { grants: history.length, processes: 0, duplicates: [], inversions: [], overlaps: [] }
  verdict.processes = new Set(history.map(({ pid }) => pid)).size
  for (const name of new Set(history.map((entry) => entry.name))) {
    const entries = history.filter((entry) => entry.name === name).sort((a, b) => a.grantedAt - b.grantedAt)
    for (const [i, later] of entries.entries()) {
      for (const earlier of entries.slice(0, i)) compare(earlier, later, verdict)
    }
  }
  return verdict
}

function compare(earlier: HistoryEntry, later: HistoryEntry, verdict: HistoryVerdict): void {
  if (earlier.shared && later.shared) return
  const both = (): string => `${JSON.stringify(earlier)} and ${JSON.stringify(later)}`
  // As numbers: tokens are microseconds, and stay exact for another two centuries.
  const [before, after] = [Number(earlier.token), Number(later.token)]
  if (before === after) verdict.duplicates.push(both())
  if (before > after && earlier.grantedAt < later.startedAt) verdict.inversions.push(both())
  if (earlier.until > later.grantedAt) verdict.overlaps.push(both())
}
