import type { HolderInfo } from '../primitives/inspect.js'
import type { EndedHolder } from './holders.js'
import type { PublishingProcess } from './processes.js'
import type { ElectionTerm, HolderRow, LossView, ReleaseAction, ScheduleView } from './protocol.js'

/** LOSSES_KEPT_MS, MOST_LOSSES: the timeline of losses. */
const LOSSES_KEPT_MS = 1_800_000
const MOST_LOSSES = 300
/** MOST_TERMS: terms of all elections that are remembered. */
const MOST_TERMS = 100

/** Kinds whose leases end without a renewal on purpose: records of runs. */
const RECORDS = new Set(['run-once', 'schedule', 'stats'])

/**
 * One lease of the store. A lock that was passed on inside its process has a holder and a token of its own, `<owner>/<n>` and the
 * n-th behind the first.
 */
function keyOf({
  kind,
  name,
  holder,
  token,
}: {
  kind: string
  name: string
  holder: string
  token?: string | undefined
}): string {
  const [, owner = holder, turn = '0'] = /^(.*\/\d+)\/(\d+)$/s.exec(holder) ?? []
  return [kind, name, owner, token && BigInt(token) - BigInt(turn)].join('\0')
}

/** Locks that were lost or taken away, from all sources that tell. */
export class LossHistory {
  readonly #losses = new Map<string, LossView>()

  /** What a process tells of its own loss counts more than what was seen in the store. */
  published(processes: Iterable<PublishingProcess>): void {
    for (const { stats, skewMs } of processes) {
      for (const { at, attempts, ...loss } of stats.losses) {
        const key = keyOf(loss)
        const known = this.#losses.get(key)
        if (known?.origin === 'processes' || known?.why !== undefined) continue
        const told = { ...loss, attempts: attempts?.map((each) => ({ ...each, at: each.at + skewMs })) }
        // Done here, and told by the holder: both are known of it.
        if (known?.origin === 'dashboard') Object.assign(known, told, { heldMs: known.heldMs })
        else {
          const what = loss.why === 'revoked' ? 'forced' : 'lost'
          this.#add(key, { at: at + skewMs, what, origin: 'processes', ...told })
        }
      }
    }
  }

  ended(ended: readonly EndedHolder[], now: number): void {
    for (const { row, ranOut } of ended) {
      if (!ranOut || RECORDS.has(row.kind)) continue
      const key = keyOf(row)
      if (this.#losses.has(key)) continue
      const { kind, name, holder, token, since, ends } = row
      const heldMs = since === undefined || ends === undefined ? undefined : ends - since
      this.#add(key, { at: ends ?? now, what: 'ran-out', origin: 'store', kind, name, holder, token, heldMs })
    }
  }

  /** This dashboard released something by force. */
  forced({ kind, name, at }: ReleaseAction, holders: readonly HolderInfo[]): void {
    for (const { holder, fencingToken, acquiredAt } of holders) {
      const token = fencingToken === undefined ? undefined : String(fencingToken)
      const heldMs = acquiredAt && at - acquiredAt.getTime()
      const key = keyOf({ kind, name, holder, token })
      this.#add(key, { at, what: 'forced', origin: 'dashboard', kind, name, holder, token, heldMs })
    }
  }

  /** The latest first. */
  views(now: number): LossView[] {
    for (const [key, { at }] of this.#losses) if (at < now - LOSSES_KEPT_MS) this.#losses.delete(key)
    return [...this.#losses.values()].sort((a, b) => b.at - a.at)
  }

  #add(key: string, loss: LossView): void {
    this.#losses.set(key, loss)
    if (this.#losses.size > MOST_LOSSES) this.#losses.delete(this.#losses.keys().next().value as string)
  }
}

/** The terms of elections, as they were seen. */
export class ElectionHistory {
  readonly #terms = new Map<string, ElectionTerm>()

  update(begun: readonly HolderRow[], ended: readonly EndedHolder[]): void {
    for (const { kind, name, holder, token = '', since } of begun) {
      if (kind !== 'election') continue
      this.#terms.set(`${name}\0${token}`, { name, term: token, leader: holder, since })
      if (this.#terms.size > MOST_TERMS) this.#terms.delete(this.#terms.keys().next().value as string)
    }
    for (const { row, seenAt } of ended) {
      const term = row.kind === 'election' ? this.#terms.get(`${row.name}\0${row.token ?? ''}`) : undefined
      if (term) term.until = seenAt
    }
  }

  /** Nobody looked for a while: whether these terms have ended since, and when, is not known. */
  forgetOpen(): void {
    for (const [key, { until }] of this.#terms) if (until === undefined) this.#terms.delete(key)
  }

  /** The latest first. */
  views(): ElectionTerm[] {
    return [...this.#terms.values()].sort((a, b) => (b.since ?? 0) - (a.since ?? 0))
  }
}

/** Schedules as the store shows them: the records of ticks, and who runs one now. Published ones know more and win. */
export function schedulesOf(holders: readonly HolderInfo[], published: Map<string, ScheduleView>): ScheduleView[] {
  const views = new Map(published)
  const view = (name: string): ScheduleView => {
    let found = views.get(name)
    if (!found) views.set(name, (found = { name, origin: 'store', processes: 0 }))
    return found
  }
  for (const { name, holder } of holders) {
    const [, own, mark] = /^(.*)@(since|\d{4}-[\d:.TZ-]+)$/s.exec(name) ?? []
    if (own === undefined) view(name).running = holder
    else if (mark !== 'since') {
      const tick = Date.parse(mark as string)
      const found = view(own)
      if (tick > (found.last?.tick ?? 0)) found.last = { tick }
    } else view(own)
  }
  return [...views.values()].sort((a, b) => (a.name < b.name ? -1 : 1))
}
