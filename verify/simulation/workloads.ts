import type { Operation } from './actor.js'
import type { Random } from './random.js'
import type { Shape } from './shape.js'
import type { Weather } from './weather.js'

export interface Setting {
  actors: number
  lastsMs: number
  shape: Shape
  calm: boolean
}

/** A kind of schedule. */
export interface Workload {
  name: string
  fits: (shape: Shape) => boolean
  lastsMs?: number
  weather?: (random: Random, lastsMs: number) => Weather | undefined
  operations: (random: Random, setting: Setting) => Operation[]
}

const TTLS = [60, 150, 400, 1_000, 1_500, 5_000, 30_000]
const WAITS = [0, 40, 200, 200, 1_000, 3_000, 3_000, 10_000, Number.POSITIVE_INFINITY]

/** Options that defined calls share. Undefined ones are left out, so that a printed plan is short. */
function some<T extends object>(options: T): T {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as T
}

function lockOperation(random: Random, setting: Setting, more: object): Operation {
  const wait = random.pick(WAITS)
  const endless = wait === Number.POSITIVE_INFINITY
  const ttl = random.pick(TTLS)
  return some({
    id: 0,
    actor: random.below(setting.actors),
    at: Math.round(random.next() ** 2 * setting.lastsMs * 0.8),
    type: 'lock',
    name: random.pick(['a', 'a', 'a', 'b']),
    style: random.pick(['acquire', 'acquire', 'with', 'with', 'try']),
    ttl,
    wait,
    hold: Math.round(random.pick([0, 1, 30, 300, ttl * 1.5, 1_200]) * random.between(0.5, 1)) % 4_000,
    reads: random.pick([undefined, 'early', 'late']),
    extend: random.chance(0.1) ? random.pick(TTLS) : undefined,
    maxHold: random.chance(0.15) ? random.pick([100, 400, 1_000, 2_000]) : undefined,
    autoRenew: random.chance(0.1) ? false : undefined,
    abortAfter: endless || random.chance(0.1) ? Math.round(random.spread(1, setting.lastsMs)) : undefined,
    ...more,
  })
}

function many(random: Random, make: () => Operation): Operation[] {
  return Array.from({ length: 4 + random.below(16) }, make)
}

/** Now and then somebody closes, crashes, or takes everything away. */
function chaos(random: Random, setting: Setting, name = 'a', kind?: string): Operation[] {
  const operations: Operation[] = []
  const add = (chance: number, type: string, more: object = {}): void => {
    if (!random.chance(chance)) return
    const at = Math.round(random.next() * setting.lastsMs)
    operations.push(some({ id: 0, actor: random.below(setting.actors), at, type, name, ...more }))
  }
  if (setting.calm) {
    // Mostly left alone: the strict promises are about instances from which nothing is taken.
    if (random.chance(0.7)) return operations
  }
  add(0.2, 'releaseAll')
  add(0.15, 'close', { grace: random.pick([0, 0, 50, 500]) })
  if (!setting.shape.inProcess) add(0.15, 'crash')
  add(0.1, 'forceRelease', { kind })
  return operations
}

const anywhere = (): boolean => true

export const WORKLOADS: readonly Workload[] = [
  {
    name: 'lock',
    fits: anywhere,
    operations: (random, setting) => [
      ...many(random, () => lockOperation(random, setting, {})),
      ...chaos(random, setting),
    ],
  },
  {
    name: 'shared',
    fits: anywhere,
    operations: (random, setting) => [
      ...many(random, () => lockOperation(random, setting, { mode: random.pick(['shared', 'shared', undefined]) })),
      ...chaos(random, setting),
    ],
  },
  {
    name: 'semaphore',
    fits: anywhere,
    operations: (random, setting) => {
      const permits = random.pick([2, 2, 3])
      const weight = (): number | undefined =>
        setting.shape.counting ? random.pick([undefined, undefined, 2]) : undefined
      return [
        ...many(random, () => lockOperation(random, setting, some({ name: 'a', permits, weight: weight() }))),
        ...chaos(random, setting, 'a', 'semaphore'),
      ]
    },
  },
  {
    name: 'group',
    fits: anywhere,
    operations: (random, setting) => [
      ...many(random, () => {
        const wait = random.pick([0, 300, 1_000, 3_000])
        const names = [['a', 'b'], ['b', 'a'], ['a', 'b', 'c'], ['c', 'a'], ['b']][random.below(5)] as string[]
        const style = random.pick(['acquire', 'with'])
        const abortAfter = random.chance(0.15) ? Math.round(random.spread(1, setting.lastsMs)) : undefined
        const plain = lockOperation(random, setting, { hold: random.pick([1, 20, 200]) })
        const { id, actor, at, name, ttl, hold } = plain
        return random.chance(0.25)
          ? plain
          : some({ id, actor, at, type: 'group', name, names, style, ttl, hold, wait, abortAfter })
      }),
      ...chaos(random, setting),
    ],
  },
]
