/**
 * Rate limits in the file: the arithmetic of `util/rate.ts` on one row per key.
 *
 * @module
 */
import { type Meter, emptyMeter, hasChanged, idleAt, takeFrom } from '../../util/rate.js'
import type { TakeAnswer, TakeRequest } from '../../store.js'
import type { SqliteStatements } from './statements.js'

/** Must run inside a write transaction: it reads the meters and writes them back. */
export function take(sql: SqliteStatements, request: TakeRequest, now: number): TakeAnswer {
  const { key, limits } = request
  // Meters of limits that have been configured differently since mean nothing: such a key starts with empty ones.
  const shape = limits.map((limit) => `${limit.algorithm}/${limit.perMs}`).join()
  const row = sql.findMeters.get(key) as { shape: string; meters: string } | undefined
  const reconfigured = row !== undefined && row.shape !== shape
  const meters = row && !reconfigured ? parse(row.meters) : limits.map(emptyMeter)
  const answer = takeFrom(meters, request, now)
  if (hasChanged(limits, answer) || reconfigured)
    sql.setMeters.run(key, idleAt(meters, limits), now, shape, format(meters))
  return answer
}

/**
 * Numbers without field names, because a sliding window remembers hundreds of takes: fullAt, then at and cost of each take,
 * then since if there is any take.
 */
function format(meters: readonly Meter[]): string {
  return JSON.stringify(
    meters.map(({ fullAt, taken, since }) => [
      fullAt,
      ...taken.flatMap(({ at, cost }) => [at, cost]),
      ...(taken.length > 0 ? [since] : []),
    ]),
  )
}

function parse(text: string): Meter[] {
  return (JSON.parse(text) as number[][]).map(([fullAt = 0, ...rest]) => {
    const taken: Meter['taken'] = []
    for (let i = 0; i + 1 < rest.length; i += 2) taken.push({ at: rest[i] as number, cost: rest[i + 1] as number })
    return { fullAt, taken, since: rest.at(-1) ?? 0 }
  })
}
