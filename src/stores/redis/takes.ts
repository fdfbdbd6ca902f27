import type { Limit, TakeRequest } from '../../store.js'
import type { Keys } from './keys.js'

/** The keys of take.lua. */
export function metersOf(requests: readonly TakeRequest[], keys: Keys): string[] {
  const meters: string[] = []
  for (const { key, limits } of requests) {
    for (let i = 0; i < limits.length; i++) meters.push(keys.meter(key, i, limits[i] as Limit))
  }
  return meters
}

/** The arguments of take.lua, which says how. Most takes are of one limiter and cost the same: that is then said once. */
export function termsOf(requests: readonly TakeRequest[]): string[] {
  const sets = new Map<readonly Limit[], number>()
  const args: string[] = ['']
  for (const { limits } of requests) {
    if (sets.has(limits)) continue
    sets.set(limits, sets.size + 1)
    args.push(String(limits.length))
    for (const { algorithm, limit, perMs, burst } of limits) {
      args.push(algorithm === 'token-bucket' ? 'b' : 'w', String(limit), String(perMs), String(burst))
    }
  }
  args[0] = String(sets.size)
  const [first] = requests
  if (first && sets.size === 1 && requests.every(({ cost }) => cost === first.cost)) {
    args.push('=', '1', String(first.cost))
  } else for (const { limits, cost } of requests) args.push(String(sets.get(limits)), String(cost))
  return args
}
