/**
 * Between what the algorithm asks and what the scripts take and return.
 *
 * @module
 */
import { isAttempt, RECORD } from './keys.js'
import type {
  NodePage,
  NodeRecord,
  NodeRelease,
  NodeReleased,
  NodeRenewal,
  NodeRenewed,
  BatchReply,
  NodeView,
  Raise,
  Standing,
  Vote,
  Voted,
  VoteReply,
} from './node.js'

/**
 * Remembers the last result. All nodes are sent the same items, one after the other: without this, each of five nodes would
 * encode them again.
 */
function onceFor<I>(encode: (items: readonly I[]) => string[]): (items: readonly I[]) => string[] {
  let last: readonly I[] | undefined
  let encoded: string[] = []
  return (items) => {
    if (items !== last) {
      encoded = encode(items)
      last = items
    }
    return encoded
  }
}

export const encodeKeys: (items: readonly { key: string }[]) => string[] = onceFor((items) => {
  const keys = [RECORD]
  for (const { key } of items) keys.push(key)
  return keys
})

export const encodeVotes: (items: readonly Vote[]) => string[] = onceFor((items) => {
  const args: string[] = []
  for (const { owner, ttlMs, shared, steal, announce, value } of items) {
    let terms = encodeMs(ttlMs)
    if (shared) terms += ' read'
    if (steal) terms += ' steal'
    if (announce || value !== undefined) terms += `=${encodeFlag(announce)}${value ?? ''}`
    args.push(owner, terms)
  }
  return args
})

export function encodeRaises(items: readonly Raise[]): string[] {
  const args: string[] = []
  for (const { owner, token, announce, value } of items) {
    args.push(owner, String(token), value === undefined ? encodeFlag(announce) : encodeFlag(announce) + value)
  }
  return args
}

export function encodeRenewals(items: readonly NodeRenewal[]): string[] {
  const args: string[] = []
  for (const { owner, ttlMs, token, version, value } of items) {
    args.push(owner, encodeMs(ttlMs), String(token), String(version), value ?? '')
  }
  return args
}

export const encodeReleases: (items: readonly NodeRelease[]) => string[] = onceFor((items) => {
  let quiets = ''
  for (const { quiet } of items) quiets += encodeFlag(quiet)
  const args = [quiets]
  for (const { owner } of items) args.push(owner)
  return args
})

/** Redis takes whole milliseconds. Rounded down, and never to nothing: a lease may not last longer than what was asked for. */
export function encodeMs(duration: number): string {
  return String(Math.max(Math.floor(duration), 1))
}

export function encodeFlag(yes: boolean): string {
  return yes ? '1' : '0'
}

/** Names may contain any character, also those that are special in a pattern of HSCAN. */
export function encodePrefix(prefix: string): string {
  return `:${prefix.replace(/[*?[\]\\^-]/g, String.raw`\$&`)}*`
}

/** A reply without items means the usual answer to all: for a hundred items on five servers there is much to parse otherwise. */
function all<T>(size: number, answer: T): T[] {
  return new Array<T>(size).fill(answer)
}

/** EARLIEST_MICROS: the year 2001, before the first server that could run the script. A smaller number is no time of a server. */
const EARLIEST_MICROS = 1e15

/** `token`: the guess that was sent. */
export function decodeVotes(answer: unknown, size: number, token: number): VoteReply | Error {
  if (!Array.isArray(answer)) {
    const micros = Number(answer)
    // Such as the reply to another command: believed, it would count as a vote.
    if (!(micros > EARLIEST_MICROS)) return new Error('the server answered a vote with something else')
    return { standing: 'votes', counter: token, micros, items: all<Voted>(size, 'raised') }
  }
  const standing = answer[0] as Standing
  if (standing !== 'votes') return { standing, counter: 0, micros: 0, items: [] }
  const usual = Number(answer[3]) === 1 ? 'raised' : 'held'
  return {
    standing,
    counter: Number(answer[1]),
    micros: Number(answer[2]),
    items: answer.length === 4 ? all<Voted>(size, usual) : answer.slice(4).map(votedOf),
  }
}

function votedOf(answer: unknown): Voted | Error {
  if (!Array.isArray(answer)) return Number(answer) === 3 ? 'raised' : 'held'
  const error = errorOf(answer)
  if (error) return error
  const [, owner, ttlMs, token, version, value] = answer
  return {
    owner: String(owner),
    ttlMs: optional(ttlMs, Number),
    token: optional(token, BigInt),
    version: optional(version, Number),
    value: optional(value, String),
    ...(isAttempt(String(owner)) ? {} : { foreign: true }),
  }
}

export function decodeRaises(answers: readonly unknown[], size: number): (boolean | Error)[] {
  if (answers.length === 0) return all(size, true)
  return answers.map((answer) => errorOf(answer) ?? Number(answer) === 1)
}

const RENEWED: Record<number, NodeRenewed> = { 0: 'absent', 1: 'ours', 3: 'taken' }

export function decodeRenewals([standing, ...answers]: unknown[]): BatchReply<NodeRenewed> {
  return {
    standing: standing as Standing,
    items: answers.map((answer) => errorOf(answer) ?? (RENEWED[Number(answer)] as NodeRenewed)),
  }
}

export function decodeReleases(answers: unknown[], size: number): (NodeReleased | Error)[] {
  return answers.length === 0 ? all(size, 0) : answers.map(releasedOf)
}

function releasedOf(answer: unknown): NodeReleased | Error {
  return errorOf(answer) ?? (Number(answer) === 0 ? 'gone' : Number(answer) - 1)
}

/** `{ 2, message }` is an item that failed by itself. */
function errorOf(answer: unknown): Error | undefined {
  return Array.isArray(answer) && Number(answer[0]) === 2 ? new Error(String(answer[1])) : undefined
}

export function decodeRecord(answer: unknown[]): NodeRecord {
  const [run = '', id = '', state, age, counter, longest, nodes, manifest = '', format = ''] = answer.map(String)
  return {
    run,
    id,
    state: state as NodeRecord['state'],
    ageMs: Number(age),
    counter: Number(counter),
    longestMs: Number(longest),
    nodes: Number(nodes),
    manifest,
    format,
  }
}

/** How many parts a row of list.lua and inspect.lua has: key, owner, shared, ttlMs, entry. */
const ROW_PARTS = 5

/** `{ cursor, now, rows, crowded }` of list.lua and inspect.lua. */
export function decodePage([cursor, now, rows, crowded]: unknown[]): NodePage {
  const parts = (rows as unknown[]).map(String)
  const views: NodeView[] = []
  for (let i = 0; i < parts.length; i += ROW_PARTS) {
    const [key = '', owner = '', shared, ttlMs, entry = ''] = parts.slice(i, i + ROW_PARTS)
    views.push({
      key,
      owner,
      shared: shared === '1',
      ttlMs: Number(ttlMs) >= 0 ? Number(ttlMs) : undefined,
      ...entryOf(entry, shared === '1' ? '' : owner, Number(now)),
    })
  }
  const next = String(cursor)
  return { views, crowded: (crowded as unknown[]).map(String), next: next === '0' ? undefined : next }
}

/** `token:since:version:announce:length:value`, and behind it the owner if it is an exclusive lease. */
function entryOf(text: string, owner: string, now: number): Pick<NodeView, 'token' | 'version' | 'heldMs' | 'value'> {
  const [head = '', token = '', since = '', version = '', length = ''] =
    /^(\d+):(\d+):(\d+):[01]:(\d+):/.exec(text) ?? []
  const value = text.slice(head.length, text.length - owner.length)
  // An entry of another owner, or of nobody, means nothing. Lua counts bytes.
  const isTheirs = head !== '' && text.endsWith(owner) && Buffer.byteLength(value) === Number(length)
  if (!isTheirs) return { token: undefined, version: 0, heldMs: undefined, value: undefined }
  const heldMs = Math.max(now - Number(since), 0)
  return { token: BigInt(token), version: Number(version), heldMs, value: value === '' ? undefined : value }
}

/** Null is what a script returns for what it does not know. */
function optional<T>(reply: unknown, decode: (text: string) => T): T | undefined {
  return reply === null || reply === undefined ? undefined : decode(String(reply))
}
