import type { Limit, LimitState, TakeRequest } from '../../store.js'
import type { Names } from './names.js'

const LETTERS = { 'token-bucket': 'b', 'sliding-window': 'w', 'fixed-window': 'f' } as const

/** The keys of take.lua. */
export function metersOf(requests: readonly TakeRequest[], names: Names): string[] {
  const meters: string[] = []
  for (const { key, limits } of requests) {
    for (let i = 0; i < limits.length; i++) meters.push(names.meter(key, i, limits[i] as Limit))
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
    for (const { algorithm, limit, perMs, burst, blockMs = '', blockGrowth = '' } of limits) {
      args.push(LETTERS[algorithm], String(limit), String(perMs), String(burst), String(blockMs), String(blockGrowth))
    }
  }
  args[0] = String(sets.size)
  const [first] = requests
  if (first && sets.size === 1 && requests.every((request) => costOf(request) === costOf(first))) {
    args.push('=', '1', costOf(first))
  } else for (const request of requests) args.push(String(sets.get(request.limits)), costOf(request))
  return args
}

function costOf({ cost, reset }: TakeRequest): string {
  return reset ? 'x' : String(cost)
}

/** Where each limit stands: flat, as take.lua tells it. */
export function statesOf(reply: unknown): LimitState[] | undefined {
  if (!Array.isArray(reply)) return undefined
  const states: LimitState[] = []
  for (let i = 0; i + 1 < reply.length; i += 2) {
    states.push({ remaining: Number(reply[i]), nextMs: Number(reply[i + 1]) / 1_000 })
  }
  return states
}
