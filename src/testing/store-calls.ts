/**
 * Single calls to a store, with the checks that every answer has to pass.
 *
 * @module
 */
import { strict as assert } from 'node:assert'
import { inspect } from 'node:util'
import { batchSize } from '../core/batch-size.js'
import { UnsupportedError } from '../errors.js'
import type { TestContext } from './test-context.js'
import type {
  Answer,
  BatchSizes,
  Claim,
  Grant,
  LeaseId,
  Refusal,
  Released,
  Renewed,
  Store,
  TakeAnswer,
  TakeRequest,
} from '../store.js'

/** A grant, with the key and owner that a renewal or a release of it needs. */
export interface Held extends Grant, LeaseId {
  token: bigint
}

export async function acquireOne(store: Store, claim: Claim): Promise<Answer> {
  const answers = await store.acquire([claim])
  assert.equal(answers.length, 1, 'one claim has one answer')
  return answers[0] as Answer
}

/** Acquires one claim, which the store must grant. */
export async function granted(store: Store, claim: Claim, why = 'must be granted'): Promise<Held> {
  const answer = await acquireOne(store, claim)
  return mustBeGrant(answer, claim, why)
}

export function mustBeGrant(answer: Answer | undefined, claim: Claim, why = 'must be granted'): Held {
  if (answer?.granted !== true) assert.fail(`${why}: ${show(claim)} was answered ${show(answer)}`)
  assert.equal(typeof answer.token, 'bigint', 'a token is a bigint')
  assert.ok(answer.token > 0n, `a token is positive; it was ${answer.token}`)
  assert.ok(
    answer.ttlMs <= claim.ttlMs,
    `a grant lasts no longer than the claim asked for: ${answer.ttlMs} of ${claim.ttlMs} ms`,
  )
  assert.ok(answer.ttlMs > 0, `a grant has time left: ${answer.ttlMs} ms`)
  return { ...answer, key: claim.key }
}

/** Acquires one claim, which the store must refuse. */
export async function refused(store: Store, claim: Claim, why = 'must be refused'): Promise<Refusal> {
  return mustBeRefusal(await acquireOne(store, claim), claim, why)
}

export function mustBeRefusal(answer: Answer | undefined, claim: Claim, why = 'must be refused'): Refusal {
  if (answer?.granted !== false) assert.fail(`${why}: ${show(claim)} was answered ${show(answer)}`)
  return answer
}

/** Returns the grant, or undefined after a refusal. `unknown` fails: an outage is not a refusal. */
export async function tryAcquire(store: Store, claim: Claim): Promise<Held | undefined> {
  const answer = await acquireOne(store, claim)
  if (answer.granted === 'unknown') assert.fail(`must be decided: ${show(claim)} was answered ${show(answer)}`)
  return answer.granted ? mustBeGrant(answer, claim) : undefined
}

/**
 * Tries a claim with a short `ttlMs`. Returns undefined also if the store needed as long as the lease would have lasted:
 * on a slow machine it is right not to grant it.
 */
export async function tryBriefly(t: TestContext, store: Store, claim: Claim): Promise<Held | undefined> {
  const sentAt = t.now()
  const answer = await acquireOne(store, claim)
  if (answer.granted === 'unknown' && t.now() - sentAt >= claim.ttlMs / 2) return undefined
  if (answer.granted === 'unknown') assert.fail(`must be decided: ${show(claim)} was answered ${show(answer)}`)
  return answer.granted ? mustBeGrant(answer, claim) : undefined
}

/** Acquires a claim with a short `ttlMs`, which the store must grant as soon as the machine is fast enough for it. */
export function grantedBriefly(t: TestContext, store: Store, claim: Claim): Promise<Held> {
  return t.until('a short lease is granted', () => tryBriefly(t, store, claim))
}

export async function renew(store: Store, lease: LeaseId, ttlMs: number, value?: string): Promise<Renewed['outcome']> {
  const { key, owner } = lease
  const answers = await store.renew([value === undefined ? { key, owner, ttlMs } : { key, owner, ttlMs, value }])
  assert.equal(answers.length, 1, 'one renewal has one answer')
  const [answer] = answers
  if (answer?.outcome === 'ours') assert.ok(answer.ttlMs > 0, `a renewed lease has time left: ${answer.ttlMs} ms`)
  return (answer as Renewed).outcome
}

export async function release(store: Store, lease: LeaseId): Promise<Released['outcome']> {
  const answers = await store.release([{ key: lease.key, owner: lease.owner }])
  assert.equal(answers.length, 1, 'one release has one answer')
  return (answers[0] as Released).outcome
}

/** Releases a lease that its owner must still hold. */
export async function mustRelease(store: Store, lease: LeaseId): Promise<void> {
  assert.equal(await release(store, lease), 'released', `${show(lease)} was held until this release`)
}

export async function take(store: Store, request: TakeRequest): Promise<TakeAnswer> {
  assert.ok(store.take, 'the store has take()')
  const answers = await store.take([request])
  assert.equal(answers.length, 1, 'one take request has one answer')
  return mustBeDecided(answers[0])
}

export function mustBeDecided(answer: Awaited<ReturnType<NonNullable<Store['take']>>>[number] | undefined): TakeAnswer {
  if (!answer || 'granted' in answer) assert.fail(`must be decided; it was answered ${show(answer)}`)
  return answer
}

/** Asserts the documented way to decline: an `UnsupportedError`, thrown or as the answer of each item, and no grant. */
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

/** Sends all items, in as many calls as the `maxBatch` of the store requires. */
export async function inBatches<I, O>(
  store: Store,
  kind: keyof BatchSizes,
  items: readonly I[],
  call: (part: readonly I[]) => O[] | Promise<O[]>,
): Promise<O[]> {
  const size = batchSize(store, kind)
  const answers: O[] = []
  for (let at = 0; at < items.length; at += size) {
    const part = items.slice(at, at + size)
    const said = await call(part)
    assert.equal(said.length, part.length, 'every item is answered')
    answers.push(...said)
  }
  return answers
}

/** Sends items as the core does: one call per partition, all at once. Each answer has the index of its item. */
export async function inPartitions<I extends { key: string }, O>(
  store: Store,
  kind: keyof BatchSizes,
  items: readonly I[],
  call: (part: readonly I[]) => O[] | Promise<O[]>,
): Promise<O[]> {
  const groups = new Map<string | number, number[]>()
  for (const [i, { key }] of items.entries()) {
    const partition = store.partition?.(key) ?? 0
    groups.set(partition, [...(groups.get(partition) ?? []), i])
  }
  const answers: O[] = []
  const send = async (group: readonly number[]): Promise<void> => {
    const part = group.map((i) => items[i] as I)
    for (const [at, answer] of (await inBatches(store, kind, part, call)).entries())
      answers[group[at] as number] = answer
  }
  await Promise.all([...groups.values()].map(send))
  return answers
}

export function show(value: unknown): string {
  return inspect(value, { breakLength: Number.POSITIVE_INFINITY, depth: 3 })
}
