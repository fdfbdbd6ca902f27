import type { World } from '../../util/world.js'
import type { AdvisorySession } from './session.js'
import type { AdvisorySessions } from './sessions.js'
import { QUERY_CHANNEL } from './setup.js'

/** Asked of every process that uses this store on this database. */
export type PeerQuery = { ask: 'who'; prefix?: string; id?: string } | { ask: 'revoke'; id: string }

/** What one process answers about itself. */
export interface PeerReport {
  /** The backends of its sessions: the report covers everything on them. */
  pids: number[]
  holders: PeerLock[]
  waiters: PeerLock[]
}

/** A lock that a process holds or waits for. */
export interface PeerLock {
  /** LockId.text */
  id: string
  pid: number | undefined
  key: string
  owner: string
  shared: boolean
  token?: string
  ttlMs?: number
  forMs: number
  value?: string | undefined
}

interface PeerMessage {
  /** Identifies the query. */
  n: string
  /** The channel for the replies. */
  to: string
  query: PeerQuery
}

interface PeerReply extends PeerReport {
  n: string
  /** More parts of the same report are on their way. */
  more: boolean
}

/** LIST_REPLY_MS: how long other processes have to reply to a listing, which then shows their locks without names. */
const LIST_REPLY_MS = 1_000

/**
 * REVOKE_REPLY_SHARE: how long they have to release a lock, as a share of the time limit of a call. A process that does not reply
 * loses its session with all locks on it, so one that only stood still for a moment must be waited for; and there has to
 * be time left to end the session.
 */
const REVOKE_REPLY_SHARE = 0.4

/** MAX_PAYLOAD: bytes of one message at most. PostgreSQL carries payloads of less than 8,000 bytes. */
const MAX_PAYLOAD = 7_500

/** MAX_SEEN: how many queries are remembered to answer each of them once. The set must not grow without end. */
const MAX_SEEN = 1_000

/**
 * PostgreSQL knows which session holds which number, and only the holding process knows which key it stands for. So a process
 * that lists locks asks the others by NOTIFY: nothing is written anywhere while nobody lists.
 */
export class PeerQueries {
  readonly #world: World
  readonly #timeoutMs: number
  readonly #sessions: AdvisorySessions
  readonly #answer: (query: PeerQuery) => Promise<PeerReport>
  readonly #replyChannel: string
  readonly #listening = new WeakSet<AdvisorySession>()
  readonly #pending = new Map<string, (reply: PeerReply) => void>()
  /** Every session of a process receives the same query. */
  readonly #seen = new Set<string>()
  #counter = 0

  /** `timeoutMs`: the time limit of a call. */
  constructor(
    world: World,
    sessions: AdvisorySessions,
    timeoutMs: number,
    answer: (query: PeerQuery) => Promise<PeerReport>,
  ) {
    this.#world = world
    this.#timeoutMs = timeoutMs
    this.#replyChannel = `leasehold_${Buffer.from(world.bytes()).toString('hex', 0, 8)}`
    this.#sessions = sessions
    this.#answer = answer
  }

  receive(channel: string, payload: string): void {
    try {
      if (channel === this.#replyChannel) {
        const reply = JSON.parse(payload) as PeerReply
        this.#pending.get(reply.n)?.(reply)
      } else if (channel === QUERY_CHANNEL) {
        const message = JSON.parse(payload) as PeerMessage
        if (message.to !== this.#replyChannel && this.#isNew(message.n)) void this.#reply(message).catch(() => {})
      }
    } catch {
      // Another client may notify on these channels with a payload that is not JSON.
    }
  }

  /** Reports of the processes to which these backends belong, as far as they reply. */
  ask(query: PeerQuery, pids: ReadonlySet<number>): Promise<PeerReport[]> {
    return pids.size === 0 ? Promise.resolve([]) : this.#sessions.use((session) => this.#askOn(session, query, pids))
  }

  async #askOn(session: AdvisorySession, query: PeerQuery, pids: ReadonlySet<number>): Promise<PeerReport[]> {
    const n = `${this.#replyChannel}/${++this.#counter}`
    const reports: PeerReport[] = []
    const missing = new Set(pids)
    session.expectedReplies++
    try {
      if (!this.#listening.has(session)) {
        await session.query(`LISTEN ${this.#replyChannel}`)
        this.#listening.add(session)
      }
      const all = new Promise<void>((resolve) => {
        this.#pending.set(n, (reply) => {
          reports.push(reply)
          if (!reply.more) for (const pid of reply.pids) missing.delete(pid)
          if (missing.size === 0) resolve()
        })
        const replyMs = query.ask === 'revoke' ? this.#timeoutMs * REVOKE_REPLY_SHARE : LIST_REPLY_MS
        this.#world.after(replyMs, resolve, true)
      })
      const message: PeerMessage = { n, to: this.#replyChannel, query }
      await session.query('SELECT pg_notify($1, $2)', [QUERY_CHANNEL, JSON.stringify(message)])
      await all
      return reports
    } finally {
      session.expectedReplies--
      this.#pending.delete(n)
    }
  }

  async #reply({ n, to, query }: PeerMessage): Promise<void> {
    const report = await this.#answer(query)
    const parts = splitReport(n, report)
    await this.#sessions.use((session) =>
      session.query('SELECT pg_notify($1, part) FROM json_array_elements_text($2::json) AS part', [
        to,
        JSON.stringify(parts),
      ]),
    )
  }

  #isNew(n: string): boolean {
    if (this.#seen.has(n)) return false
    if (this.#seen.size >= MAX_SEEN) this.#seen.clear()
    this.#seen.add(n)
    return true
  }
}

/** As many messages as it takes. The last one has `more: false`. */
function splitReport(n: string, { pids, holders, waiters }: PeerReport): string[] {
  const parts: PeerReply[] = [{ n, more: false, pids, holders: [], waiters: [] }]
  let size = JSON.stringify(parts[0]).length
  const put = (lock: PeerLock, list: 'holders' | 'waiters'): void => {
    const bytes = Buffer.byteLength(JSON.stringify(lock)) + 1
    if (size + bytes > MAX_PAYLOAD) {
      parts.unshift({ n, more: true, pids: [], holders: [], waiters: [] })
      size = JSON.stringify(parts[0]).length
    }
    size += bytes
    parts[0]?.[list].push(lock)
  }
  for (const [list, all] of Object.entries({ holders, waiters }) as ['holders' | 'waiters', PeerLock[]][]) {
    for (const lock of all) put(withoutLargeValue(lock), list)
  }
  // Parts are put before the first one, so the one with `more: false` arrives last.
  return parts.map((part) => JSON.stringify(part))
}

/** A value that does not fit is left out rather than the lock. */
function withoutLargeValue(lock: PeerLock): PeerLock {
  return Buffer.byteLength(JSON.stringify(lock)) > MAX_PAYLOAD / 2 ? { ...lock, value: undefined } : lock
}
