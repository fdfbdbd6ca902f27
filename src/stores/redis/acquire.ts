/**
 * Calls of acquire.lua: each with a deadline, and again for the claims that one call did not decide.
 *
 * @module
 */
import type { Script } from '../../clients/redis/script.js'
import { StoreUnavailableError } from '../../errors.js'
import type { Answer, Claim } from '../../store.js'
import { realWorld } from '../../util/world.js'
import { AcquireHeader, answersToClaims, tooLate, undecided } from './codec.js'
import type { Index } from './keys.js'
import type { ServerClock } from './server-clock.js'
import type { IndexedCall, Transport } from './transport.js'

export interface AcquireCallsHost {
  transport: Transport
  script: Script
  timeoutMs: number
  clockOf: (index: Index) => ServerClock
  keysOf: (call: IndexedCall<Claim>) => string[]
  /** Where grants to waiters that ask now have to be sent. */
  subscriber: () => string
}

export class AcquireCalls {
  readonly #host: AcquireCallsHost
  readonly #header = new AcquireHeader()

  constructor(host: AcquireCallsHost) {
    this.#host = host
  }

  /** After a delay: the waiter that asked at `askedAt` may have given up, and would not know of a grant. */
  assertInTime(askedAt: number): void {
    if (realWorld.now() - askedAt < this.#host.timeoutMs) return
    throw new StoreUnavailableError('redis was not ready in time: the request was not sent')
  }

  send(call: IndexedCall<Claim>, atomic: boolean, sentAt: number): Promise<Answer[]> {
    const { items: claims, index } = call
    const clock = this.#host.clockOf(index)
    // The connection was lost since it was heard. Without a deadline, the request could be granted when this process is long dead.
    if (!clock.known)
      return Promise.reject(new StoreUnavailableError('redis reconnected meanwhile: the request was not sent'))
    const deadline = clock.deadline(sentAt + this.#host.timeoutMs)
    const args = this.#header.argsOf(claims, atomic, deadline, this.#host.subscriber())
    return this.#host.transport.ask(this.#host.script, this.#host.keysOf(call), args, (reply) => {
      const late = tooLate(reply)
      if (late !== undefined) return this.#askAgain(call, atomic, { sentAt, late })
      const answers = answersToClaims(reply, claims, (micros) => clock.heard(micros, sentAt))
      const [first] = answers
      if (first?.granted === true && clock.isDue(sentAt)) clock.heardToken(Number(first.token), sentAt)
      return answers.length < claims.length ? this.#askRest(answers, call) : answers
    })
  }

  /** The claims that the script left undecided: it bounds for how long it keeps the server busy. */
  async #askRest(answers: Answer[], { items, index, names }: IndexedCall<Claim>): Promise<Answer[]> {
    const rest = items.slice(answers.length)
    try {
      const call = { items: rest, index, names: [index.name, ...names.slice(answers.length + 1)] }
      return [...answers, ...(await this.send(call, false, realWorld.now()))]
    } catch (error) {
      return [...answers, ...rest.map(() => undecided(error))]
    }
  }

  /** The request was late by the server's clock. If it is not by ours, one of the clocks was set: ask once more, by the new time. */
  async #askAgain(
    call: IndexedCall<Claim>,
    atomic: boolean,
    { sentAt, late }: { sentAt: number; late: number },
  ): Promise<Answer[]> {
    this.#host.clockOf(call.index).heard(late, sentAt)
    const now = realWorld.now()
    if (now - sentAt < this.#host.timeoutMs) return this.send(call, atomic, now)
    throw new StoreUnavailableError('redis was asked too late: the request had been under way for too long')
  }
}
