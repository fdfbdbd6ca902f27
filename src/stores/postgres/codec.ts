import { InvalidOptionError, StoreUnavailableError } from '../../errors.js'
import type {
  Answer,
  Claim,
  Failure,
  HolderView,
  Renewal,
  Renewed,
  TakeAnswer,
  TakeRequest,
  WaiterView,
} from '../../store.js'

/** What the server's B-tree takes of a key, with room to spare. */
const MOST_BYTES_OF_A_KEY = 2_000

/** Why this item cannot be carried: PostgreSQL has no NUL and no half characters. */
export function refusal({ key, owner = '' }: { key: string; owner?: string }): InvalidOptionError | undefined {
  if (!isText(key) || Buffer.byteLength(key) > MOST_BYTES_OF_A_KEY) {
    return new InvalidOptionError(
      'name',
      key,
      `well-formed text without NUL, at most ${MOST_BYTES_OF_A_KEY} bytes of UTF-8`,
    )
  }
  return isText(owner) ? undefined : new InvalidOptionError('owner', owner, 'well-formed text without NUL')
}

function isText(value: string): boolean {
  return typeof value === 'string' && !value.includes('\0') && value.isWellFormed()
}

/** Errors of the data class: the server could not read one of the values, and so carried out nothing. */
function isUnreadable(error: unknown): boolean {
  const cause = (error as { cause?: { code?: unknown } }).cause
  return typeof cause?.code === 'string' && cause.code.startsWith('22')
}

/**
 * Answers each item by itself: one that cannot be carried is answered without being sent, and one that the server cannot
 * read does not take the others of its batch with it.
 */
export async function singly<Item extends { key: string; owner?: string }, Out>(
  items: readonly Item[],
  failed: (error: unknown) => Out,
  call: (items: readonly Item[]) => Promise<Out[]>,
): Promise<Out[]> {
  const refused = items.map(refusal)
  const carried = refused.some((error) => error !== undefined) ? items.filter((_, i) => !refused[i]) : items
  const answers = carried.length > 0 ? await callOrSplit(carried, failed, call) : []
  let next = 0
  return items.length === carried.length
    ? answers
    : refused.map((error) => (error ? failed(error) : (answers[next++] as Out)))
}

async function callOrSplit<Item, Out>(
  items: readonly Item[],
  failed: (error: unknown) => Out,
  call: (items: readonly Item[]) => Promise<Out[]>,
): Promise<Out[]> {
  try {
    return await call(items)
  } catch (error) {
    if (items.length === 1 || !isUnreadable(error)) throw error
    const answers: Out[] = []
    for (const item of items) answers.push(...(await call([item]).catch((reason: unknown) => [failed(reason)])))
    return answers
  }
}

export function unknownAnswer(error: unknown): Failure {
  return { granted: 'unknown', error }
}

export function unknownOutcome(error: unknown): { outcome: 'unknown'; error: unknown } {
  return { outcome: 'unknown', error }
}

export function claimJson({ key, owner, weight, capacity, ttlMs, value, placeMs, announce, steal }: Claim): object {
  return { key, owner, weight, capacity, ttl: ttlMs, value, queue: placeMs, announce, steal }
}

export type AcquireAnswer =
  | [granted: 1, token: string, ttlMs: number]
  | [
      refused: 0,
      ahead: number,
      owner: string | null,
      ttlMs: number,
      token: string,
      value: string | null,
      newest: string | null,
    ]
  | [stuck: 2]

export function answerOf(answer: AcquireAnswer, { key, owner }: Claim): Answer {
  if (answer[0] === 1) return { granted: true, owner, token: BigInt(answer[1]), ttlMs: answer[2] }
  if (answer[0] === 2) return unknownAnswer(stuck(key))
  const [, ahead, holder, ttlMs, token, value, last] = answer
  const newest = last === null || last === undefined ? undefined : BigInt(last)
  if (typeof holder !== 'string') return { granted: false, ahead, newest }
  const blocker = { owner: holder, ttlMs, token: BigInt(token), value: value ?? undefined }
  return { granted: false, ahead, newest, blocker }
}

/** See renew.sql. */
export type RenewAnswer =
  | number
  | [ahead: number, newest: string | null, blockedMs: number | null]
  | [token: string, ttlMs: number]

export function renewedOf(answer: RenewAnswer | undefined, { ttlMs }: Renewal): Renewed {
  if (!Array.isArray(answer)) return answer === 1 ? { outcome: 'ours', ttlMs } : { outcome: 'gone' }
  if (answer.length === 2) return { outcome: 'granted', token: BigInt(answer[0]), ttlMs: answer[1] }
  const [ahead, newest, blockedMs] = answer
  return {
    outcome: 'waiting',
    ahead,
    newest: newest === null ? undefined : BigInt(newest),
    blockedMs: blockedMs ?? undefined,
  }
}

export type HolderRow = [string, string, number, number, string, number, number, string | null, number]

export function holderOf([key, owner, weight, capacity, token, ttlMs, heldMs, value, waiting]: HolderRow): HolderView {
  return { key, owner, weight, capacity, token: BigInt(token), ttlMs, heldMs, value: value ?? undefined, waiting }
}

export type WaiterRow = [string, string, number, number, number, string | null]

export function waiterOf([key, owner, weight, capacity, waitedMs, value]: WaiterRow): WaiterView {
  return { key, owner, weight, capacity, waitedMs, value: value ?? undefined }
}

export type TakeRow = [
  allowed: number,
  remaining: number,
  retryAfterMs: number | null,
  resetMs: number,
  limits?: [remaining: number, nextMs: number][],
]

export function takenOf(row: TakeRow, { key }: TakeRequest): TakeAnswer | Failure {
  const [allowed, remaining, retryAfterMs, resetMs, states = []] = row
  if (allowed === 2) return unknownAnswer(stuck(key))
  const limits = states.map(([left, nextMs]) => ({ remaining: left, nextMs }))
  const retry = retryAfterMs ?? Number.POSITIVE_INFINITY
  return { allowed: allowed === 1, remaining, retryAfterMs: retry, resetMs, limits }
}

export function stuck(key: string): StoreUnavailableError {
  return new StoreUnavailableError(
    `postgres is unavailable for "${key}": a transaction that decides about it stays open (acquire_lock() belongs in a transaction of its own)`,
  )
}
