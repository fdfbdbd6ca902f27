import { setTimeout as sleep } from 'node:timers/promises'
import type { How, Line, Order } from '../../../test/primitives/election/candidate.child.js'
import { type Child, startChild } from '../../support/children.js'
import type { Section } from './history.js'
import type { Place } from './places.js'

const CANDIDATE = new URL('../../../test/primitives/election/candidate.child.ts', import.meta.url)
/** What must happen at all happens within this. */
const PATIENCE_MS = 30_000

export type Woke = Extract<Line, { type: 'woke' }>

export interface Member {
  child: Child<Line>
  ready: boolean
  resigningAt: number
  woke: Woke[]
}

/** What one process believed of one term. */
export interface TermRecord {
  term: bigint
  member: Member
  ledAt: number
  /** Of its beliefs, if it had any. */
  from: number | undefined
  until: number
  toldAt: number | undefined
  /** It was stopped meanwhile, and could not be told before it went on. */
  frozen: boolean
}

/** Candidates in processes of their own, and everything they said. */
export class Crew {
  readonly members: Set<Member> = new Set()
  /** In the order in which we heard of them. */
  readonly terms: TermRecord[] = []
  readonly #args: string[]
  readonly #wakes = new Set<() => void>()

  constructor(place: Place, name: string, ttlMs: number, how: How) {
    this.#args = [place.url, name, String(ttlMs), how]
  }

  async hire(count: number): Promise<void> {
    const hired = Array.from({ length: count }, () => this.#start())
    await this.until('they are ready', () => hired.every(({ ready }) => ready))
  }

  /** The one that led last, as far as we know. */
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

  /** Somebody who leads in a later term. */
  async after(record: TermRecord | undefined): Promise<TermRecord> {
    return this.until('the next leader', () => {
      const { latest } = this
      return latest && latest.term > (record?.term ?? -1n) && latest.from !== undefined && latest
    })
  }

  tell(member: Member, order: Order): void {
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

  /** From the first to the last moment at which somebody believed to lead, or was not told otherwise although it ran. */
  sections(): Section[] {
    return this.terms.flatMap(({ term, member, from, until, toldAt, frozen }) => {
      if (from === undefined) return []
      const end = frozen || toldAt === undefined ? until : Math.max(until, toldAt)
      return [{ who: `process ${member.child.pid} in term ${term}`, weight: 1, from, until: end }]
    })
  }

  #start(): Member {
    const child = startChild<Line>(CANDIDATE, this.#args)
    const member: Member = { child, ready: false, resigningAt: 0, woke: [] }
    this.members.add(member)
    void this.#listen(member)
    return member
  }

  async #listen(member: Member): Promise<void> {
    for (;;) {
      const line = await member.child.next().catch(() => undefined)
      if (!line) return
      this.#note(member, line)
      for (const wake of this.#wakes) wake()
    }
  }

  #note(member: Member, line: Line): void {
    if (line.type === 'ready') member.ready = true
    else if (line.type === 'resigning') member.resigningAt = line.at
    else if (line.type === 'woke') member.woke.push(line)
    else if (line.type === 'led') {
      this.terms.push({
        term: BigInt(line.term),
        member,
        ledAt: line.at,
        from: undefined,
        until: line.at,
        toldAt: undefined,
        frozen: false,
      })
    } else if ('term' in line) this.#noteTerm(member, line)
  }

  #noteTerm(member: Member, line: Extract<Line, { term: string }>): void {
    const record = this.terms.findLast((one) => one.member === member && one.term === BigInt(line.term))
    if (!record) throw new Error(`${JSON.stringify(line)} without a term`)
    if (line.type === 'told') record.toldAt = line.at
    else {
      record.from ??= line.at
      record.until = line.at
    }
  }
}
