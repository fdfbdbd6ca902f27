import { InvalidOptionError } from '../../errors.js'
import { formatDuration } from '../../kit/duration.js'
import { decide } from './admission.js'
import { FORMAT } from './keys.js'
import { type Cluster, blame, count, limit, NodeError, unavailable } from './cluster.js'
import type { Admission, NodeRecord, RedlockNode, Standing } from './node.js'

/** Looks in a row that one caller may wait for: one to see, one to be sure, and again if others decided meanwhile. */
const LOOKS_AT_MOST = 4
/** Nodes in doubt are looked at no more often than this, however many questions find them so. */
const SHORTEST_PAUSE_MS = 50

/** What we last heard of one node, other than that it votes. */
type News = NodeRecord | Error | Exclude<Standing, 'votes'> | 'silent'

/**
 * Knows which nodes there are and which of them may vote, and lets in those that may again. Works only while somebody
 * asks for locks: an idle process leaves the nodes alone.
 */
export class Census {
  /** The server process behind each node; empty until it has told us. */
  readonly runs: string[]
  readonly #cluster: Cluster
  readonly #news: News[]
  #voting = 0
  /** This cluster has voted before our eyes, so a node that is empty now has lost something. */
  #known = false
  #records: (NodeRecord | undefined)[]
  #twins: InvalidOptionError | undefined
  /** Names records that we begin: nobody else's are called the same. */
  readonly #self: string
  #looks = 0
  #looking = false
  #notBefore = Number.NEGATIVE_INFINITY
  #waiting: ((error: Error | undefined) => void)[] = []

  constructor(cluster: Cluster) {
    this.#cluster = cluster
    this.#self = Array.from({ length: 3 }, () => Math.floor(cluster.world.random() * 2 ** 31).toString(36)).join('')
    this.runs = cluster.nodes.map(() => '')
    this.#news = cluster.nodes.map(() => 'silent')
    this.#records = cluster.nodes.map(() => undefined)
  }

  /** Calls back when a majority may vote, or with the reason why not. At once if that is known already. */
  enter(done: (error: Error | undefined) => void): void {
    if (this.#ready || this.#twins) {
      done(this.#twins)
      if (count(this.#voting) < this.runs.length || this.#twins) this.#lookSometime()
      return
    }
    this.#waiting.push(done)
    if (!this.#looking) this.#look(1)
  }

  /** A node said how it stands while it was asked something else. Returns whether it counts. */
  heard(node: number, standing: Standing): boolean {
    const bit = 1 << node
    if (standing === 'votes') {
      this.#voting |= bit
      return true
    }
    const wasVoting = (this.#voting & bit) !== 0
    this.#voting &= ~bit
    if (standing === 'stranger') this.runs[node] = ''
    // A record tells more: for how long it still has to sit out.
    if (wasVoting || standing !== 'sits') this.#news[node] = standing
    this.#lookSometime(wasVoting || standing === 'stranger')
    return false
  }

  /** Why this node cannot be counted now. */
  cause(node: number): Error {
    const { name } = this.#node(node)
    const news = this.#news[node] as News
    if (news instanceof Error) return blame(this.#node(node), news)
    if (typeof news === 'object') return new NodeError(name, this.#complaint(news))
    if (news !== 'silent') return new NodeError(name, reasons[news])
    return silence(this.#node(node), this.#cluster.nodeTimeoutMs)
  }

  get #ready(): boolean {
    return count(this.#voting) >= this.#cluster.majority
  }

  #lookSometime(soon = false): void {
    const now = this.#cluster.world.now()
    if (soon) this.#notBefore = Math.min(this.#notBefore, now + SHORTEST_PAUSE_MS)
    if (!this.#looking && now >= this.#notBefore) this.#look(1)
  }

  /** Asks every node for its record, then lets in whoever may vote. */
  #look(turn: number): void {
    const { nodes, world, nodeTimeoutMs } = this.#cluster
    const before = this.#records
    const now: (NodeRecord | undefined)[] = nodes.map(() => undefined)
    let pending = nodes.length
    const id = `${this.#self}.${this.#looks++}`
    this.#looking = true
    const finish = (): void => {
      pending = 0
      cancel()
      for (const [i, run] of this.runs.entries())
        if (run === '' && typeof this.#news[i] === 'string') this.#news[i] = 'silent'
      this.#records = now
      this.#judge(now, before, turn)
    }
    const cancel = limit(world, nodeTimeoutMs, () => pending > 0 && finish())
    for (const [i, node] of nodes.entries()) {
      node.look({ id: `${id}.${i}`, known: this.#known }, (answer) => {
        if (pending === 0) return
        if (answer instanceof Error) this.#news[i] = answer
        else this.#note(i, (now[i] = answer))
        if (--pending === 0) finish()
      })
    }
  }

  #note(i: number, record: NodeRecord): void {
    this.runs[i] = record.run
    this.#news[i] = record
    if (record.state === 'votes' && record.nodes === this.runs.length && record.format === FORMAT) {
      this.#voting |= 1 << i
      this.#known = true
    } else this.#voting &= ~(1 << i)
    this.#twins = this.#findTwins()
    if (this.#twins || this.#ready) this.#wake(this.#twins)
  }

  #judge(now: readonly (NodeRecord | undefined)[], before: readonly (NodeRecord | undefined)[], turn: number): void {
    // A node of another Redlock, or of another version, is none of ours, whatever it says.
    const isOther = ({ state, nodes, format }: NodeRecord): boolean =>
      format !== FORMAT || (state === 'votes' && nodes !== now.length)
    const ours = now.map((record) => (record && isOther(record) ? undefined : record))
    const { admissions, lookAgain } = this.#twins ? stand : decide(ours, before, this.#cluster)
    this.#admit(admissions, () => {
      const undecided = !this.#ready && admissions.some(Boolean)
      if ((lookAgain || undecided) && turn < LOOKS_AT_MOST) return this.#look(turn + 1)
      this.#looking = false
      this.#notBefore = this.#cluster.world.now() + this.#pause(now)
      if (this.#waiting.length > 0) this.#wake(this.#ready ? undefined : this.#lament())
    })
  }

  #admit(admissions: readonly (Admission | undefined)[], done: () => void): void {
    const { nodes, world, nodeTimeoutMs } = this.#cluster
    let pending = 0
    for (const admission of admissions) if (admission) pending++
    if (pending === 0) return done()
    const finish = (): void => {
      pending = 0
      cancel()
      done()
    }
    const cancel = limit(world, nodeTimeoutMs, () => pending > 0 && finish())
    for (const [i, admission] of admissions.entries()) {
      if (!admission) continue
      ;(nodes[i] as RedlockNode).admit(admission, (answer) => {
        if (pending === 0) return
        if (answer === true) {
          this.#voting |= 1 << i
          this.#known = true
          if (this.#ready) this.#wake(undefined)
        } else if (answer instanceof Error) this.#news[i] = answer
        if (--pending === 0) finish()
      })
    }
  }

  /** When it may be worth looking again: when a node has sat out, or when one may have come back. */
  #pause(records: readonly (NodeRecord | undefined)[]): number {
    const { nodeTimeoutMs } = this.#cluster
    const left = records.map((record) =>
      record && record.state !== 'votes' ? this.#sitOutMs() - record.ageMs : nodeTimeoutMs,
    )
    return Math.max(Math.min(nodeTimeoutMs, ...left), SHORTEST_PAUSE_MS)
  }

  #sitOutMs(): number {
    return Math.max(this.#cluster.maxTtlMs, ...this.#records.map((record) => record?.longestMs ?? 0))
  }

  #complaint(record: NodeRecord): string {
    const size = this.runs.length
    if (record.format !== FORMAT) {
      return `holds data of format ${record.format}, and this version of leasehold reads format ${FORMAT}: run one version at a time`
    }
    if (record.state === 'votes') {
      if (record.nodes !== size) return `belongs to a redlock of ${record.nodes} nodes, and this one has ${size}`
      return 'voted when last asked, and does not answer now'
    }
    const left = formatDuration(Math.ceil(Math.max(this.#sitOutMs() - record.ageMs, 0)))
    if (record.state === 'lost') return `was restarted or emptied and sits out for another ${left}`
    return `is new; it votes when all nodes are seen new together, or in ${left}`
  }

  #lament(): Error {
    const causes = this.runs.map((_, i) => (this.#voting & (1 << i) ? undefined : () => this.cause(i)))
    return unavailable(this.#cluster, causes)
  }

  #findTwins(): InvalidOptionError | undefined {
    const { runs } = this
    for (const [i, run] of runs.entries()) {
      const twin = run === '' ? -1 : runs.indexOf(run, i + 1)
      if (twin < 0) continue
      const names = [this.#node(i).name, this.#node(twin).name]
      return new InvalidOptionError('clients', names, 'independent servers, and two of them are one and the same')
    }
    return undefined
  }

  #wake(error: Error | undefined): void {
    const waiting = this.#waiting
    if (waiting.length === 0) return
    this.#waiting = []
    for (const done of waiting) done(error)
  }

  #node(i: number): RedlockNode {
    return this.#cluster.nodes[i] as RedlockNode
  }
}

const stand = { admissions: [], lookAgain: false }

/** What is said of a node that let its time pass. */
export function silence(node: RedlockNode, nodeTimeoutMs: number): NodeError {
  return new NodeError(node.name, `did not answer within ${formatDuration(nodeTimeoutMs)}`)
}

const reasons: Record<Exclude<Standing, 'votes'>, string> = {
  sits: 'was restarted or emptied and sits out',
  stranger: 'is another server process than before',
  other: 'belongs to a redlock with another number of nodes',
}
