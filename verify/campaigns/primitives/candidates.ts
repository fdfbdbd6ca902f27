import { setTimeout as sleep } from 'node:timers/promises'
import type { CandidateBehaviour, CandidateReport, CandidateOrder } from '../../../testbed/children/candidate.child.js'
import { type Child, startChild } from '../../../testbed/children.js'
import type { HeldPeriod } from './history.js'
import type { SharedStore } from './stores.js'

const CANDIDATE = new URL('../../../testbed/children/candidate.child.ts', import.meta.url)
/** PATIENCE_MS: how long to wait for what must happen before the campaign fails. */
const PATIENCE_MS = 30_000

export type Woke = Extract<CandidateReport, { type: 'woke' }>

export interface Member {
  child: Child<CandidateReport>
  ready: boolean
  resigningAt: number
  woke: Woke[]
}

/** What one process believed about one term. */
export interface TermRecord {
  term: bigint
  member: Member
  ledAt: number
  /** The time of its first belief, if it had any. */
  from: number | undefined
  until: number
  toldAt: number | undefined
  /** True if it was stopped meanwhile, and could not be told before it continued. */
  frozen: boolean
}

/** Candidates in separate processes, and everything they reported. */
export class Candidates {
  readonly members: Set<Member> = new Set()
  /** In the order in which the reports arrived. */
  readonly terms: TermRecord[] = []
  readonly #args: string[]
  readonly #wakes = new Set<() => void>()

  constructor(store: SharedStore, name: string, ttlMs: number, how: CandidateBehaviour) {
    this.#args = [store.url, name, String(ttlMs), how]
  }

  async start(count: number): Promise<void> {
    const hired = Array.from({ length: count }, () => this.#start())
    await this.until('they are ready', () => hired.every(({ ready }) => ready))
  }

  /** The latest leader, as far as it was reported. */
  get latest(): TermRecord | undefined {
    return this.terms.at(-1)
  }

  async until<T>(what: string, look: () => T | undefined | false, patienceMs: number = PATIENCE_MS): Promise<T> {
    const deadline = performance.now() + patienceMs
    for (;;) {
      const seen = look()
      if (seen) return seen
      if (performance.now() > deadline) throw new Error(`${what}: not within ${patienceMs} ms`)
      let wake = (): void => {}
      const heard = new Promise<void>((resolve) => (wake = resolve))
      this.#wakes.add(wake)
      await Promise.race([heard, sleep(100)])
      this.#wakes.delete(wake)
    }
  }

  /** Waits for a leader of a later term. */
  async after(record: TermRecord | undefined): Promise<TermRecord> {
    return this.until('the next leader', () => {
      const { latest } = this
      return latest && latest.term > (record?.term ?? -1n) && latest.from !== undefined && latest
    })
  }

  tell(member: Member, order: CandidateOrder): void {
    member.child.tell({ order })
  }

  async kill(member: Member): Promise<void> {
    this.members.delete(member)
    member.child.kill('SIGKILL')
    await member.child.ended
  }

  async dismiss(): Promise<void> {
    await Promise.all([...this.members].map((member) => this.kill(member)))
  }

  /**
   * From the first to the last moment at which a process believed to lead, or ran without having been told otherwise.
   */
  periods(): HeldPeriod[] {
    return this.terms.flatMap(({ term, member, from, until, toldAt, frozen }) => {
      if (from === undefined) return []
      const end = frozen || toldAt === undefined ? until : Math.max(until, toldAt)
      return [{ who: `process ${member.child.pid} in term ${term}`, weight: 1, from, until: end }]
    })
  }

  #start(): Member {
    const child = startChild<CandidateReport>(CANDIDATE, this.#args)
    const member: Member = { child, ready: false, resigningAt: 0, woke: [] }
    this.members.add(member)
    void this.#listen(member)
    return member
  }

  async #listen(member: Member): Promise<void> {
    for (;;) {
      const report = await member.child.next().catch(() => undefined)
      if (!report) return
      this.#note(member, report)
      for (const wake of this.#wakes) wake()
    }
  }

  #note(member: Member, report: CandidateReport): void {
    if (report.type === 'ready') member.ready = true
    else if (report.type === 'resigning') member.resigningAt = report.at
    else if (report.type === 'woke') member.woke.push(report)
    else if (report.type === 'led') {
      this.terms.push({
        term: BigInt(report.term),
        member,
        ledAt: report.at,
        from: undefined,
        until: report.at,
        toldAt: undefined,
        frozen: false,
      })
    } else if ('term' in report) this.#recordTerm(member, report)
  }

  #recordTerm(member: Member, report: Extract<CandidateReport, { term: string }>): void {
    const record = this.terms.findLast((one) => one.member === member && one.term === BigInt(report.term))
    if (!record) throw new Error(`${JSON.stringify(report)} without a term`)
    if (report.type === 'told') record.toldAt = report.at
    else {
      record.from ??= report.at
      record.until = report.at
    }
  }
}
