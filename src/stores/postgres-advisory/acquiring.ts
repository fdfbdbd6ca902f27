import type { Answer, Claim } from '../../store.js'
import { refusalBy, refusalIn, unknown } from './answers.js'
import { type Book, type Entry, grantOf, isShared } from './book.js'
import type { Ids, LockId } from './ids.js'
import type { Attempt, Outcome } from './locking.js'
import type { Queue } from './queue.js'
import type { Releasing } from './releasing.js'
import type { Session } from './session.js'
import type { Sessions } from './sessions.js'
import { type How, howTo } from './statements.js'
import { SessionLost } from './trouble.js'
import { classOf } from './ttl-class.js'

interface Part {
  claim: Claim
  entry: Entry
}

/** Tries for locks, and joins the queue of those who may wait. */
export class Acquiring {
  readonly #ids: Ids
  readonly #book: Book
  readonly #sessions: Sessions
  readonly #queue: Queue
  readonly #releasing: Releasing
  closed = false

  constructor(ids: Ids, book: Book, sessions: Sessions, queue: Queue, releasing: Releasing) {
    this.#ids = ids
    this.#book = book
    this.#sessions = sessions
    this.#queue = queue
    this.#releasing = releasing
  }

  ask(claim: Claim, answer: (answer: Answer) => void): void {
    const id = this.#ids.of(claim.key)
    const resumed = this.#queue.resume(claim, id)
    if (resumed) return void resumed.then(answer)
    const decided = (decision: Answer): void => {
      if (decision.granted || !claim.blockMs) answer(decision)
      else void this.#queue.join(claim, id).then(answer)
    }
    const entry = this.#book.entry(id)
    const turn = entry.enter()
    const session = turn || entry.holders.size > 0 ? undefined : this.#sessions.ready(classOf(claim.ttlMs))
    if (!session) return void this.#askInTurn(entry, turn, claim).then(decided)
    // Mostly nobody is in the way, and nothing has to be waited for but the one statement.
    session.try(
      attemptOf(id, claim, false, (outcome) => {
        const failure = 'error' in outcome && outcome
        if (failure && failure.error instanceof SessionLost) {
          return void this.#askInTurn(entry, undefined, claim).then(decided)
        }
        const decision = failure ? unknown(failure.error) : this.#settle(session, entry, claim, outcome as Outcome)
        entry.leave()
        decided(decision)
      }),
    )
  }

  /** One attempt, without waiting in the queue. */
  attempt(claim: Claim): Promise<Answer> {
    const entry = this.#book.entry(this.#ids.of(claim.key))
    return this.#askInTurn(entry, entry.enter(), claim)
  }

  /** All or none. */
  async together(claims: readonly Claim[]): Promise<Answer[]> {
    const entered: Entry[] = []
    try {
      const ids = claims.map((claim) => this.#ids.of(claim.key))
      if (clash(claims, ids)) return claims.map(() => ({ granted: false }))
      // In one order for all, or two who need the same entries could wait for each other.
      for (const id of distinct(ids)) {
        const entry = this.#book.entry(id)
        await entry.enter()
        entered.push(entry)
      }
      const parts = claims.map((claim, i) => ({ claim, entry: this.#book.entry(ids[i] as LockId) }))
      return await this.#twice(() => this.#attemptTogether(parts))
    } catch (error) {
      return claims.map(() => unknown(error))
    } finally {
      for (const entry of entered) entry.leave()
    }
  }

  async #askInTurn(entry: Entry, turn: Promise<void> | undefined, claim: Claim): Promise<Answer> {
    await turn
    try {
      return (await this.#again(claim)) ?? (await this.#twice(() => this.#attempt(entry, claim)))
    } catch (error) {
      return unknown(error)
    } finally {
      entry.leave()
    }
  }

  /** The same owner gets its own grant, which lives on from now. */
  async #again(claim: Claim): Promise<Answer | undefined> {
    const holding = this.#book.find(claim)
    if (!holding) return undefined
    if (!this.#book.extend(holding, claim.ttlMs)) return void (await this.#releasing.expire(holding, true))
    await holding.session.ping()
    return this.#book.find(claim) === holding ? grantOf(holding, claim.ttlMs) : undefined
  }

  /** Whatever a lost session was granted ended with it, so the question may simply be asked again. */
  async #twice<T>(ask: () => Promise<T>): Promise<T> {
    try {
      return await ask()
    } catch (error) {
      if (!(error instanceof SessionLost) || this.closed) throw error
      return ask()
    }
  }

  #attempt(entry: Entry, claim: Claim): Promise<Answer> {
    const tryOn = (session: Session): Answer | Promise<Answer> => {
      // Looked at only now: the lock may have come to this very session, which could take it again.
      const obstacle = entry.obstacle(isShared(claim))
      if (obstacle) return refusalBy(obstacle)
      return new Promise((resolve, reject) => {
        const home = homeOf(entry, claim, session)
        const joins = entry.isHeldOn(home)
        home.try(
          attemptOf(entry.id, claim, joins, (outcome) => {
            if ('error' in outcome) reject(outcome.error)
            else resolve(this.#settle(home, entry, claim, outcome))
          }),
        )
      })
    }
    return this.#sessions.use(tryOn, classOf(claim.ttlMs))
  }

  #settle(home: Session, entry: Entry, claim: Claim, outcome: Outcome): Answer {
    if (outcome.token === undefined) return { granted: false }
    return grantOf(this.#book.add(claim, entry.id, home, outcome.token, outcome.sentAt), claim.ttlMs)
  }

  async #attemptTogether(parts: readonly Part[]): Promise<Answer[]> {
    const answers = new Map<Claim, Answer>()
    for (const { claim } of parts) {
      const answer = await this.#again(claim)
      if (answer) answers.set(claim, answer)
    }
    const taken: Part[] = []
    for (const group of byClass(parts.filter(({ claim }) => !answers.has(claim)))) {
      const ttlClass = classOf((group[0] as Part).claim.ttlMs)
      const said = await this.#sessions.use((session) => this.#tryTogether(session, group), ttlClass)
      if (said.some((answer) => !answer.granted)) {
        // Each class of ttl is taken by a statement of its own: what the others got goes back.
        for (const { claim, entry } of taken) await this.#releasing.giveBack(entry, claim)
        return parts.map(({ entry, claim }) => refusalIn(entry, claim))
      }
      for (const [i, part] of group.entries()) answers.set(part.claim, said[i] as Answer)
      taken.push(...group)
    }
    return parts.map(({ claim }) => answers.get(claim) as Answer)
  }

  #tryTogether(session: Session, parts: readonly Part[]): Answer[] | Promise<Answer[]> {
    const refused = parts.some(({ claim, entry }) => entry.obstacle(isShared(claim)))
    if (refused) return parts.map(() => ({ granted: false }))
    return new Promise((resolve, reject) => {
      const answers: Answer[] = []
      let settled = 0
      const attempts = parts.map(({ claim, entry }, i) => {
        // A reader who joins others locks nothing, so it may be asked on any session.
        const home = homeOf(entry, claim, session)
        const joins = entry.isHeldOn(home) || parts.findIndex((part) => part.entry === entry) < i
        return attemptOf(entry.id, claim, joins, (outcome) => {
          if ('error' in outcome) return reject(outcome.error)
          answers[i] = this.#settle(home, entry, claim, outcome)
          if (++settled === parts.length) resolve(answers)
        })
      })
      session.tryTogether(attempts)
    })
  }
}

/** One more reader goes where others of its class of ttl are. */
function homeOf(entry: Entry, claim: Claim, session: Session): Session {
  const ttlClass = classOf(claim.ttlMs)
  for (const holder of entry.holders.values()) if (holder.session.ttlClass === ttlClass) return holder.session
  return session
}

/** The server holds it once for all readers of a session: those who come later only join. */
function attemptOf(id: LockId, claim: Claim, joins: boolean, settle: Attempt['settle']): Attempt {
  const how: How = joins ? (id.pair ? 6 : 5) : howTo(id, isShared(claim))
  return { id, how, ttlMs: claim.ttlMs, settle }
}

function byClass(parts: readonly Part[]): Part[][] {
  const groups = new Map<number, Part[]>()
  for (const part of parts) {
    const ttlClass = classOf(part.claim.ttlMs)
    groups.set(ttlClass, [...(groups.get(ttlClass) ?? []), part])
  }
  return [...groups.values()]
}

/** Whether some of them exclude each other. */
function clash(claims: readonly Claim[], ids: readonly LockId[]): boolean {
  return claims.some((claim, i) =>
    claims.some((other, j) => j < i && ids[i]?.text === ids[j]?.text && !(isShared(claim) && isShared(other))),
  )
}

function distinct(ids: readonly LockId[]): LockId[] {
  return [...new Map(ids.map((id) => [id.text, id])).values()].sort((a, b) => (a.text < b.text ? -1 : 1))
}
