/**
 * What the server sends to the page, as JSON in server-sent events. All times are epoch milliseconds by the server's clock;
 * the page corrects for its own.
 *
 * @module
 */

/** Where a figure comes from: read in the store, published by processes, or done by this dashboard. */
export type Origin = 'store' | 'processes' | 'dashboard'

/** One holder. */
export interface HolderRow {
  id: number
  kind: string
  name: string
  holder: string
  mode: 'exclusive' | 'shared'
  weight?: number | undefined
  capacity?: number | undefined
  token?: string | undefined
  since?: number | undefined
  /** Absent: it does not end by itself. */
  ends?: number | undefined
  /** The most time left that was seen since its last renewal: the full length of the bar that drains. */
  ttlMs?: number | undefined
  /** JSON text. */
  metadata?: string | undefined
  foreign?: boolean | undefined
  waiting: number
  detail?: Readonly<Record<string, string | number>> | undefined
  health: Health
}

/** Whether a holder is alive, and how we know. */
export interface Health {
  /**
   * `at-risk`: its process says that its renewals fail. `silent`: it should have renewed and has not. `gone`: its process does
   * not exist. `unknown`: nothing was seen yet.
   */
  state: 'alive' | 'at-risk' | 'silent' | 'gone' | 'unknown'
  /** When its last renewal was seen. */
  renewedAt?: number | undefined
  /** When its process last published figures. */
  publishedAt?: number | undefined
  /** Its process was looked for on this host. */
  process?: 'running' | 'missing' | undefined
  /** The store says that its session is open. */
  session?: boolean | undefined
}

/** Sent first on every stream. */
export interface Hello {
  title: string
  store: string
  /** Whether the store knows who waits. */
  queue: boolean
  /** `session`: a lock ends with its connection. */
  expiry: 'timed' | 'session'
  allowRelease: boolean
  /** Whether there can be limiters on this store, and whether processes can publish there. */
  limiters: boolean
  publish: boolean
  now: number
  /** Held and waiting over the last minutes, as `HeldPoint`. */
  history: HeldPoint[]
}

export type HeldPoint = [at: number, held: number, waiting: number]

/** What changed among the holders. */
export interface HolderChanges {
  now: number
  /** Forget what came before. */
  reset?: boolean | undefined
  rows: HolderRow[]
  gone: number[]
  /** Renewals: id, end and when it was seen. */
  renewed: [id: number, ends: number, renewedAt: number][]
}

export interface ProcessView {
  instance: string
  publishes: boolean
  startedAt?: number | undefined
  publishedAt?: number | undefined
  everyMs?: number | undefined
  held: number
  waiting?: number | undefined
  /** Locks whose renewals fail, by what it published. */
  atRisk?: number | undefined
  counters?: Record<string, number> | undefined
}

/** One stretch of a chart. Undefined: nothing was measured in it. */
export interface SlotView {
  at: number
  wait?: [p50: number, p95: number, p99: number] | undefined
  hold?: [p50: number, p95: number, p99: number] | undefined
  timeouts: number
  lost: number
}

export interface ContentionName {
  kind: string
  name: string
  origin: Origin
  /** Now, in the store. */
  waiting: number
  /** Sum of waits in the last minutes. */
  waitMs: number
  acquired?: number | undefined
  timeouts?: number | undefined
}

/** A lock that was lost or taken away. */
export interface LossView {
  at: number
  /** `ran-out`: seen in the store, the lease ended without a renewal. */
  what: 'lost' | 'forced' | 'ran-out'
  origin: Origin
  kind: string
  name: string
  holder: string
  token?: string | undefined
  why?: string | undefined
  message?: string | undefined
  heldMs?: number | undefined
  /** The longest time since the last good renewal for which the event loop of its process did not turn. */
  stalledMs?: number | undefined
  lastRenewedMsAgo?: number | undefined
  /** The last attempts to renew it, the oldest first. */
  attempts?: { at: number; outcome: string; tookMs: number; error?: string | undefined }[] | undefined
}

export interface ElectionTerm {
  name: string
  term: string
  leader: string
  since?: number | undefined
  until?: number | undefined
}

export interface ScheduleView {
  name: string
  cron?: string | undefined
  timezone?: string | undefined
  next?: number | undefined
  /** Who runs it right now. */
  running?: string | undefined
  last?:
    | { tick: number; outcome?: string | undefined; tookMs?: number | undefined; error?: string | undefined }
    | undefined
  origin: Origin
  processes: number
}

export interface LimiterView {
  name: string
  limits: { algorithm: string; limit: number; perMs: number; burst: number }[]
  allowed: number
  refused: number
  processes: number
}

/** One use of the release button. */
export interface ReleaseAction {
  at: number
  kind: string
  name: string
  /** From which address. */
  by: string
  /** Whom it cut off. */
  holders: string[]
  error?: string | undefined
}

/** Everything but the holders. */
export interface DashboardFacts {
  now: number
  store: { reachable: boolean; since?: number | undefined; error?: string | undefined; everyMs: number; tookMs: number }
  /** Set if there are more holders than are read. */
  truncated?: number | undefined
  point: HeldPoint
  publishing: number
  processes: ProcessView[]
  slotMs: number
  /** By published figures, and by what was seen in the store. */
  slots: SlotView[]
  sampledSlots: SlotView[]
  names: ContentionName[]
  losses: LossView[]
  terms: ElectionTerm[]
  schedules: ScheduleView[]
  limiters: LimiterView[]
  actions: ReleaseAction[]
}

/** One name in full, for the panel. */
export interface LockDetail {
  now: number
  kind: string
  name: string
  holders: string[]
  waiters: {
    holder: string
    mode: 'exclusive' | 'shared'
    weight?: number | undefined
    waitedMs?: number | undefined
    metadata?: string | undefined
  }[]
}
