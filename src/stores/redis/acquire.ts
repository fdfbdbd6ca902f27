/**
 * Calls of acquire.lua: the claims as the script wants them, what it answers, a deadline for each call, and another call for the
 * claims that one did not decide.
 *
 * @module
 */
import { type RedisReply, text } from '../../clients/redis/adapter.js'
import type { Script } from '../../clients/redis/script.js'
import { StoreUnavailableError } from '../../errors.js'
import { ALL, type Answer, type Blocker, type Claim } from '../../store.js'
import { realWorld } from '../../util/world.js'
import { answersOf, failureOf, isForAll, remaining, tokenOf, undecided, valueOf, wholeMs } from './codec.js'
import { RESERVED_TOKENS } from './grant-inbox.js'
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

/** HALF_A_DAY_MS: from here on a lease might outlive its index, unless the slow path prolongs the index. */
const HALF_A_DAY_MS = 43_200_000

/** An exclusive claim without further wishes. Long leases take the slow path, which sees to it that the index outlives them. */
function isSimple({ weight, announce, steal, value, ttlMs }: Claim): boolean {
  return weight === ALL && !announce && !steal && value === undefined && ttlMs < HALF_A_DAY_MS
}

function queueTerm(queueMs: number | undefined): string {
  return queueMs !== undefined && queueMs > 0 ? String(wholeMs(queueMs)) : ''
}

function termsOfClaim(claim: Claim): string {
  const entry = queueTerm(claim.queueMs)
  if (isSimple(claim) && !claim.tokens) return entry
  const { weight, capacity, announce, steal, value, tokens } = claim
  const flags = `${announce ? 'a' : ''}${steal ? 's' : ''}${value === undefined ? '' : 'v'}${tokens ? 't' : ''}`
  return `${weight}:${capacity}:${entry || '0'}:${flags}:${value ?? ''}`
}

/** The arguments of acquire.lua, which says how. Most claims want the same: that is said once, and written once per deadline. */
class AcquireHeader {
  #deadline = ''
  #subscriber = ''
  #queueMs: number | undefined
  #text = ''

  argsOf(claims: readonly Claim[], atomic: boolean, deadline: string, subscriber: string): string[] {
    const { ttlMs, queueMs, tokens } = claims[0] as Claim
    const isLone = claims.length === 1
    let uniform = !atomic
    for (let i = 0; uniform && i < claims.length; i++) {
      const claim = claims[i] as Claim
      uniform = claim.ttlMs === ttlMs && claim.queueMs === queueMs && isSimple(claim) && (isLone || !claim.tokens)
    }
    if (!uniform) {
      const args = [`${atomic ? '*' : '-'}${deadline}|:${subscriber}`]
      for (const claim of claims) args.push(claim.owner, String(wholeMs(claim.ttlMs)), termsOfClaim(claim))
      return args
    }
    const header = this.#uniform(deadline, subscriber, queueMs)
    const args = [tokens ? `+${header.slice(1)}` : header, String(wholeMs(ttlMs))]
    for (const { owner } of claims) args.push(owner)
    return args
  }

  #uniform(deadline: string, subscriber: string, queueMs: number | undefined): string {
    const isSame = deadline === this.#deadline && subscriber === this.#subscriber && queueMs === this.#queueMs
    if (isSame && this.#text !== '') return this.#text
    this.#deadline = deadline
    this.#subscriber = subscriber
    this.#queueMs = queueMs
    this.#text = `=${deadline}|${queueTerm(queueMs)}:${subscriber}`
    return this.#text
  }
}

/** `@` and the server's time, for a question that arrived after its asker had given up. */
function tooLate(reply: RedisReply): number | undefined {
  if (Array.isArray(reply)) return undefined
  const said = text(reply)
  return said.startsWith('@') ? Number(said.slice(1)) : undefined
}

/** The claim was not decided, because the others of its batch took long enough: it has to be asked again. */
function isLeftOver(reply: RedisReply): boolean {
  return !Array.isArray(reply) && text(reply) === '+'
}

/** The answers of acquire.lua to these claims, up to the first one that is left over. */
function answersToClaims(reply: RedisReply, claims: readonly Claim[], heard: (micros: number) => void): Answer[] {
  if (isForAll(reply, claims.length)) return grantsFrom(BigInt(text(reply)), claims)
  const replies = answersOf(reply, claims.length)
  const left = claims.length > 1 && isLeftOver(replies.at(-1)) ? replies.findIndex(isLeftOver) : claims.length
  const answers: Answer[] = []
  for (let i = 0; i < left; i++) answers.push(answerOf(replies[i], claims[i] as Claim, heard))
  return answers
}

/** All granted, with this token and those that follow it. */
function grantsFrom(first: bigint, claims: readonly Claim[]): Answer[] {
  let token = first
  return claims.map(({ owner, ttlMs }) => ({ granted: true, owner, token: token++, ttlMs: wholeMs(ttlMs) }))
}

/** `heard`: what the server's clock said, in microseconds. */
function answerOf(reply: RedisReply, claim: Claim, heard: (micros: number) => void): Answer {
  if (!Array.isArray(reply)) {
    const error = failureOf(reply)
    if (error) return { granted: 'unknown', error }
    const said = text(reply)
    const { owner } = claim
    const ttlMs = wholeMs(claim.ttlMs)
    // Written out: spreading shows in the price of a lock.
    if (!said.endsWith('+')) return { granted: true, owner, token: BigInt(said), ttlMs }
    return { granted: true, owner, token: BigInt(said.slice(0, -1)), ttlMs, tokens: RESERVED_TOKENS }
  }
  const [ahead, newest, now, owner, left, token, value, foreign] = reply as RedisReply[]
  heard(Number(now))
  const refusal = { granted: false, ahead: Number(ahead), newest: BigInt(text(newest)) } as const
  if (owner === undefined || owner === null) return refusal
  const blocker: Blocker = { owner: text(owner), ...remaining(left), ...tokenOf(token), ...valueOf(value) }
  if (Number(foreign) === 1) blocker.foreign = true
  return { ...refusal, blocker }
}
