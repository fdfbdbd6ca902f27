import { UnsupportedError } from '../../errors.js'
import type { World } from '../../kit/world.js'
import type { HolderView, WaiterView } from '../../store.js'
import { type Book, type Holding, isShared } from './book.js'
import { type Ids, type LockId, showId } from './ids.js'
import type { Queue } from './queue.js'
import type { Sessions } from './sessions.js'
import * as sql from './sql/embedded.js'
import { filled, isInternal } from './statements.js'
import { type Question, type Report, Talk } from './talk.js'
import { holderView, lockRow, type LockRow, strangerView, type Told, waiterView, waitingStrangerView } from './views.js'

const LOCKS = filled(sql.locks, {})

/** Who holds what and who waits, in this process and all others. */
export class Monitor {
  readonly #world: World
  readonly #ids: Ids
  readonly #book: Book
  readonly #queue: Queue
  readonly #sessions: Sessions
  readonly #revokeHere: (id: LockId) => Promise<Holding[]>
  readonly #talk: Talk

  constructor(
    world: World,
    ids: Ids,
    book: Book,
    queue: Queue,
    sessions: Sessions,
    revokeHere: (id: LockId) => Promise<Holding[]>,
  ) {
    this.#world = world
    this.#ids = ids
    this.#book = book
    this.#queue = queue
    this.#sessions = sessions
    this.#revokeHere = revokeHere
    this.#talk = new Talk(world, sessions, (question) => this.#answer(question))
  }

  hear(channel: string, payload: string): void {
    this.#talk.hear(channel, payload)
  }

  async holders(prefix: string): Promise<HolderView[]> {
    const rows = (await this.#locks(null)).filter((row) => !isInternal(row.id))
    const told = await this.#who({ ask: 'who', prefix }, rows)
    const named = told.holders.map((each) => holderView(each, find(rows, each), waitingFor(rows, each.id)))
    const strangers = rows.flatMap((row) => {
      if (!row.granted || told.pids.has(row.pid)) return []
      const known = this.#ids.keyOf(row.id.text)
      // Hashes cannot be turned back: whoever looks at everything sees the number.
      const key = known ?? (prefix === '' || prefix === 'lock:' ? `lock:#${showId(row.id)}` : undefined)
      return key?.startsWith(prefix) ? [strangerView(key, row, waitingFor(rows, row.id.text))] : []
    })
    return [...named, ...strangers].sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    const id = this.#ids.of(key)
    const rows = await this.#locks(id)
    const told = await this.#who({ ask: 'who', id: id.text }, rows)
    const queue = rows.filter((row) => !row.granted)
    const strangers = rows.filter((row) => row.granted && !told.pids.has(row.pid))
    return {
      holders: [
        ...told.holders.map((each) => holderView(each, find(rows, each), queue.length)),
        ...strangers.map((row) => strangerView(key, row, queue.length)),
      ],
      waiters: queue.flatMap((row) => {
        const behind = told.waiters.filter((each) => each.pid === row.pid)
        return behind.length > 0 ? behind.map((each) => waiterView(each, row)) : [waitingStrangerView(key, row)]
      }),
    }
  }

  /** A session lock can only be released by its own session, so its process is asked to. */
  async revoke(key: string): Promise<HolderView[]> {
    const id = this.#ids.of(key)
    const rows = (await this.#locks(id)).filter((row) => row.granted)
    const foreign = rows.filter((row) => !row.ours)
    if (foreign.length > 0) {
      throw new UnsupportedError(
        `"${key}" is held by sessions that are not ours, and could only be ended with all that they do: ${foreign.map((row) => `SELECT pg_terminate_backend(${row.pid})`).join('; ')}`,
      )
    }
    const own = this.#ownPids()
    const others = new Set(rows.map((row) => row.pid).filter((pid) => !own.has(pid)))
    const [cut, reports] = await Promise.all([
      this.#revokeHere(id),
      this.#talk.ask({ ask: 'revoke', id: id.text }, others),
    ])
    const answered = new Set(reports.flatMap((report) => report.pids))
    const silent = rows.filter((row) => others.has(row.pid) && !answered.has(row.pid))
    for (const { pid } of silent) await this.#terminate(pid)
    return [
      ...cut
        .map((holding) => this.#told(holding))
        .concat(reports.flatMap((report) => report.holders))
        .map((each) => holderView(each, find(rows, each), 0)),
      ...silent.map((row) => strangerView(key, row, 0)),
    ]
  }

  /** It does not answer, so it does not renew either: its locks would end within their ttl. */
  async #terminate(pid: number): Promise<void> {
    await this.#sessions.use((session) => session.ask('SELECT pg_terminate_backend($1::int, 1000)', [String(pid)]))
  }

  async #locks(id: LockId | null): Promise<LockRow[]> {
    const values = id ? [id.bits, id.pair ? '2' : '1'] : [null, null]
    return (await this.#sessions.use((session) => session.ask(LOCKS, values))).map(lockRow)
  }

  async #who(question: Question, rows: readonly LockRow[]): Promise<Report & { pids: ReadonlySet<number> }> {
    const own = this.#ownPids()
    const others = new Set(rows.filter((row) => row.ours && !own.has(row.pid)).map((row) => row.pid))
    const reports = [await this.#answer(question), ...(await this.#talk.ask(question, others))]
    const pids = new Set(reports.flatMap((report) => report.pids))
    return {
      pids: pids as never,
      holders: reports.flatMap((report) => report.holders),
      waiters: reports.flatMap((report) => report.waiters),
    }
  }

  #ownPids(): Set<number> {
    return new Set(this.#sessions.open.map((session) => session.pid))
  }

  async #answer(question: Question): Promise<Report> {
    const pids = [...this.#ownPids()]
    if (question.ask === 'revoke') {
      const id = [...this.#book.holdings].find((holding) => holding.id.text === question.id)?.id
      const cut = id ? await this.#revokeHere(id) : []
      return { pids, holders: cut.map((holding) => this.#told(holding)), waiters: [] }
    }
    const wanted = ({ id, key }: { id: LockId; key: string }): boolean =>
      question.id === undefined ? key.startsWith(question.prefix ?? '') : id.text === question.id
    const waiting = this.#queue.waiting.filter(({ id, claim }) => wanted({ id, key: claim.key }))
    return {
      pids,
      holders: [...this.#book.holdings].filter(wanted).map((holding) => this.#told(holding)),
      waiters: waiting.map(({ id, claim, pid, since }) => ({
        id: id.text,
        pid,
        key: claim.key,
        owner: claim.owner,
        shared: isShared(claim),
        forMs: Math.round(this.#world.now() - since),
        value: claim.value,
      })),
    }
  }

  #told({ id, session, key, owner, shared, token, deadline, since, value }: Holding): Told {
    const now = this.#world.now()
    return {
      id: id.text,
      pid: session.pid,
      key,
      owner,
      shared,
      token: String(token),
      ttlMs: Math.max(Math.round(deadline - now), 0),
      forMs: Math.round(now - since),
      value,
    }
  }
}

function find(rows: readonly LockRow[], told: Told): LockRow | undefined {
  return rows.find((row) => row.pid === told.pid && row.id.text === told.id && row.granted)
}

function waitingFor(rows: readonly LockRow[], id: string): number {
  return rows.filter((row) => row.id.text === id && !row.granted).length
}
