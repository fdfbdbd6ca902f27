/**
 * Rate limits in the file: the arithmetic of `kit/rate.ts` on a row per key.
 *
 * @module
 */
import { type Meter, emptyMeter, hasChanged, idleAt, takeFrom } from '../../kit/rate.js'
import type { TakeAnswer, TakeRequest } from '../../store.js'
import type { Statements } from './statements.js'

/** Inside a write transaction. */
export function take(sql: Statements, request: TakeRequest, now: number): TakeAnswer {
  const { key, limits } = request
  // Limits that were configured anew begin anew.
  const shape = limits.map((limit) => `${limit.algorithm}/${limit.perMs}`).join()
  const row = sql.findMeters.get(key) as { shape: string; meters: string } | undefined
  const begunAnew = row !== undefined && row.shape !== shape
  const meters = row && !begunAnew ? parse(row.meters) : limits.map(emptyMeter)
  const answer = takeFrom(meters, request, now)
  if (hasChanged(limits, answer) || begunAnew)
    sql.setMeters.run(key, idleAt(meters, limits), now, shape, format(meters))
  return answer
}

/** Numbers only: a sliding window may remember thousands of takes. */
function format(meters: readonly Meter[]): string {
  return JSON.stringify(meters.map(({ fullAt, taken }) => [fullAt, ...taken.flatMap(({ at, cost }) => [at, cost])]))
}

function parse(text: string): Meter[] {
  return (JSON.parse(text) as number[][]).map(([fullAt = 0, ...rest]) => {
    const taken: Meter['taken'] = []
    for (let i = 0; i < rest.length; i += 2) taken.push({ at: rest[i] as number, cost: rest[i + 1] as number })
    return { fullAt, taken }
  })
}
