import {
  LeaseholdError,
  LockTimeoutError,
  StoreUnavailableError,
  UnsupportedError,
  InvalidOptionError,
} from '../errors.js'
import type { Answer, Claim, Refusal, StoreEvent } from '../store.js'
import type { Ask } from './ask.js'
import { onAbort } from './cancel.js'
import type { Engine } from './engine.js'
import { driftOf } from './lease.js'
import type { Line } from './line.js'
import { type Lock, leaseOf } from './lock.js'
import { patience } from './patience.js'
import { Alarm, Timed } from './timers.js'

/** Whoever has just let go waits this long at most for the bell that tells the others, if it can wait so much longer at all. */
const COURTESY_MS = 25
const COURTEOUS_FROM_MS = 10 * COURTESY_MS
/** How long one question may stay open inside the server. */
const BLOCK_MS = 5_000

/** How long a question that was kept open may take to be answered once it is ended. */
const LAST_CALL_MS = 500

const SETTLED = Promise.resolve()

/** Ends a wait that has become pointless (`Ask.onRefusal`). Never seen by callers. */
export class WaitEnded extends Error {}

/** One acquisition that has to wait: asks again whenever that may help, until granted, cancelled or out of time. */
export class Waiter extends Timed {
  readonly ask: Ask
  readonly owner: string
  readonly promise: Promise<Lock>
  /** Its turn has come: it asks, or waits until asking may help. */
  asking = false
  previous: Waiter | undefined = undefined
  next: Waiter | undefined = undefined

  readonly #engine: Engine
  readonly #line: Line
  readonly #since: number
  readonly #claim: Claim
  #resolve!: (lock: Lock) => void
  #reject!: (error: unknown) => void
  #done = false
  /** Something of ours may be in the store: a place in line, or what an answer that was lost would have told. */
  #mayHold = false
  #inFlight = false
  #refusal: Refusal | undefined
  /** Made while we wait: what is not done when we are told is not waited for. */
  #blank: Lock | undefined
  #refusals = 0
  #failure: LeaseholdError | undefined
  #failures = 0
  /** When the last question was sent that was refused: what is granted later counts from here at least. */
  #contactAt = Number.NEGATIVE_INFINITY
  /** The store has answered us once: our place is decided. */
  #placed = false
  /** Whoever stands behind us and waits for our first question to be on its way. False: we left, look who is before you now. */
  #follower: ((go: boolean) => void) | undefined
  #stopListening: (() => void) | undefined
  /** The question that was out when we left has been answered, and nothing is left of it. */
  #cleanedUp: ((cleaning: Promise<void> | undefined) => void) | undefined
  #lastCall = false
  #rung = false
  #wake: (() => void) | undefined
  #alarm: Alarm | undefined

  constructor(engine: Engine, line: Line, ask: Ask, claim: Claim, since: number) {
    super()
    this.#engine = engine
    this.#line = line
    this.ask = ask
    this.#claim = claim
    this.owner = claim.owner
    this.#since = since
    this.promise = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    if (ask.signal) this.#stopListening = onAbort(ask.signal, () => this.fail(ask.signal?.reason))
  }

  /** It waits no longer. */
  get settled(): boolean {
    return this.#done
  }

  get waitedMs(): number {
    return this.#engine.world.now() - this.#since
  }

  /** Shared claims may ask beside each other; an exclusive one only when it is first. */
  get exclusive(): boolean {
    return this.ask.weight === this.ask.capacity
  }

  /** From when it is not certain any more that the first answer settles it. */
  limitWait(): void {
    const { waitMs } = this.ask
    if (this.queue || waitMs === Number.POSITIVE_INFINITY) return
    this.#engine.waits.set(this, this.#since + waitMs, waitMs)
  }

  /** Most get what they want by asking once, and never need a campaign. */
  begin(): void {
    const { store, courier, world } = this.#engine
    this.asking = true
    const simple = !store.immediate && !store.blocks && !this.ask.inStoreLine
    // The question has a time limit of its own. If it ends sooner than the wait, no other is needed yet.
    if (!simple || this.ask.waitMs <= store.timeoutMs) this.limitWait()
    if (!simple) return void this.#campaign()
    const { armed } = this.#line
    // Where there is no line, whoever let go and wants it back would always win. So it hears of it first, as the others do.
    if (this.#line.justLetGo && this.ask.waitMs >= COURTEOUS_FROM_MS) return void this.#waitToBeTold()
    const sentAt = world.now()
    this.#mayHold = this.#inFlight = true
    courier.ask(this.#claim, (answer) => {
      this.#inFlight = false
      if (this.#done) this.#afterwards(answer)
      else this.hearFirst(answer, sentAt, armed)
    })
    this.#beckon(true)
  }

  /** The answer to the first question. */
  hearFirst(answer: Answer, sentAt: number, armed = true): void {
    this.asking = true
    if (this.#digest(answer, sentAt)) return
    this.limitWait()
    this.#wonder(answer, armed)
    void this.#campaign(answer, armed)
  }

  /** Asks until it is settled. `answer`: what it was told already; `armed`: whether it could hear when it asked that. */
  async #campaign(answer?: Answer, armed = false): Promise<void> {
    if (!answer && this.ask.inStoreLine && !this.#engine.store.immediate) await this.#inOrder()
    if (this.#done) return
    for (;;) {
      if (!answer) {
        armed = this.#line.armed
        this.#rung = false
        const sentAt = this.#engine.world.now()
        answer = await this.#send()
        this.#inFlight = false
        if (this.#done) return this.#afterwards(answer)
        this.#wonder(answer, armed)
        if (this.#digest(answer, sentAt)) return
      }
      // Subscribe, then ask again, then wait: a release between the refusal and the subscription rang no bell for us.
      if (answer.granted === false && (await this.#line.arm(armed))) this.#rung = true
      if (!this.#done && !this.#rung) await this.#pause(this.#patience(answer))
      if (this.#done) return
      answer = undefined
    }
  }

  async #waitToBeTold(): Promise<void> {
    this.limitWait()
    await this.#pause(COURTESY_MS)
    if (!this.#done) await this.#campaign()
  }

  /** Somebody here subscribed while our question was out: what was told before that, we did not hear. */
  #wonder(answer: Answer, wasArmed: boolean): void {
    if (answer.granted === false && !wasArmed && this.#line.armed) this.#rung = true
  }

  /**
   * Two questions may travel by different connections, and the later one arrive first. So whoever stands in the store's
   * line asks together with the one before it, in one batch, or after it was answered.
   */
  async #inOrder(): Promise<void> {
    // Those who ask in this same turn follow at once.
    await undefined
    for (let go = false; !go && !this.#done; ) {
      const { previous } = this
      if (!previous || previous.#placed) return
      go = await new Promise<boolean>((resolve) => (previous.#follower = resolve))
    }
  }

  #beckon(go: boolean): void {
    const follower = this.#follower
    this.#follower = undefined
    follower?.(go)
  }

  /** The wait is over. */
  override due(): void {
    const { name, kind } = this.ask
    const { waitedMs } = this
    if (this.#inFlight && this.#engine.store.blocks && !this.#lastCall) return this.#callBack()
    if (this.#failure || (this.#inFlight && !this.#refusal)) {
      const failure = this.#failure ?? this.#engine.courier.silence('in time')
      const cause = failure.cause ?? failure
      this.fail(new StoreUnavailableError(`"${name}" could not be acquired: ${failure.message}`, { cause }))
      return
    }
    const heldBy = this.#refusal?.blocker?.owner
    this.#engine.events.emit('timeout', () => ({ name, kind, waitedMs, heldBy }))
    this.fail(new LockTimeoutError(name, { waitedMs, heldBy }))
  }

  /** The server keeps our question open. Ended, it is answered; if it is not, the server is silent. */
  #callBack(): void {
    this.#lastCall = true
    const { world, waits, courier } = this.#engine
    waits.set(this, world.now() + LAST_CALL_MS, LAST_CALL_MS)
    void courier.release({ key: this.ask.key, owner: this.owner })
  }

  /** Something happened to the key. Events are hints: all but a grant only make us ask sooner. */
  hear(event: StoreEvent): void {
    if (event.type === 'granted') {
      if (event.owner === this.owner) this.#receive(event)
    } else if (event.type === 'changed') {
      // Who leads, or what a holder says: nothing to those who only want to be next.
      if (this.ask.onRefusal) this.ring()
    } else if (event.type !== 'revoked' && (!event.owner || event.owner === this.owner)) this.ring()
  }

  ring(): void {
    this.#rung = true
    this.#wake?.()
  }

  fail(error: unknown): void {
    if (this.#done) return
    this.#settle()
    this.#reject(error)
    // Also while a question is still out: a store that keeps it open inside the server ends it then.
    if (this.#mayHold) void this.#engine.cleanUp.letGo({ key: this.ask.key, owner: this.owner })
    if (this.#inFlight) void this.#engine.cleanUp.lookAfter(new Promise((resolve) => (this.#cleanedUp = resolve)))
  }

  #send(): Promise<Answer> | Answer {
    const { store, courier, world } = this.#engine
    this.#mayHold = true
    if (store.blocks) {
      const left = this.#since + this.ask.waitMs - world.now()
      this.#claim.blockMs = Math.max(Math.min(BLOCK_MS, left), 0)
    }
    this.#inFlight = true
    const answer = courier.acquire(this.#claim)
    this.#beckon(true)
    return answer
  }

  /** True if that settled it. */
  #digest(answer: Answer, sentAt: number): boolean {
    if (answer.granted !== 'unknown') {
      this.#placed = true
      this.#beckon(true)
    }
    if (answer.granted === true) {
      if (this.#engine.stale(answer, sentAt)) {
        this.#failed(new StoreUnavailableError(`${this.#engine.store.name} took longer to answer than the ttl lasts`))
        void this.#engine.cleanUp.letGo({ key: this.ask.key, owner: answer.owner })
        return this.#done
      }
      this.#settle()
      this.#resolve(this.#engine.hold(this.ask, answer, sentAt, this.#since))
      return true
    }
    if (answer.granted === 'unknown') this.#failed(answer.error as LeaseholdError)
    else {
      this.#refusal = answer
      this.#refusals++
      this.#blank ??= this.#engine.blank(this.ask)
      this.#failure = undefined
      this.#failures = 0
      this.#contactAt = sentAt
      this.#mayHold = this.#engine.store.features.line || this.#engine.store.blocks === true
      if (this.ask.onRefusal?.(answer)) this.fail(new WaitEnded())
      else if (this.#lastCall) this.due()
    }
    return this.#done
  }

  #failed(error: LeaseholdError): void {
    this.#failure = error
    this.#failures++
    // Asking again would only be told the same.
    if (error instanceof InvalidOptionError || error instanceof UnsupportedError) this.fail(error)
    const { name, kind } = this.ask
    this.#engine.events.emit('error', () => ({ name, kind, doing: 'acquire', error }))
  }

  /**
   * Whoever let go handed the lease to us. It began after our last refused question, so it may be counted from there,
   * unless this is news from before that: then its token is not larger than that of the one who was in our way.
   */
  #receive(event: { owner: string; token: bigint; ttlMs: number }): void {
    if (this.#done) return
    const before = this.#refusal?.blocker?.token
    const deadline = this.#contactAt + event.ttlMs - driftOf(event.ttlMs)
    if (before === undefined || before >= event.token || deadline <= this.#engine.world.now()) return this.ring()
    this.#done = true
    const { owner, token, ttlMs } = event
    const grant = { granted: true as const, owner, token, ttlMs, provisional: true }
    const lock = this.#engine.hold(this.ask, grant, this.#contactAt, this.#since, this.#blank)
    this.#resolve(lock)
    // Whoever waited for it goes first, up to where it waits for something else.
    void SETTLED.then(() =>
      process.nextTick(() => {
        this.#settle()
        leaseOf(lock).confirmSoon()
      }),
    )
  }

  /** How long to wait for a bell before asking again. */
  #patience(answer: Answer): number {
    const { store, world } = this.#engine
    // It stood in the server's own queue until then, and keeps its place there only if it comes back at once.
    const { blockMs } = this.#claim
    if (answer.granted === false && blockMs && world.now() >= this.#contactAt + blockMs * 0.9) return 1
    return patience(answer, {
      inLine: store.features.line,
      armed: this.#line.armed,
      exclusive: this.exclusive,
      refusals: this.#refusals,
      failures: this.#failures,
      random: world.random,
    })
  }

  #pause(ms: number): Promise<void> {
    const { waits, world } = this.#engine
    const alarm = (this.#alarm ??= new Alarm(() => this.ring()))
    return new Promise((resolve) => {
      this.#wake = () => {
        this.#wake = undefined
        waits.clear(alarm)
        resolve()
      }
      waits.set(alarm, world.now() + ms, ms >= 900 ? 1_000 : 0, ms * 0.1)
    })
  }

  /** Whoever let go of it meanwhile is answered first: overtaken by this, it would be told that it had lost it. */
  async #cleanUp(owner: string): Promise<void> {
    if (this.#blank) await leaseOf(this.#blank).givenBack
    await this.#engine.cleanUp.letGo({ key: this.ask.key, owner })
  }

  #settle(): void {
    this.#done = true
    this.#engine.waits.clear(this)
    this.#stopListening?.()
    this.#wake?.()
    this.#line.leave(this)
    this.#beckon(this.#placed)
  }

  /**
   * An answer came after the wait had ended. Unless a bell meanwhile gave us the very grant it speaks of, it tells of
   * something that nobody will ever release: the store may have heard the question after our release.
   */
  #afterwards(answer: Answer): void {
    const owner = answer.granted === true ? answer.owner : this.owner
    const nothing = answer.granted === false && !this.#engine.store.features.line
    const ours = nothing || this.#engine.holds(this.ask.key, owner)
    const cleaning = ours ? undefined : this.#engine.cleanUp.lookAfter(this.#cleanUp(owner))
    this.#cleanedUp?.(cleaning)
  }
}
