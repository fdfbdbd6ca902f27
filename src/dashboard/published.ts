import type {
  NameStats,
  PublishedLoss,
  PublishedRisk,
  PublishedSchedule,
  PublishedStats,
} from '../primitives/publish/stats.js'

/** Texts of other processes are cut here: a process that can write to the store could fill this one otherwise. */
const LONGEST = 300
/** Items of each list that are read, for the same reason. */
const MOST_ITEMS = 200
/** Attempts of one loss that are read: processes of this version publish five. */
const MOST_ATTEMPTS = 10

type Loose = Record<string, unknown>

/**
 * What another process published, if it is that. Anybody who can write to the store can write anything, so nothing is taken
 * over that is not of the right shape.
 */
export function readStats(value: unknown): PublishedStats | undefined {
  const stats = value as PublishedStats
  if (!isObject(value) || value['version'] !== 1 || typeof value['instance'] !== 'string') return undefined
  if (![stats.at, stats.startedAt, stats.everyMs, stats.slotMs].every(isNumber)) return undefined
  return {
    version: 1,
    instance: text(stats.instance),
    startedAt: stats.startedAt,
    at: stats.at,
    everyMs: stats.everyMs,
    held: number(stats.held),
    waiting: number(stats.waiting),
    atRisk: number(stats.atRisk),
    risks: list(stats.risks).map(readRisk),
    counters: numbersOf(stats.counters) as PublishedStats['counters'],
    lostBy: numbersOf(stats.lostBy),
    wait: numbers(stats.wait),
    hold: numbers(stats.hold),
    waitMs: number(stats.waitMs),
    holdMs: number(stats.holdMs),
    slotMs: stats.slotMs,
    slots: list(stats.slots).map(readSlot),
    names: list(stats.names).map(readName),
    losses: list(stats.losses).map(readLoss),
    schedules: list(stats.schedules).map(readSchedule),
    limiters: list(stats.limiters).map(readLimiter),
  }
}

function readSlot(slot: Loose): PublishedStats['slots'][number] {
  const { at, wait, hold, timeouts, lost } = slot
  return { at: number(at), wait: numbers(wait), hold: numbers(hold), timeouts: number(timeouts), lost: number(lost) }
}

function readName({ kind, name, acquired, timeouts, lost, waitMs }: Loose): NameStats {
  const counts = { acquired: number(acquired), timeouts: number(timeouts), lost: number(lost), waitMs: number(waitMs) }
  return { kind: text(kind), name: text(name), ...counts }
}

function readRisk({ kind, name, holder, token, ends }: Loose): PublishedRisk {
  return { kind: text(kind), name: text(name), holder: text(holder), token: tokenOf(token), ends: number(ends) }
}

function readLoss({ at, heldMs, why, message, stalledMs, lastRenewedMsAgo, attempts, ...lock }: Loose): PublishedLoss {
  return {
    at: number(at),
    kind: text(lock['kind']),
    name: text(lock['name']),
    holder: text(lock['holder']),
    token: tokenOf(lock['token']),
    heldMs: number(heldMs),
    why: maybe(why, text),
    message: maybe(message, text),
    stalledMs: maybe(stalledMs, number),
    lastRenewedMsAgo: maybe(lastRenewedMsAgo, number),
    attempts: maybe(attempts, readAttempts),
  }
}

function readAttempts(attempts: unknown): PublishedLoss['attempts'] {
  return list(attempts)
    .slice(0, MOST_ATTEMPTS)
    .map(({ at, outcome, tookMs, error }) => ({
      at: number(at),
      outcome: text(outcome),
      tookMs: number(tookMs),
      error: maybe(error, text),
    }))
}

function readSchedule({ name, cron, timezone, next, last }: Loose): PublishedSchedule {
  return {
    name: text(name),
    cron: text(cron),
    timezone: maybe(timezone, text),
    next: maybe(next, number),
    last: isObject(last)
      ? {
          tick: number(last['tick']),
          outcome: text(last['outcome']),
          tookMs: maybe(last['tookMs'], number),
          error: maybe(last['error'], text),
        }
      : undefined,
  }
}

function readLimiter({ name, limits, allowed, refused }: Loose): PublishedStats['limiters'][number] {
  const read = list(limits).map(({ algorithm, limit, perMs, burst }) => ({
    algorithm: text(algorithm) as 'token-bucket',
    limit: number(limit),
    perMs: number(perMs),
    burst: number(burst),
  }))
  return { name: text(name), limits: read, allowed: number(allowed), refused: number(refused) }
}

const isObject = (value: unknown): value is Loose => typeof value === 'object' && value !== null
const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value)
const number = (value: unknown): number => (isNumber(value) ? value : 0)
const text = (value: unknown): string => (typeof value === 'string' ? value.slice(0, LONGEST) : '')
/** Tokens are 64 bits. What `BigInt` does not take would have each sample fail as if the store were down. */
const tokenOf = (value: unknown): string => (typeof value === 'string' && /^\d{1,30}$/.test(value) ? value : '')
const list = (value: unknown): Loose[] => (Array.isArray(value) ? value.slice(0, MOST_ITEMS).filter(isObject) : [])
const numbers = (value: unknown): number[] =>
  Array.isArray(value) ? value.slice(0, 2 * MOST_ITEMS).map((item) => (isNumber(item) ? item : -1)) : []

function maybe<T>(value: unknown, read: (value: unknown) => T): T | undefined {
  return value === undefined || value === null ? undefined : read(value)
}

function numbersOf(value: unknown): Record<string, number> {
  if (!isObject(value)) return {}
  const entries = Object.entries(value).slice(0, MOST_ITEMS)
  return Object.fromEntries(entries.filter(([, count]) => isNumber(count))) as Record<string, number>
}
