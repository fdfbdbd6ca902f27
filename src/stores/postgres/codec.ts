/**
 * To and from the wire: arguments of the schema's functions as SQL, and their answers as the contract's.
 *
 * @module
 */
import { InvalidOptionError, StoreUnavailableError } from '../../errors.js'
import type {
  Answer,
  Claim,
  Failure,
  HolderView,
  LeaseId,
  Renewal,
  Renewed,
  TakeAnswer,
  TakeRequest,
  WaiterView,
} from '../../store.js'

/** Bounds a key in bytes of UTF-8: the server's B-tree takes about 2,700 of a row, the owner of a queue entry included. */
const MAX_KEY_BYTES = 2_000

/** Why this item cannot be sent: PostgreSQL has no NUL and no half characters. */
export function refusal({ key, owner = '' }: { key: string; owner?: string }): InvalidOptionError | undefined {
  if (!isText(key) || Buffer.byteLength(key) > MAX_KEY_BYTES) {
    return new InvalidOptionError('name', key, `well-formed text without NUL, at most ${MAX_KEY_BYTES} bytes of UTF-8`)
  }
  return isText(owner) ? undefined : new InvalidOptionError('owner', owner, 'well-formed text without NUL')
}

function isText(value: string): boolean {
  return typeof value === 'string' && !value.includes('\0') && value.isWellFormed()
}

/** An error of the data class: the server could not read one of the values, and so executed nothing. */
function isUnreadable(error: unknown): boolean {
  const cause = (error as { cause?: { code?: unknown } }).cause
  return typeof cause?.code === 'string' && cause.code.startsWith('22')
}

/**
 * Answers each item by itself: one that cannot be sent is answered here, and one that the server cannot read does not fail the
 * others of its batch.
 */
export async function singly<Item extends { key: string; owner?: string }, Out>(
  items: readonly Item[],
  failed: (error: unknown) => Out,
  call: (items: readonly Item[]) => Promise<Out[]>,
): Promise<Out[]> {
  const refused = items.map(refusal)
  const sendable = refused.some((error) => error !== undefined) ? items.filter((_, i) => !refused[i]) : items
  const answers = sendable.length > 0 ? await callOrSplit(sendable, failed, call) : []
  let next = 0
  return items.length === sendable.length
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

export function claimsJson(claims: readonly Claim[]): string {
  return sqlJson(
    claims.map(({ key, owner, weight, capacity, ttlMs, value, queueMs, announce, steal }) => {
      return { key, owner, weight, capacity, ttl: ttlMs, value, queue: queueMs, announce, steal }
    }),
  )
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

/** How many tokens every grant has: leasehold_token. */
export const RESERVED_TOKENS = 32

export function answerOf(answer: AcquireAnswer, { key, owner, tokens }: Claim): Answer {
  if (answer[0] === 1) {
    const reserved = tokens === undefined ? undefined : Math.min(tokens, RESERVED_TOKENS)
    return { granted: true, owner, token: BigInt(answer[1]), ttlMs: answer[2], tokens: reserved }
  }
  if (answer[0] === 2) return unknownAnswer(stuck(key))
  const [, ahead, holder, ttlMs, token, value, last] = answer
  const newest = last === null || last === undefined ? undefined : BigInt(last)
  if (typeof holder !== 'string') return { granted: false, ahead, newest }
  const blocker = { owner: holder, ttlMs, token: BigInt(token), value: value ?? undefined }
  return { granted: false, ahead, newest, blocker }
}

export function leasesJson(leases: readonly LeaseId[]): string {
  return sqlJson(leases.map(({ key, owner, token }) => ({ key, owner, token: token?.toString() })))
}

export function renewalsJson(renewals: readonly Renewal[]): string {
  return sqlJson(
    renewals.map(({ key, owner, token, ttlMs, value }) => ({
      key,
      owner,
      token: token?.toString(),
      ttl: ttlMs,
      value,
    })),
  )
}

/** See leasehold_renew. */
export function renewedOf(answer: number | undefined, { ttlMs }: Renewal): Renewed {
  return answer === 1 ? { outcome: 'ours', ttlMs } : { outcome: 'gone' }
}

/** See leasehold_renew_entries: the number of an entry, from 1, and its state. */
export type EntryAnswer = [n: number, state: EntryState]

/** Arguments of leasehold_renew_entries, and where each of its entries stands in the batch. */
interface EntryCall {
  args: string
  places: number[]
}

/**
 * One call for entries of one ttl, which is one for all that the core renews; an owner that occurs twice goes into a second call,
 * since the server knows an entry of a call by its owner.
 */
export function entryCalls(entries: readonly Renewal[]): EntryCall[] {
  const calls: { ttlMs: number; owners: Map<string, string>; places: number[] }[] = []
  for (const [place, { key, owner, ttlMs }] of entries.entries()) {
    let call = calls.find((known) => known.ttlMs === ttlMs && !known.owners.has(owner))
    if (!call) calls.push((call = { ttlMs, owners: new Map(), places: [] }))
    call.owners.set(owner, key)
    call.places.push(place)
  }
  return calls.map(({ ttlMs, owners, places }) => {
    const keys = [...owners.values()]
    // A crowd that waits for one name sends the name once.
    const sent = keys.every((key) => key === keys[0]) ? keys.slice(0, 1) : keys
    return { args: `${sqlTextArray(sent)}, ${sqlTextArray([...owners.keys()])}, ${sqlNumber(ttlMs)}`, places }
  })
}

/** See leasehold_entry_state. */
type EntryState = 0 | 1 | [newest: string | null, blockedMs: number | null, ahead: 0] | [token: string, ttlMs: number]

export function entryOf(state: EntryState): Renewed {
  if (state === 0) return { outcome: 'gone' }
  if (state === 1) return { outcome: 'waiting', ahead: 1 }
  if (state.length === 2) return { outcome: 'granted', token: BigInt(state[0]), ttlMs: state[1] }
  const [newest, blockedMs] = state
  return {
    outcome: 'waiting',
    ahead: 0,
    newest: newest === null ? undefined : BigInt(newest),
    blockedMs: blockedMs ?? undefined,
  }
}

export type PostgresHolderRow = [string, string, number, number, string, number, number, string | null, number]

export function holderOf([
  key,
  owner,
  weight,
  capacity,
  token,
  ttlMs,
  heldMs,
  value,
  waiting,
]: PostgresHolderRow): HolderView {
  return { key, owner, weight, capacity, token: BigInt(token), ttlMs, heldMs, value: value ?? undefined, waiting }
}

export type PostgresWaiterRow = [string, string, number, number, number, string | null]

export function waiterOf([key, owner, weight, capacity, waitedMs, value]: PostgresWaiterRow): WaiterView {
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

// Arguments, as constants of exactly the type that the functions of the schema declare. A function of the same name that fits
// the arguments better, made by a role that may create in the schema, would otherwise be called instead.

type Maybe<T> = T | null | undefined

export function sqlText(value: Maybe<string>): string {
  return `${value === null || value === undefined ? 'NULL' : constant(value)}::pg_catalog.text`
}

export function sqlInteger(value: number): string {
  return `${value}::pg_catalog.int4`
}

export function sqlBigint(value: Maybe<bigint>): string {
  return `${value ?? 'NULL'}::pg_catalog.int8`
}

export function sqlNumber(value: Maybe<number>): string {
  return `${value ?? 'NULL'}::pg_catalog.float8`
}

export function sqlBoolean(value: boolean): string {
  return String(value)
}

/** Characters beyond ASCII are escaped inside the JSON, and parsed by it. */
export function sqlJson(value: unknown): string {
  return `${constant(ascii(JSON.stringify(value)))}::pg_catalog.json`
}

function sqlTextArray(values: readonly string[]): string {
  const elements = values.map((value) => `"${value.replace(/["\\]/g, '\\$&')}"`)
  return `${constant(`{${elements.join(',')}}`)}::pg_catalog.text[]`
}

/** A string constant of plain ASCII, which no setting and no encoding of either side can misread. */
function constant(value: string): string {
  return `E'${ascii(value.replaceAll('\\', '\\\\').replaceAll("'", "''"))}'`
}

function ascii(value: string): string {
  return value.replace(/[\u0080-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
}
