/**
 * What a store may answer. Whatever else comes is a mistake of the store and counts as no answer: taken as it is, a grant
 * without a token would go to a user, and a lease without an end would never be due.
 *
 * @module
 */
import type { Answer, Failure, Released, Renewed, TakeAnswer } from '../store.js'

type Loose<T> = { [K in T extends unknown ? keyof T : never]?: unknown } | null | undefined

export function isAnswer(value: unknown): value is Answer {
  const answer = value as Loose<Answer>
  const granted = answer?.granted
  if (granted === true) {
    return typeof answer?.token === 'bigint' && typeof answer.owner === 'string' && isDuration(answer.ttlMs)
  }
  return granted === false || granted === 'unknown'
}

export function isRenewed(value: unknown): value is Renewed {
  const answer = value as Loose<Renewed>
  const outcome = answer?.outcome
  if (outcome === 'ours') return isDuration(answer?.ttlMs)
  if (outcome === 'granted') return typeof answer?.token === 'bigint' && isDuration(answer.ttlMs)
  if (outcome === 'waiting') return typeof answer?.ahead === 'number'
  return outcome === 'gone' || outcome === 'unknown'
}

export function isReleased(value: unknown): value is Released {
  const outcome = (value as Loose<Released>)?.outcome
  return outcome === 'released' || outcome === 'gone' || outcome === 'unknown'
}

export function isTaken(value: unknown): value is TakeAnswer | Failure {
  const answer = value as Loose<TakeAnswer | Failure>
  if (answer?.granted === 'unknown') return true
  return typeof answer?.allowed === 'boolean' && isNumber(answer.remaining) && isNumber(answer.retryAfterMs)
}

/** A list of holders, one page of such a list or its end, one name with its queue, or the time. */
export function isView(value: unknown): boolean {
  if (typeof value === 'number') return Number.isFinite(value)
  const view = (value ?? {}) as { holders?: unknown; waiters?: unknown; done?: unknown; value?: unknown }
  if (Array.isArray(value) || (Array.isArray(view.holders) && Array.isArray(view.waiters))) return true
  return view.done === true || (view.done === false && Array.isArray(view.value))
}

function isDuration(value: unknown): boolean {
  return typeof value === 'number' && value >= 0
}

function isNumber(value: unknown): boolean {
  return typeof value === 'number' && !Number.isNaN(value)
}
