/**
 * Which nodes there are, which of them may vote, and the admission of those that may (again). The reasoning is in
 * `docs/adr/redlock-restart.md`.
 *
 * @module
 */
import { InvalidOptionError } from '../../errors.js'
import { formatDuration } from '../../util/duration.js'
import { type Cluster, count, limit, nodeAt } from './cluster.js'
import { NodeError, nodeFailure, nodeTimeout, unavailable } from './errors.js'
import { FORMAT } from './keys.js'
import type { Admission, NodeRecord, Standing } from './node.js'

type Records = readonly (NodeRecord | undefined)[]

export interface AdmissionDecision {
  admissions: (Admission | undefined)[]
  /** Something could be decided if another reading, begun after this one ended, has the same records. */
  readAgain: boolean
}

/**
 * Decides who may vote. `now` and `before` are two readings of all records, the second begun after the first had ended. What
 * both of them say held at one moment in between, on all nodes at once; one reading alone is spread over time and proves no
 * such thing.
 */
export function decideAdmissions(
  now: Records,
  before: Records,
  rules: { majority: number; maxTtlMs: number },
): AdmissionDecision {
  const size = now.length
  const seen = now.filter((record) => record !== undefined)
  const voters = seen.filter((record) => record.state === 'votes')
  const sitOutMs = Math.max(rules.maxTtlMs, ...seen.map((record) => record.longestMs))
  const hasSatOut = (record: NodeRecord | undefined): boolean =>
    record !== undefined && record.state !== 'votes' && record.ageMs >= sitOutMs
  const isSame = (i: number): boolean => before[i]?.id === now[i]?.id

  const allNew = seen.length === size && seen.every((record) => record.state === 'new')
  // So many voters that every earlier majority has one among them which still knows its token.
  const enoughKnow = voters.length >= size - rules.majority + 1
  // So many lost that no earlier majority can be asked ever again. Tokens then grow by the nodes' clocks.
  const tooManyLost = seen.filter(hasSatOut).length >= rules.majority
  const counter = Math.max(0, ...seen.map((record) => record.counter))

  let readAgain = false
  const admissions = now.map((record, i): Admission | undefined => {
    if (!record || record.state === 'votes') return undefined
    const { id } = record
    if (record.state === 'new') {
      const founded = voters.find((voter) => voter.manifest.split(' ').includes(id))
      if (founded) return { as: 'founder', id, manifest: founded.manifest }
      if (allNew) {
        if (now.every((_, j) => isSame(j))) {
          return { as: 'founder', id, manifest: seen.map((node) => node.id).join(' ') }
        }
        readAgain = true
        return undefined
      }
    }
    if (hasSatOut(record) && (enoughKnow || tooManyLost)) {
      if (isSame(i) && hasSatOut(before[i])) return { as: 'returner', id, counter, longestMs: sitOutMs }
      readAgain = true
      return undefined
    }
    const othersExist = seen.some((other) => other.state !== 'new')
    return record.state === 'new' && othersExist ? { as: 'loser', id } : undefined
  })
  return { admissions, readAgain }
}

const NO_ADMISSIONS: AdmissionDecision = { admissions: [], readAgain: false }

/** MAX_READINGS: readings in a row that one caller may wait for: one, one to be sure, and two if others decided meanwhile. */
const MAX_READINGS = 4
/** MIN_PAUSE_MS: pause between readings while a node does not vote. Without it, every acquisition would read all records. */
const MIN_PAUSE_MS = 50

/** The last answer of a node, other than that it votes. */
type NodeStatus = NodeRecord | Error | Exclude<Standing, 'votes'> | 'silent'

const REASONS: Record<Exclude<Standing, 'votes'>, string> = {
  sits: 'was restarted or emptied and sits out',
  stranger: 'is another server process than before',
  other: 'belongs to a redlock with another number of nodes',
}

/** Works only while locks are asked for: an idle process leaves the nodes alone. */
export class Census {
  /** By node: the `run_id` of its server process; empty until it has been identified. */
  readonly runs: string[]
  readonly #cluster: Cluster
  readonly #statuses: NodeStatus[]
  #voting = 0
  /** This process has seen the cluster vote, so a node that is empty now has lost something. */
  #known = false
  #records: Records
  #duplicates: InvalidOptionError | undefined
  /** Part of the ids of records that this process begins: no other process uses the same. */
  readonly #self: string
  #readings = 0
  #reading = false
  #notBefore = Number.NEGATIVE_INFINITY
  #waiting: ((error: Error | undefined) => void)[] = []
  #afterReading: (() => void)[] = []

  constructor(cluster: Cluster) {
    this.#cluster = cluster
    this.#self = Array.from({ length: 3 }, () => Math.floor(cluster.world.random() * 2 ** 31).toString(36)).join('')
    this.runs = cluster.nodes.map(() => '')
    this.#statuses = cluster.nodes.map(() => 'silent')
    this.#records = cluster.nodes.map(() => undefined)
  }

  /** Calls back when a majority may vote, or with the reason why not. At once if that is known already. */
  enter(done: (error: Error | undefined) => void): void {
    if (this.#ready || this.#duplicates) {
      done(this.#duplicates)
      if (count(this.#voting) < this.runs.length || this.#duplicates) this.#readSometime()
      return
    }
    this.#waiting.push(done)
    if (!this.#reading) this.#read(1)
  }

  /**
   * Calls back when the reading that is under way has ended, at once if there is none, with whether a server process votes that
   * was not among `asked` (as `runs` was then).
   */
  findNewVoter(asked: readonly string[], done: (found: boolean) => void): void {
    const finish = (): void =>
      done(this.runs.some((run, i) => (this.#voting & (1 << i)) !== 0 && run !== '' && run !== asked[i]))
    if (this.#reading) this.#afterReading.push(finish)
    else finish()
  }

  /** A reply to another request carried the node's standing. Returns whether it counts. */
  observe(node: number, standing: Standing): boolean {
    const bit = 1 << node
    if (standing === 'votes') {
      this.#voting |= bit
      return true
    }
    const wasVoting = (this.#voting & bit) !== 0
    this.#voting &= ~bit
    if (standing === 'stranger') this.runs[node] = ''
    // A record is kept instead of `sits`: it tells for how long the node still has to sit out.
    if (wasVoting || standing !== 'sits') this.#statuses[node] = standing
    this.#readSometime(wasVoting || standing === 'stranger')
    return false
  }

  /** Why this node cannot be counted now. */
  cause(i: number): Error {
    const node = nodeAt(this.#cluster, i)
    const status = this.#statuses[i] as NodeStatus
    if (status instanceof Error) return nodeFailure(node, status)
    if (typeof status === 'object') return new NodeError(node.name, this.#explain(status))
    if (status !== 'silent') return new NodeError(node.name, REASONS[status])
    return nodeTimeout(node, this.#cluster.nodeTimeoutMs)
  }

  get #ready(): boolean {
    return count(this.#voting) >= this.#cluster.majority
  }

  #readSometime(soon = false): void {
    const now = this.#cluster.world.now()
    if (soon) this.#notBefore = Math.min(this.#notBefore, now + MIN_PAUSE_MS)
    if (!this.#reading && now >= this.#notBefore) this.#read(1)
  }

  /** Asks every node for its record, then admits those that may vote. */
  #read(turn: number): void {
    const { nodes, world, nodeTimeoutMs } = this.#cluster
    const before = this.#records
    const now: (NodeRecord | undefined)[] = nodes.map(() => undefined)
    let pending = nodes.length
    const id = `${this.#self}.${this.#readings++}`
    this.#reading = true
    const finish = (): void => {
      pending = 0
      cancel()
      for (const [i, run] of this.runs.entries())
        if (run === '' && typeof this.#statuses[i] === 'string') this.#statuses[i] = 'silent'
      this.#records = now
      this.#decide(now, before, turn)
    }
    const cancel = limit(world, nodeTimeoutMs, () => pending > 0 && finish())
    for (const [i, node] of nodes.entries()) {
      node.identify({ id: `${id}.${i}`, known: this.#known }, (answer) => {
        if (pending === 0) return
        if (answer instanceof Error) this.#statuses[i] = answer
        else this.#handleRecord(i, (now[i] = answer))
        if (--pending === 0) finish()
      })
    }
  }

  #handleRecord(i: number, record: NodeRecord): void {
    this.runs[i] = record.run
    this.#statuses[i] = record
    if (record.state === 'votes' && record.nodes === this.runs.length && record.format === FORMAT) {
      this.#voting |= 1 << i
      this.#known = true
    } else this.#voting &= ~(1 << i)
    this.#duplicates = this.#findDuplicates()
    if (this.#duplicates || this.#ready) this.#settleWaiting(this.#duplicates)
  }

  #decide(now: Records, before: Records, turn: number): void {
    // A node of another Redlock, or of another version, does not count, whatever its record says.
    const isOther = ({ state, nodes, format }: NodeRecord): boolean =>
      format !== FORMAT || (state === 'votes' && nodes !== now.length)
    const ours = now.map((record) => (record && isOther(record) ? undefined : record))
    const { admissions, readAgain } = this.#duplicates ? NO_ADMISSIONS : decideAdmissions(ours, before, this.#cluster)
    this.#admit(admissions, () => {
      const undecided = !this.#ready && admissions.some(Boolean)
      if ((readAgain || undecided) && turn < MAX_READINGS) return this.#read(turn + 1)
      this.#reading = false
      this.#notBefore = this.#cluster.world.now() + this.#pauseMs(now)
      if (this.#waiting.length > 0) this.#settleWaiting(this.#ready ? undefined : this.#unavailable())
      for (const done of this.#afterReading.splice(0)) done()
    })
  }

  #admit(admissions: readonly (Admission | undefined)[], done: () => void): void {
    const { world, nodeTimeoutMs } = this.#cluster
    let pending = admissions.filter(Boolean).length
    if (pending === 0) return done()
    const finish = (): void => {
      pending = 0
      cancel()
      done()
    }
    const cancel = limit(world, nodeTimeoutMs, () => pending > 0 && finish())
    for (const [i, admission] of admissions.entries()) {
      if (!admission) continue
      nodeAt(this.#cluster, i).admit(admission, (answer) => {
        if (pending === 0) return
        if (answer === true) {
          this.#voting |= 1 << i
          this.#known = true
          if (this.#ready) this.#settleWaiting(undefined)
        } else if (answer instanceof Error) this.#statuses[i] = answer
        if (--pending === 0) finish()
      })
    }
  }

  /** Until another reading may be worth it: when a node has sat out, or when one may have come back. */
  #pauseMs(records: Records): number {
    const { nodeTimeoutMs } = this.#cluster
    const left = records.map((record) =>
      record && record.state !== 'votes' ? this.#sitOutMs() - record.ageMs : nodeTimeoutMs,
    )
    return Math.max(Math.min(nodeTimeoutMs, ...left), MIN_PAUSE_MS)
  }

  #sitOutMs(): number {
    return Math.max(this.#cluster.maxTtlMs, ...this.#records.map((record) => record?.longestMs ?? 0))
  }

  #explain(record: NodeRecord): string {
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

  #unavailable(): Error {
    const causes = this.runs.map((_, i) => (this.#voting & (1 << i) ? undefined : () => this.cause(i)))
    return unavailable(this.#cluster.majority, causes)
  }

  /** Two nodes that are one server would count as two votes of a majority. */
  #findDuplicates(): InvalidOptionError | undefined {
    for (const [i, run] of this.runs.entries()) {
      const other = run === '' ? -1 : this.runs.indexOf(run, i + 1)
      if (other < 0) continue
      const names = [i, other].map((at) => nodeAt(this.#cluster, at).name)
      return new InvalidOptionError('clients', names, 'independent servers, and two of them are one and the same')
    }
    return undefined
  }

  #settleWaiting(error: Error | undefined): void {
    const waiting = this.#waiting
    if (waiting.length === 0) return
    this.#waiting = []
    for (const done of waiting) done(error)
  }
}
