import type { World } from '../../kit/world.js'
import type { Session } from './session.js'
import type { Sessions } from './sessions.js'
import { CHANNEL } from './setup.js'
import type { Told } from './views.js'

/** Asked of every process that uses this store on this database. */
export type Question = { ask: 'who'; prefix?: string; id?: string } | { ask: 'revoke'; id: string }

/** What one process says about itself. */
export interface Report {
  /** Its backends: of these everything has been told. */
  pids: number[]
  holders: Told[]
  waiters: Told[]
}

interface Letter {
  /** Of the question. */
  n: string
  to: string
  question: Question
}

interface Reply extends Report {
  n: string
  /** More parts of the same report are on their way. */
  more: boolean
}

/** A process that is alive answers within milliseconds; one that is not loses its sessions within their ttl. */
const PATIENCE_MS = 1_000

/** PostgreSQL carries messages of less than 8,000 bytes. */
const LARGEST = 7_500

/**
 * PostgreSQL knows who holds which number, and only the holder knows what it stands for. So whoever wants to look asks,
 * by NOTIFY: nothing is written anywhere while nobody looks.
 */
export class Talk {
  readonly #world: World
  readonly #sessions: Sessions
  readonly #answer: (question: Question) => Promise<Report>
  readonly #channel: string
  readonly #listening = new WeakSet<Session>()
  readonly #asking = new Map<string, (reply: Reply) => void>()
  /** Every session of a process hears the same question. */
  readonly #heard = new Set<string>()
  #questions = 0

  constructor(world: World, sessions: Sessions, answer: (question: Question) => Promise<Report>) {
    this.#world = world
    this.#channel = `leasehold_${Buffer.from(world.bytes()).toString('hex', 0, 8)}`
    this.#sessions = sessions
    this.#answer = answer
  }

  hear(channel: string, payload: string): void {
    try {
      if (channel === this.#channel) {
        const reply = JSON.parse(payload) as Reply
        this.#asking.get(reply.n)?.(reply)
      } else if (channel === CHANNEL) {
        const letter = JSON.parse(payload) as Letter
        if (letter.to !== this.#channel && this.#isNew(letter.n)) void this.#reply(letter).catch(() => {})
      }
    } catch {
      // Not written by us.
    }
  }

  /** Reports of those to whom these backends belong, as far as they answer. */
  ask(question: Question, pids: ReadonlySet<number>): Promise<Report[]> {
    return pids.size === 0 ? Promise.resolve([]) : this.#sessions.use((session) => this.#askOn(session, question, pids))
  }

  async #askOn(session: Session, question: Question, pids: ReadonlySet<number>): Promise<Report[]> {
    const n = `${this.#channel}/${++this.#questions}`
    const reports: Report[] = []
    const missing = new Set(pids)
    session.awaited++
    try {
      if (!this.#listening.has(session)) {
        await session.ask(`LISTEN ${this.#channel}`)
        this.#listening.add(session)
      }
      const all = new Promise<void>((resolve) => {
        this.#asking.set(n, (reply) => {
          reports.push(reply)
          if (!reply.more) for (const pid of reply.pids) missing.delete(pid)
          if (missing.size === 0) resolve()
        })
        this.#world.after(PATIENCE_MS, resolve, true)
      })
      const letter: Letter = { n, to: this.#channel, question }
      await session.ask('SELECT pg_notify($1, $2)', [CHANNEL, JSON.stringify(letter)])
      await all
      return reports
    } finally {
      session.awaited--
      this.#asking.delete(n)
    }
  }

  async #reply({ n, to, question }: Letter): Promise<void> {
    const report = await this.#answer(question)
    const parts = inParts(n, report)
    await this.#sessions.use((session) =>
      session.ask('SELECT pg_notify($1, part) FROM json_array_elements_text($2::json) AS part', [
        to,
        JSON.stringify(parts),
      ]),
    )
  }

  #isNew(n: string): boolean {
    if (this.#heard.has(n)) return false
    if (this.#heard.size >= 1_000) this.#heard.clear()
    this.#heard.add(n)
    return true
  }
}

/** As many messages as it takes. The last one says so. */
function inParts(n: string, { pids, holders, waiters }: Report): string[] {
  const parts: Reply[] = [{ n, more: false, pids, holders: [], waiters: [] }]
  let size = JSON.stringify(parts[0]).length
  const put = (told: Told, list: 'holders' | 'waiters'): void => {
    const bytes = Buffer.byteLength(JSON.stringify(told)) + 1
    if (size + bytes > LARGEST) {
      parts.unshift({ n, more: true, pids: [], holders: [], waiters: [] })
      size = JSON.stringify(parts[0]).length
    }
    size += bytes
    parts[0]?.[list].push(told)
  }
  for (const [list, all] of Object.entries({ holders, waiters }) as ['holders' | 'waiters', Told[]][]) {
    for (const told of all) put(small(told), list)
  }
  // The one that says «no more» was made first and must arrive last.
  return parts.map((part) => JSON.stringify(part))
}

/** A value that does not fit is left out rather than the lock. */
function small(told: Told): Told {
  return Buffer.byteLength(JSON.stringify(told)) > LARGEST / 2 ? { ...told, value: undefined } : told
}
