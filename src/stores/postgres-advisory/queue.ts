import type { World } from '../../kit/world.js'
import type { Answer, Blocker, Claim, Lease } from '../../store.js'
import { type Book, grantOf, identOf, isShared } from './book.js'
import type { LockId } from './ids.js'
import type { Session } from './session.js'
import type { Sessions } from './sessions.js'
import * as sql from './sql/embedded.js'
import { filled } from './statements.js'
import { explain } from './trouble.js'
import { classOf } from './ttl-class.js'

const CANCEL = filled(sql.cancel, {})
const BLOCKED = filled(sql.blocked, {})

/** A cancellation may overtake the statement it means: look again after this. */
const CANCEL_AGAIN_MS = 50
/** An answer takes this long at most, on a busy machine. */
const ANSWER_MS = 100
/** Who is in the way is nice to know, and not worth more. */
const LOOK_MS = 500

interface Waiter {
  readonly claim: Claim
  askedAt: number
  /** Absent while its owner has been refused and has not asked again: the place is kept for a while. */
  answer: ((answer: Answer) => void) | undefined
  cancelTimer: () => void
}

/** One place in the server's queue, for all in this process who want the same lock in the same mode and class of ttl. */
interface Wait {
  readonly id: LockId
  readonly shared: boolean
  readonly ttlClass: number
  readonly waiters: Map<string, Waiter>
  since: number
  session: Session | undefined
  /** The statement is out: only a cancellation ends it. */
  blocked: boolean
  statements: number
  cancelling: Promise<unknown> | undefined
  /** Granted, while nobody was there to take it. */
  reserved: bigint | undefined
}

/** Those who wait inside the server, first come, first served. */
export class Queue {
  readonly #world: World
  readonly #book: Book
  readonly #sessions: Sessions
  readonly #timeoutMs: number
  readonly #waits = new Map<string, Wait>()
  readonly #places = new Map<string, Wait>()

  constructor(world: World, book: Book, sessions: Sessions, timeoutMs: number) {
    this.#world = world
    this.#book = book
    this.#sessions = sessions
    this.#timeoutMs = timeoutMs
  }

  /** Whoever is in line already, or finds somebody of this process there, has nothing to try first. */
  resume(claim: Claim, id: LockId): Promise<Answer> | undefined {
    const others = claim.blockMs ? this.#waits.get(nameOf(id, isShared(claim), classOf(claim.ttlMs))) : undefined
    const wait = this.#places.get(identOf(claim)) ?? others
    return wait && this.#attach(wait, claim)
  }

  join(claim: Claim, id: LockId): Promise<Answer> {
    const ttlClass = classOf(claim.ttlMs)
    const others = this.#waits.get(nameOf(id, isShared(claim), ttlClass))
    if (others) return this.#attach(others, claim)
    const wait = this.#begin(id, isShared(claim), ttlClass)
    const answer = this.#attach(wait, claim)
    void this.#run(wait)
    return answer
  }

  /** Ends a question or a place. False: there was none. */
  leave(lease: Lease): boolean {
    const ident = identOf(lease)
    const wait = this.#places.get(ident)
    if (!wait) return false
    const { answer } = this.#drop(wait, ident)
    answer?.({ granted: false })
    this.#endIfUnwanted(wait)
    return true
  }

  get waiting(): { id: LockId; claim: Claim; pid: number | undefined; since: number }[] {
    return [...this.#places].flatMap(([ident, wait]) => {
      const waiter = wait.waiters.get(ident)
      return waiter ? [{ id: wait.id, claim: waiter.claim, pid: wait.session?.pid, since: wait.since }] : []
    })
  }

  /** A reserved lock went with its session; whoever is blocked learns it from the statement. */
  lost(session: Session): void {
    for (const wait of this.#waits.values()) {
      if (wait.session === session && wait.reserved !== undefined) this.#fail(wait, session.lost)
    }
  }

  async close(error: unknown): Promise<void> {
    const waits = [...this.#waits.values()]
    for (const wait of waits) {
      for (const [ident] of wait.waiters) this.#drop(wait, ident).answer?.({ granted: 'unknown', error })
      this.#endIfUnwanted(wait)
    }
    await Promise.all(waits.map((wait) => wait.cancelling))
  }

  #begin(id: LockId, shared: boolean, ttlClass: number): Wait {
    const wait: Wait = {
      id,
      shared,
      ttlClass,
      waiters: new Map(),
      since: this.#world.now(),
      session: undefined,
      blocked: false,
      statements: 0,
      cancelling: undefined,
      reserved: undefined,
    }
    this.#waits.set(nameOf(id, shared, ttlClass), wait)
    return wait
  }

  #attach(wait: Wait, claim: Claim): Promise<Answer> {
    return new Promise((resolve) => {
      const ident = identOf(claim)
      const before = wait.waiters.get(ident)
      before?.cancelTimer()
      before?.answer?.({ granted: false })
      const waiter: Waiter = { claim, askedAt: this.#world.now(), answer: resolve, cancelTimer: () => {} }
      wait.waiters.set(ident, waiter)
      this.#places.set(ident, wait)
      // What is granted counts from the question, so one that stays open for longer than the ttl would be useless. And
      // whoever waits no longer than that should hear that it was busy, and not that nobody answered.
      const blockMs = claim.blockMs ?? 0
      const patience = Math.min(blockMs - Math.min(blockMs / 3, ANSWER_MS), claim.ttlMs / 2)
      waiter.cancelTimer = this.#world.after(patience, () => void this.#refuse(wait, waiter))
      if (wait.reserved !== undefined)
        this.#grant(wait, wait.session as Session, wait.reserved, Number.NEGATIVE_INFINITY)
    })
  }

  async #run(wait: Wait): Promise<void> {
    let session: Session | undefined
    try {
      session = await this.#sessions.toWait(wait.ttlClass)
      if (!session) return this.#turnAway(wait)
      wait.session = session
      this.#sessions.keepOneAwake()
      while (wait.waiters.size > 0) {
        const granted = await session.wait(wait.id, wait.shared, longestTtl(wait), {
          begins: () => {
            wait.blocked = wait.waiters.size > 0
            wait.statements++
            return wait.blocked
          },
          ended: async () => {
            wait.blocked = false
            await wait.cancelling
          },
        })
        if (granted) return this.#grant(wait, session, granted.token, granted.sentAt)
      }
      this.#end(wait)
      session.standDown()
    } catch (error) {
      this.#fail(wait, explain(error))
      if (session && !session.lost) session.standDown()
    }
  }

  /** The lock is on this session from now on. It goes to whoever asks first; readers all get it. */
  #grant(wait: Wait, session: Session, token: bigint, sentAt: number): void {
    wait.reserved = token
    const present = [...wait.waiters].filter(([, waiter]) => waiter.answer)
    if (present.length === 0) return this.#endIfUnwanted(wait)
    // From here on the lock is a holder's, and not ours to unlock.
    wait.session = undefined
    this.#end(wait)
    for (const [ident, waiter] of wait.shared ? present : present.slice(0, 1)) {
      this.#drop(wait, ident)
      this.#handOver(wait, session, token, sentAt, waiter)
    }
    session.waiting = false
    if (wait.waiters.size > 0) this.#goOn(wait)
  }

  #handOver(wait: Wait, session: Session, token: bigint, sentAt: number, { claim, answer, askedAt }: Waiter): void {
    const holding = this.#book.add(claim, wait.id, session, token, this.#world.now())
    const grant = grantOf(holding, claim.ttlMs)
    // Its answer counts from its question. If the statement is older, the server may have granted before that and have
    // been counting our silence since: a ping starts that anew.
    if (askedAt <= sentAt) return answer?.(grant)
    session.ping().then(
      () => answer?.(grant),
      (error: unknown) => answer?.({ granted: 'unknown', error }),
    )
  }

  /** Those whom the lock did not go to wait on, on another session. */
  #goOn(wait: Wait): void {
    const next = this.#begin(wait.id, wait.shared, wait.ttlClass)
    for (const [ident, waiter] of wait.waiters) {
      next.waiters.set(ident, waiter)
      this.#places.set(ident, next)
    }
    wait.waiters.clear()
    void this.#run(next)
  }

  async #refuse(wait: Wait, waiter: Waiter): Promise<void> {
    const blocker = await this.#blockerOf(wait)
    const { claim, answer } = waiter
    const ident = identOf(claim)
    const place = this.#places.get(ident)
    // Granted or left meanwhile.
    if (!answer || place?.waiters.get(ident) !== waiter) return
    if (claim.placeMs === undefined) {
      this.#drop(place, ident)
      this.#endIfUnwanted(place)
    } else {
      waiter.answer = undefined
      waiter.cancelTimer = this.#world.after(claim.placeMs, () => void this.leave(claim))
    }
    answer({ granted: false, blocker })
  }

  /** There is no session to wait on: whoever asks again soon is served just as well. */
  #turnAway(wait: Wait): void {
    this.#end(wait)
    for (const [ident] of wait.waiters) this.#drop(wait, ident).answer?.({ granted: false })
  }

  #fail(wait: Wait, error: unknown): void {
    this.#end(wait)
    for (const [ident] of wait.waiters) this.#drop(wait, ident).answer?.({ granted: 'unknown', error })
  }

  #drop(wait: Wait, ident: string): Waiter {
    const waiter = wait.waiters.get(ident) as Waiter
    waiter.cancelTimer()
    wait.waiters.delete(ident)
    if (this.#places.get(ident) === wait) this.#places.delete(ident)
    return waiter
  }

  #end(wait: Wait): void {
    const name = nameOf(wait.id, wait.shared, wait.ttlClass)
    if (this.#waits.get(name) === wait) this.#waits.delete(name)
  }

  #endIfUnwanted(wait: Wait): void {
    const { session } = wait
    if (wait.waiters.size > 0 || !session) return
    if (wait.reserved !== undefined) {
      wait.session = undefined
      this.#end(wait)
      session.unlock(wait.id, wait.shared, (outcome) => {
        if (typeof outcome === 'boolean') session.standDown()
        else session.die(outcome.error)
      })
    } else if (wait.blocked && !wait.cancelling) {
      wait.cancelling = this.#cancel(wait, session).finally(() => {
        wait.cancelling = undefined
      })
    }
  }

  /** Until it has ended, or somebody wants it again. Without a session to cancel from, the wait ends with its own. */
  async #cancel(wait: Wait, session: Session): Promise<void> {
    try {
      await this.#sessions.use((other) => other.ask(CANCEL, [String(session.pid), session.startedAt]))
      this.#world.after(CANCEL_AGAIN_MS, () => this.#endIfUnwanted(wait))
    } catch (error) {
      session.die(error)
    }
  }

  async #blockerOf(wait: Wait): Promise<Blocker | undefined> {
    const local = this.#book.peek(wait.id)?.obstacle(wait.shared)
    if (local) return { owner: local.owner, token: local.token, value: local.value }
    const { session } = wait
    if (!session || !wait.blocked) return undefined
    const asked = this.#sessions.use((other) => other.ask(BLOCKED, [String(session.pid)])).catch(() => [])
    const [row] = await Promise.race([
      asked,
      new Promise<[]>((resolve) => this.#world.after(LOOK_MS, () => resolve([]))),
    ])
    if (!row) return undefined
    const [waits, pid, application, address] = row
    if (waits === 'f' && wait.blocked) this.#doubt(wait, session)
    return pid ? { owner: `${application || 'session'} pid ${pid}${address ? ` at ${address}` : ''}` } : undefined
  }

  /** The server says that nobody waits there. Either the answer is on its way, or it never will be. */
  #doubt(wait: Wait, session: Session): void {
    const { statements } = wait
    this.#world.after(this.#timeoutMs, () => {
      if (wait.blocked && wait.statements === statements) session.die(new Error('the server does not answer'))
    })
  }
}

function nameOf(id: LockId, shared: boolean, ttlClass: number): string {
  return `${id.text} ${shared ? 'shared' : 'alone'} ${ttlClass}`
}

function longestTtl(wait: Wait): number {
  let longest = 0
  for (const { claim } of wait.waiters.values()) longest = Math.max(longest, claim.ttlMs)
  return longest
}
