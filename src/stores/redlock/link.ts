import { formatDuration } from '../../kit/duration.js'
import type { World } from '../../kit/world.js'
import type { Adapter } from '../../clients/redis/adapter.js'
import { runScript, type Script } from '../../clients/redis/script.js'
import type { Line } from './clients.js'
import { NodeError } from './cluster.js'
import type { Done } from './node.js'

/** What waits for a node that does not answer: more would only be memory. */
const OUTSTANDING_AT_MOST = 1_000

/** One call on its way, in the order in which they were sent. */
interface Call {
  sentAt: number
  suspectAt: number | undefined
  over: boolean
}

/**
 * The way to one node. Gives a client nothing that it could not send at once: a queue would carry it out minutes later,
 * when whoever asked has long gone. And asks nothing more of a node that leaves questions unanswered, until it answers.
 */
export class Link {
  readonly name: string
  readonly #adapter: Adapter
  readonly #world: World
  readonly #patienceMs: number
  #calls: Call[] = []
  #first = 0
  #outstanding = 0

  constructor({ name, adapter }: Line, world: World, patienceMs: number) {
    this.name = name
    this.#adapter = adapter
    this.#world = world
    this.#patienceMs = patienceMs
  }

  /** `tidying`: worth sending also to a node that is silent now, for when it wakes up. */
  run(script: Script, keys: string[], args: string[], tidying: boolean, done: Done<unknown>): void {
    const now = this.#world.now()
    if (!this.#adapter.ready()) return this.#whenReady(() => this.run(script, keys, args, tidying, done), done)
    if ((this.#isSilent(now) && !tidying) || this.#outstanding >= OUTSTANDING_AT_MOST) {
      const silentMs = Math.round(now - (this.#calls[this.#first]?.sentAt ?? now))
      return done(new NodeError(this.name, `has not answered for ${formatDuration(silentMs)}`))
    }
    const call: Call = { sentAt: now, suspectAt: undefined, over: false }
    this.#calls.push(call)
    this.#outstanding++
    const settle = (answer: unknown): void => {
      call.over = true
      this.#outstanding--
      done(answer)
    }
    const fail = (error: unknown): void => {
      const reason = error instanceof Error ? error.message || error.name : String(error)
      settle(new NodeError(this.name, `failed: ${reason}`, { cause: error }))
    }
    void runScript(this.#adapter, script, this.#named(keys), args, { reply: settle, failure: fail })
  }

  /**
   * Whether the oldest question without an answer is old. Its answer may have come while this process was busy: only who
   * is found silent twice, with time to read in between, is silent.
   */
  #isSilent(now: number): boolean {
    const calls = this.#calls
    while (this.#first < calls.length && (calls[this.#first] as Call).over) this.#first++
    const oldest = calls[this.#first]
    if (!oldest || this.#first > 1_000) {
      this.#calls = calls.slice(this.#first)
      this.#first = 0
    }
    if (!oldest || now - oldest.sentAt < this.#patienceMs) return false
    oldest.suspectAt ??= now
    return now - oldest.suspectAt > this.#patienceMs / 4
  }

  /** The client may put something before every key: keys are named in full. */
  #named(keys: string[]): string[] {
    const { keyPrefix } = this.#adapter
    return keyPrefix === '' ? keys : keys.map((key) => keyPrefix + key)
  }

  /** A client that connects for the first time gets the usual time for it. One that failed to is down. */
  #whenReady(then: () => void, done: Done<unknown>): void {
    const adapter = this.#adapter
    adapter.wake()
    let over = false
    const settle = (finish: () => void): void => {
      if (over) return
      over = true
      cancel()
      stop()
      finish()
    }
    const look = (): void => {
      if (adapter.ready()) return settle(then)
      const trouble = adapter.closed() ? adapter.trouble() : adapter.lastError
      if (trouble !== undefined) settle(() => done(this.#down(trouble)))
    }
    const cancel = this.#world.after(this.#patienceMs, () =>
      settle(() => done(this.#down(`not connected within ${formatDuration(this.#patienceMs)}`))),
    )
    const stop = adapter.onTurn(look)
    look()
  }

  #down(trouble: unknown): NodeError {
    const reason = trouble instanceof Error ? trouble.message || (trouble as NodeJS.ErrnoException).code : trouble
    return new NodeError(this.name, `is down: ${reason ?? 'no connection'}`, { cause: trouble })
  }
}
