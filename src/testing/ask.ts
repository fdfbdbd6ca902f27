/**
 * Asking a store one thing, and insisting on the answer.
 *
 * @module
 */
import { strict as assert } from 'node:assert'
import { inspect } from 'node:util'
import { UnsupportedError } from '../errors.js'
import type {
  Answer,
  Claim,
  Grant,
  Lease,
  Refusal,
  Released,
  Renewed,
  Store,
  TakeAnswer,
  TakeRequest,
} from '../store.js'

/** A grant together with what it takes to renew and release it. */
export interface Held extends Grant, Lease {
  token: bigint
}

export async function ask(store: Store, claim: Claim): Promise<Answer> {
  const answers = await store.acquire([claim])
  assert.equal(answers.length, 1, 'one claim, one answer')
  return answers[0] as Answer
}

/** Asks, and must get it. */
export async function granted(store: Store, claim: Claim, why = 'must be granted'): Promise<Held> {
  const answer = await ask(store, claim)
  return mustBeGrant(answer, claim, why)
}

export function mustBeGrant(answer: Answer | undefined, claim: Claim, why = 'must be granted'): Held {
  if (answer?.granted !== true) assert.fail(`${why}: ${show(claim)} was answered ${show(answer)}`)
  assert.equal(typeof answer.token, 'bigint', 'a token is a bigint')
  assert.ok(answer.token > 0n, `a token is positive; it was ${answer.token}`)
  assert.ok(answer.ttlMs <= claim.ttlMs, `never more than was asked for: ${answer.ttlMs} of ${claim.ttlMs} ms`)
  assert.ok(answer.ttlMs > 0, `a lease without time is no lease: ${answer.ttlMs} ms`)
  return { ...answer, key: claim.key }
}

/** Asks, and must be refused. */
export async function refused(store: Store, claim: Claim, why = 'must be refused'): Promise<Refusal> {
  return mustBeRefusal(await ask(store, claim), claim, why)
}

export function mustBeRefusal(answer: Answer | undefined, claim: Claim, why = 'must be refused'): Refusal {
  if (answer?.granted !== false) assert.fail(`${why}: ${show(claim)} was answered ${show(answer)}`)
  return answer
}

/** The grant, if it was one. An outage is not a refusal. */
export async function tried(store: Store, claim: Claim): Promise<Held | undefined> {
  const answer = await ask(store, claim)
  if (answer.granted === 'unknown') assert.fail(`must be decided: ${show(claim)} was answered ${show(answer)}`)
  return answer.granted ? mustBeGrant(answer, claim) : undefined
}

export async function renew(store: Store, lease: Lease, ttlMs: number, value?: string): Promise<Renewed['outcome']> {
  const { key, owner } = lease
  const answers = await store.renew([value === undefined ? { key, owner, ttlMs } : { key, owner, ttlMs, value }])
  assert.equal(answers.length, 1, 'one renewal, one answer')
  const [answer] = answers
  if (answer?.outcome === 'ours') assert.ok(answer.ttlMs > 0, `a renewed lease has time: ${answer.ttlMs} ms`)
  return (answer as Renewed).outcome
}

export async function release(store: Store, lease: Lease): Promise<Released['outcome']> {
  const answers = await store.release([{ key: lease.key, owner: lease.owner }])
  assert.equal(answers.length, 1, 'one release, one answer')
  return (answers[0] as Released).outcome
}

/** Releases what must be ours. */
export async function letGo(store: Store, lease: Lease): Promise<void> {
  assert.equal(await release(store, lease), 'released', `${show(lease)} was ours until now`)
}

export async function take(store: Store, request: TakeRequest): Promise<TakeAnswer> {
  assert.ok(store.take, 'the store has take')
  const answers = await store.take([request])
  assert.equal(answers.length, 1, 'one request, one answer')
  return mustBeDecided(answers[0])
}

export function mustBeDecided(answer: Awaited<ReturnType<NonNullable<Store['take']>>>[number] | undefined): TakeAnswer {
  if (!answer || 'granted' in answer) assert.fail(`must be decided; it was answered ${show(answer)}`)
  return answer
}

/** The documented way to say no: an `UnsupportedError`, thrown or as the answer of each item, and nothing was granted. */
export async function unsupported(store: Store, claims: Claim[], options?: { atomic?: boolean }): Promise<void> {
  let answers: Answer[]
  try {
    answers = await store.acquire(claims, options)
  } catch (error) {
    assert.ok(error instanceof UnsupportedError, `an UnsupportedError; it was ${show(error)}`)
    return
  }
  for (const answer of answers) {
    const said = answer.granted === 'unknown' ? answer.error : answer
    assert.ok(said instanceof UnsupportedError, `an UnsupportedError; it was ${show(said)}`)
  }
}

/** Everything of a batch, in as many calls as the store asks for. */
export async function inBatches<I, O>(
  store: Store,
  items: readonly I[],
  call: (part: readonly I[]) => O[] | Promise<O[]>,
): Promise<O[]> {
  const size = store.maxBatch ?? items.length
  const answers: O[] = []
  for (let at = 0; at < items.length; at += size) {
    const part = items.slice(at, at + size)
    const said = await call(part)
    assert.equal(said.length, part.length, 'every item is answered')
    answers.push(...said)
  }
  return answers
}

export function show(value: unknown): string {
  return inspect(value, { breakLength: Number.POSITIVE_INFINITY, depth: 3 })
}
