// Rate limits: takes per second with 64 in flight, for one key, for 10,000 keys, and for keys that are used up.
import type { Calls, Context, Library, PlaceKind, Scenario } from '../harness/types.js'
import { loop } from './locker.js'

export const PER_MS = 60_000
const IN_FLIGHT = 64

export interface LimitCase {
  name: string
  title: string
  keys: number
  limit: number
}

export const LIMIT_CASES: readonly LimitCase[] = [
  { name: 'one-key', title: 'one key, all allowed', keys: 1, limit: 1e8 },
  { name: 'many-keys', title: '10,000 keys, all allowed', keys: 10_000, limit: 1e6 },
  { name: 'refused', title: '100 keys, nearly all refused', keys: 100, limit: 100 },
]

export type Take = (key: string) => Promise<unknown>
export type OpenTake = (context: Context, limit: LimitCase) => Promise<Take>

/** Keys in an order that looks random and is the same for all: neighbours in time are no neighbours in the table. */
function keysOf({ prefix }: Context, count: number): string[] {
  const keys: string[] = []
  for (let i = 0, at = 0; i < count; i++, at = (at + 7_919) % count) keys.push(`${prefix}:user:${at}`)
  return keys
}

const taking =
  (open: OpenTake, limit: LimitCase, batch: number) =>
  async (context: Context): Promise<Calls> => {
    const keys = keysOf(context, limit.keys)
    const take = await open(context, limit)
    const cycle = (n: number): Promise<unknown> => take(keys[n % keys.length] as string)
    return { run: ({ ms }: { ms: number }) => loop(cycle, { ms, tasks: IN_FLIGHT, batch }) }
  }

export function limitScenario(
  limit: LimitCase,
  group: { prefix: string; where: string; place: PlaceKind; target: string; batch: number },
  libraries: Record<string, Omit<Library, 'open'> & { take: OpenTake }>,
): Scenario {
  return {
    name: `${group.prefix}-${limit.name}`,
    title: `rate limit ${group.where}: ${limit.title}, ${IN_FLIGHT} in flight`,
    target: group.target,
    place: group.place,
    metrics: [{ name: 'takes per second', unit: '/s', better: 'higher' }],
    seconds: 14,
    sliceMs: 200,
    libraries: Object.fromEntries(
      Object.entries(libraries).map(([name, { take, ...library }]) => [
        name,
        { ...library, open: taking(take, limit, group.batch) },
      ]),
    ),
  }
}
