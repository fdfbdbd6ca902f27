import type {
  Admission,
  Done,
  NodeRecord,
  NodeRelease,
  NodeReleased,
  NodeRenewal,
  NodeRenewed,
  NodeView,
  ObservableNode,
  Page,
  Question,
  Raise,
  Reply,
  Revoked,
  Standing,
  Vote,
  Voted,
  VoteQuestion,
  Votes,
} from './node.js'
import { FORMAT, RECORD } from './keys.js'
import type { Link } from './link.js'
import { isAttempt } from './register.js'
import type { Script } from '../../clients/redis/script.js'
import { type Scripts, scripts as usualScripts } from './scripts.js'

/**
 * How many names or readers one page of a listing looks at. A name costs a server about six microseconds; a page may keep it
 * from everybody else for a millisecond or two, and never for more than five.
 */
const PAGE = '200'

/** A node that is a real server: every question is one script call. */
export class LuaNode implements ObservableNode {
  readonly name: string
  readonly #link: Link
  readonly #nodes: string
  readonly #maxTtlMs: string
  readonly #scripts: Scripts

  constructor(link: Link, options: { nodes: number; maxTtlMs: number; scripts?: Scripts }) {
    this.name = link.name
    this.#link = link
    this.#nodes = String(options.nodes)
    this.#maxTtlMs = String(options.maxTtlMs)
    this.#scripts = options.scripts ?? usualScripts
  }

  vote({ run, items, token, aloud }: VoteQuestion, done: Done<Votes>): void {
    const args = [`${run} ${this.#nodes} ${FORMAT}`, this.#maxTtlMs, String(token), flag(aloud), ...votesAsText(items)]
    this.#ask(this.#scripts.vote, items, args, done, (answer) => {
      const standing = answer[0] as Standing
      if (standing !== 'votes') return { standing, counter: 0, micros: 0, items: [] }
      const counter = Number(answer[1])
      const micros = Number(answer[2])
      const each = Number(answer[3]) === 1 ? 'raised' : 'held'
      return {
        standing,
        counter,
        micros,
        items: answer.length === 4 ? all<Voted>(items.length, each) : answer.slice(4).map(votedOf),
      }
    })
  }

  raise(items: readonly Raise[], done: Done<readonly (boolean | Error)[]>): void {
    const args: string[] = []
    for (const { owner, token, announce, value } of items) {
      args.push(owner, String(token), value === undefined ? flag(announce) : flag(announce) + value)
    }
    this.#ask(this.#scripts.raise, items, args, done, (answers) => yesOrNo(answers, items.length))
  }

  renew({ run, items }: Question<NodeRenewal>, done: Done<Reply<NodeRenewed>>): void {
    const args = [run, this.#nodes]
    for (const { owner, ttlMs, token, version, value } of items) {
      args.push(owner, ms(ttlMs), String(token), String(version), value ?? '')
    }
    this.#ask(this.#scripts.renew, items, args, done, ([standing, ...answers]) => ({
      standing: standing as Standing,
      items: answers.map((answer) => errorOf(answer) ?? (renewed[Number(answer)] as NodeRenewed)),
    }))
  }

  release(items: readonly NodeRelease[], done: Done<readonly (NodeReleased | Error)[]>): void {
    const decode = (answers: unknown[]): (NodeReleased | Error)[] =>
      answers.length === 0 ? all(items.length, 0) : answers.map(releasedOf)
    this.#ask(this.#scripts.release, items, releasesAsText(items), done, decode, true)
  }

  look({ id, known }: { id: string; known: boolean }, done: Done<NodeRecord>): void {
    this.#ask(this.#scripts.look, [], [id, flag(known), FORMAT], done, (answer) => {
      const [run, recordId, state, age, counter, longest, nodes, manifest, format] = answer.map(String) as [
        string,
        ...string[],
      ]
      return {
        run,
        id: recordId as string,
        state: state as NodeRecord['state'],
        ageMs: Number(age),
        counter: Number(counter),
        longestMs: Number(longest),
        nodes: Number(nodes),
        manifest: manifest as string,
        format: format as string,
      }
    })
  }

  admit(admission: Admission, done: Done<boolean>): void {
    const args = [admission.id, admission.as, this.#nodes, FORMAT]
    if (admission.as === 'founder') args.push(admission.manifest)
    if (admission.as === 'returner') args.push(String(admission.counter), ms(admission.longestMs))
    this.#link.run(this.#scripts.admit, [RECORD], args, false, (answer) =>
      done(answer instanceof Error ? answer : Number(answer) === 1),
    )
  }

  list(prefix: string, from: string | undefined, done: Done<Page>): void {
    // Names may hold anything, also what is special in a pattern.
    const pattern = `:${prefix.replace(/[*?[\]\\^-]/g, String.raw`\$&`)}*`
    this.#ask(this.#scripts.list, [], [from ?? '0', pattern, PAGE], done, pageOf)
  }

  inspect(key: string, from: string | undefined, done: Done<Page>): void {
    this.#ask(this.#scripts.inspect, [{ key }], [from ?? '0', PAGE], done, pageOf)
  }

  revoke(key: string, done: Done<Revoked>): void {
    this.#ask(this.#scripts.revoke, [{ key }], [], done, ([shared, ...owners]) => ({
      shared: Number(shared) === 1,
      owners: owners.map(String),
    }))
  }

  time(done: Done<number>): void {
    this.#ask(this.#scripts.time, [], [], done, ([micros]) => Number(micros) / 1_000)
  }

  #ask<T>(
    script: Script,
    items: readonly { key: string }[],
    args: string[],
    done: Done<T>,
    decode: (answer: unknown[]) => T,
    tidying = false,
  ): void {
    this.#link.run(script, keysOf(items), args, tidying, (answer) =>
      done(answer instanceof Error ? answer : decode(answer as unknown[])),
    )
  }
}

/** What all nodes are asked alike is put into words once: the last is remembered. */
function onceFor<I>(put: (items: readonly I[]) => string[]): (items: readonly I[]) => string[] {
  let last: readonly I[] | undefined
  let words: string[] = []
  return (items) => {
    if (items !== last) {
      words = put(items)
      last = items
    }
    return words
  }
}

const keysOf = onceFor<{ key: string }>((items) => {
  const keys = [RECORD]
  for (const { key } of items) keys.push(key)
  return keys
})

const votesAsText = onceFor<Vote>((items) => {
  const words: string[] = []
  for (const { owner, ttlMs, shared, steal, announce, value } of items) {
    let terms = ms(ttlMs)
    if (shared) terms += ' read'
    if (steal) terms += ' steal'
    if (announce || value !== undefined) terms += `=${flag(announce)}${value ?? ''}`
    words.push(owner, terms)
  }
  return words
})

const releasesAsText = onceFor<NodeRelease>((items) => {
  let quiets = ''
  for (const { quiet } of items) quiets += flag(quiet)
  const words = [quiets]
  for (const { owner } of items) words.push(owner)
  return words
})

/** The usual answer, and as short as it can be: for a hundred items on five servers there is much to read otherwise. */
function all<T>(size: number, answer: T): T[] {
  return new Array<T>(size).fill(answer)
}

function yesOrNo(answers: readonly unknown[], size: number): (boolean | Error)[] {
  if (answers.length === 0) return all(size, true)
  return answers.map((answer) => errorOf(answer) ?? Number(answer) === 1)
}

const renewed: Record<number, NodeRenewed> = { 0: 'absent', 1: 'ours', 3: 'taken' }

/** Redis takes whole milliseconds. Down, and never to nothing: nobody may be granted more than what was asked for. */
function ms(duration: number): string {
  return String(Math.max(Math.floor(duration), 1))
}

function flag(yes: boolean): string {
  return yes ? '1' : '0'
}

/** `{ 2, message }` is an item that failed by itself. */
function errorOf(answer: unknown): Error | undefined {
  return Array.isArray(answer) && Number(answer[0]) === 2 ? new Error(String(answer[1])) : undefined
}

function releasedOf(answer: unknown): NodeReleased | Error {
  return errorOf(answer) ?? (Number(answer) === 0 ? 'gone' : Number(answer) - 1)
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

/** `{ cursor, now, rows, crowded }` of list.lua and inspect.lua. */
function pageOf([cursor, now, rows, crowded]: unknown[]): Page {
  const flat = rows as unknown[]
  const views: NodeView[] = []
  for (let i = 0; i < flat.length; i += 5) {
    const [key, owner, shared, ttlMs, entry] = flat.slice(i, i + 5).map(String) as [
      string,
      string,
      string,
      string,
      string,
    ]
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
  // Of another owner, or of nobody: it means nothing. Lua counts bytes.
  const isTheirs = head !== '' && text.endsWith(owner) && Buffer.byteLength(value) === Number(length)
  if (!isTheirs) return { token: undefined, version: 0, heldMs: undefined, value: undefined }
  const heldMs = Math.max(now - Number(since), 0)
  return { token: BigInt(token), version: Number(version), heldMs, value: value === '' ? undefined : value }
}

/** Null is what a script says for what it does not know. */
function optional<T>(reply: unknown, decode: (text: string) => T): T | undefined {
  return reply === null || reply === undefined ? undefined : decode(String(reply))
}
