import type { TextRow } from '../../clients/postgres/types.js'
import { UnsupportedError } from '../../errors.js'
import { ALL, type HolderView, type WaiterView } from '../../store.js'
import type { World } from '../../util/world.js'
import { type HeldLocks, type Holding, isShared } from './held-locks.js'
import { type AdvisoryKeys, formatId, idOfRow, type LockId } from './keys.js'
import { type PeerLock, PeerQueries, type PeerQuery, type PeerReport } from './peer-queries.js'
import type { ServerQueue } from './server-queue.js'
import type { AdvisorySessions } from './sessions.js'
import { APPLICATION_TAG } from './setup.js'
import { isInternal, LOCKS } from './statements.js'

/** Lists holders and waiters of this process and all others, and revokes their locks. */
export class AdvisoryInspector {
  readonly #world: World
  readonly #keys: AdvisoryKeys
  readonly #heldLocks: HeldLocks
  readonly #queue: ServerQueue
  readonly #sessions: AdvisorySessions
  readonly #revokeHere: (id: LockId) => Promise<Holding[]>
  readonly #peers: PeerQueries

  constructor(
    world: World,
    keys: AdvisoryKeys,
    heldLocks: HeldLocks,
    queue: ServerQueue,
    sessions: AdvisorySessions,
    options: { timeoutMs: number; revokeHere: (id: LockId) => Promise<Holding[]> },
  ) {
    this.#world = world
    this.#keys = keys
    this.#heldLocks = heldLocks
    this.#queue = queue
    this.#sessions = sessions
    this.#revokeHere = options.revokeHere
    this.#peers = new PeerQueries(world, sessions, options.timeoutMs, (query) => this.#answer(query))
  }

  receive(channel: string, payload: string): void {
    this.#peers.receive(channel, payload)
  }

  async holders(prefix: string): Promise<HolderView[]> {
    const rows = (await this.#locks(null)).filter((row) => !isInternal(row.id))
    const known = await this.#reportOfAll({ ask: 'who', prefix }, rows)
    const named = known.holders.map((each) => holderView(each, rowOf(rows, each), waitingFor(rows, each.id)))
    const unnamed = rows.flatMap((row) => {
      if (!row.granted || known.reported.has(row.pid)) return []
      const name = this.#keys.keyOf(row.id.text)
      // A hash cannot be turned back, so a listing of everything shows the number.
      const key = name ?? (prefix === '' || prefix === 'lock:' ? `lock:#${formatId(row.id)}` : undefined)
      return key?.startsWith(prefix) ? [unnamedHolderView(key, row, waitingFor(rows, row.id.text))] : []
    })
    return [...named, ...unnamed].sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
  }

  async inspect(key: string): Promise<{ holders: HolderView[]; waiters: WaiterView[] }> {
    const id = this.#keys.idOf(key)
    const rows = await this.#locks(id)
    const known = await this.#reportOfAll({ ask: 'who', id: id.text }, rows)
    const queue = rows.filter((row) => !row.granted)
    const unnamed = rows.filter((row) => row.granted && !known.reported.has(row.pid))
    return {
      holders: [
        ...known.holders.map((each) => holderView(each, rowOf(rows, each), queue.length)),
        ...unnamed.map((row) => unnamedHolderView(key, row, queue.length)),
      ],
      waiters: queue.flatMap((row) => {
        const waiters = known.waiters.filter((each) => each.pid === row.pid)
        return waiters.length > 0 ? waiters.map((each) => waiterView(each, row)) : [unnamedWaiterView(key, row)]
      }),
    }
  }

  /** A session lock can only be released by its own session, so its process is asked to. */
  async revoke(key: string): Promise<HolderView[]> {
    const id = this.#keys.idOf(key)
    const rows = (await this.#locks(id)).filter((row) => row.granted)
    const foreign = rows.filter((row) => !row.ours)
    if (foreign.length > 0) {
      throw new UnsupportedError(
        `"${key}" is held by sessions that are not ours, and could only be ended with all that they do: ${foreign.map((row) => `SELECT pg_terminate_backend(${row.pid})`).join('; ')}`,
      )
    }
    const own = this.#ownPids()
    const others = new Set(rows.map((row) => row.pid).filter((pid) => !own.has(pid)))
    const [removed, reports] = await Promise.all([
      this.#revokeHere(id),
      this.#peers.ask({ ask: 'revoke', id: id.text }, others),
    ])
    const answered = new Set(reports.flatMap((report) => report.pids))
    const silent = rows.filter((row) => others.has(row.pid) && !answered.has(row.pid))
    for (const { pid } of silent) await this.#terminate(pid)
    return [
      ...removed
        .map((holding) => this.#peerLock(holding))
        .concat(reports.flatMap((report) => report.holders))
        .map((each) => holderView(each, rowOf(rows, each), 0)),
      ...silent.map((row) => unnamedHolderView(key, row, 0)),
    ]
  }

  /** Ends the session of a process that does not answer. It does not renew either: its locks would end within their ttl. */
  async #terminate(pid: number): Promise<void> {
    await this.#sessions.use((session) => session.query('SELECT pg_terminate_backend($1::int, 1000)', [String(pid)]))
  }

  async #locks(id: LockId | null): Promise<LockRow[]> {
    const values = id ? [id.bits, id.pair ? '2' : '1'] : [null, null]
    return (await this.#sessions.use((session) => session.query(LOCKS, values))).map(lockRow)
  }

  /** What this process and the owners of the other backends in these rows know. `reported`: backends it covers. */
  async #reportOfAll(
    query: PeerQuery,
    rows: readonly LockRow[],
  ): Promise<Omit<PeerReport, 'pids'> & { reported: ReadonlySet<number> }> {
    const own = this.#ownPids()
    const others = new Set(rows.filter((row) => row.ours && !own.has(row.pid)).map((row) => row.pid))
    const reports = [await this.#answer(query), ...(await this.#peers.ask(query, others))]
    return {
      reported: new Set(reports.flatMap((report) => report.pids)),
      holders: reports.flatMap((report) => report.holders),
      waiters: reports.flatMap((report) => report.waiters),
    }
  }

  #ownPids(): Set<number> {
    return new Set(this.#sessions.open.map((session) => session.pid))
  }

  async #answer(query: PeerQuery): Promise<PeerReport> {
    const pids = [...this.#ownPids()]
    if (query.ask === 'revoke') {
      const id = [...this.#heldLocks.holdings].find((holding) => holding.id.text === query.id)?.id
      const removed = id ? await this.#revokeHere(id) : []
      return { pids, holders: removed.map((holding) => this.#peerLock(holding)), waiters: [] }
    }
    const matches = ({ id, key }: { id: LockId; key: string }): boolean =>
      query.id === undefined ? key.startsWith(query.prefix ?? '') : id.text === query.id
    const waiting = this.#queue.waiting.filter(({ id, claim }) => matches({ id, key: claim.key }))
    return {
      pids,
      holders: [...this.#heldLocks.holdings].filter(matches).map((holding) => this.#peerLock(holding)),
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

  #peerLock({ id, session, key, owner, shared, token, deadline, since, value }: Holding): PeerLock {
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

/** One advisory lock that a backend holds or waits for, as the server sees it. */
interface LockRow {
  pid: number
  id: LockId
  shared: boolean
  granted: boolean
  waitedMs: number | undefined
  /** A session of this library, which can be asked which key the number stands for. */
  ours: boolean
  detail: Record<string, string | number>
}

function lockRow(row: TextRow): LockRow {
  const [pid, space, bits, shared, granted, waitedMs, blockedBy, application, user, address, state, transactionMs] = row
  const ours = application?.endsWith(APPLICATION_TAG) === true
  const detail: Record<string, string | number> = { pid: Number(pid) }
  if (application) detail['application'] = application
  if (user) detail['user'] = user
  if (address) detail['address'] = address
  if (state) detail['state'] = state
  if (transactionMs && !ours) detail['transactionMs'] = Math.round(Number(transactionMs))
  if (blockedBy) detail['blockedBy'] = blockedBy
  return {
    pid: Number(pid),
    id: idOfRow(bits, space === '2'),
    shared: shared === 't',
    granted: granted === 't',
    waitedMs: waitedMs ? Number(waitedMs) : undefined,
    ours,
    detail,
  }
}

function rowOf(rows: readonly LockRow[], lock: PeerLock): LockRow | undefined {
  return rows.find((row) => row.pid === lock.pid && row.id.text === lock.id && row.granted)
}

function waitingFor(rows: readonly LockRow[], id: string): number {
  return rows.filter((row) => row.id.text === id && !row.granted).length
}

function holderView(lock: PeerLock, row: LockRow | undefined, waiting: number): HolderView {
  return {
    key: lock.key,
    owner: lock.owner,
    weight: lock.shared ? 1 : ALL,
    capacity: ALL,
    token: lock.token === undefined ? undefined : BigInt(lock.token),
    ttlMs: lock.ttlMs,
    heldMs: lock.forMs,
    value: lock.value,
    waiting,
    detail: row?.detail ?? (lock.pid === undefined ? undefined : { pid: lock.pid }),
  }
}

/** A holder that does not use this library, or whose process does not answer. */
function unnamedHolderView(key: string, row: LockRow, waiting: number): HolderView {
  const { shared, ours, detail } = row
  return { key, owner: ownerOf(row), weight: shared ? 1 : ALL, capacity: ALL, foreign: !ours, waiting, detail }
}

function waiterView(lock: PeerLock, row: LockRow): WaiterView {
  const { key, owner, shared, forMs, value } = lock
  const waitedMs = row.waitedMs ?? forMs
  return { key, owner, weight: shared ? 1 : ALL, capacity: ALL, waitedMs, value, detail: row.detail }
}

function unnamedWaiterView(key: string, row: LockRow): WaiterView {
  const { shared, waitedMs, detail } = row
  return { key, owner: ownerOf(row), weight: shared ? 1 : ALL, capacity: ALL, waitedMs, detail }
}

function ownerOf({ detail }: LockRow): string {
  const { application, address, pid } = detail
  return `${application || 'session'} pid ${pid}${address ? ` at ${address}` : ''}`
}
