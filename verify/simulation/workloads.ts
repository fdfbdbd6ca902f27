import type { Operation } from './actor.js'
import type { Random } from './random.js'
import type { Shape } from './shape.js'
import { latePushes, type Weather } from './weather.js'

export interface Setting {
  /** Holders hold long and waiters wait long: most grants are hand-offs. */
  contended: boolean
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
  const { contended } = setting
  const wait = contended && random.chance(0.8) ? random.pick([1_000, 3_000, 3_000, 10_000]) : random.pick(WAITS)
  const endless = wait === Number.POSITIVE_INFINITY
  const ttl = random.pick(TTLS)
  const extend = random.chance(0.15) ? random.pick([150, 400, 1_000, 5_000]) : undefined
  // Half of those who extend by hand do without renewals, and hold for longer than they extended.
  const byHand = extend !== undefined && random.chance(0.5)
  const held = contended ? random.pick([30, 300, 1_500, 4_000]) : random.pick([0, 1, 30, 300, ttl * 1.5, 1_200])
  return some({
    id: 0,
    actor: random.below(setting.actors),
    at: Math.round(random.next() ** 2 * setting.lastsMs * 0.8),
    type: 'lock',
    name: contended ? 'a' : random.pick(['a', 'a', 'a', 'b']),
    style: random.pick(['acquire', 'acquire', 'with', 'with', 'try']),
    ttl,
    wait,
    hold: byHand ? Math.round(extend * 2.5) % 4_001 : Math.round(held * random.between(0.5, 1)) % 4_001,
    reads: random.pick([undefined, 'early', 'late']),
    extend,
    maxHold: random.chance(0.15) ? random.pick([100, 400, 1_000, 2_000]) : undefined,
    autoRenew: byHand || random.chance(0.1) ? false : undefined,
    abortAfter: endless || random.chance(0.1) ? Math.round(random.spread(1, setting.lastsMs)) : undefined,
    ...more,
  })
}

/** Some of them come in bursts: several in one turn of one process, with the same patience. */
function many(random: Random, make: () => Operation, least = 4, most = 20): Operation[] {
  const operations: Operation[] = []
  const bursts = random.chance(0.5) ? 0.4 : 0
  const count = least + random.below(most - least)
  for (let i = 0; i < count; i++) {
    const made = make()
    const before = operations.at(-1)
    if (before && random.chance(bursts)) {
      made.actor = before.actor
      made.at = before.at
      if (before['wait'] !== Number.POSITIVE_INFINITY && made['wait'] !== undefined)
        made['wait'] = before['wait'] ?? made['wait']
    }
    operations.push(made)
  }
  return operations
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
    weather: (random) => (random.chance(0.2) ? latePushes(random) : undefined),
    operations: (random, setting) => [
      ...many(random, () => lockOperation(random, setting, { mode: random.pick(['shared', 'shared', undefined]) })),
      ...chaos(random, setting),
    ],
  },
  {
    name: 'semaphore',
    fits: anywhere,
    weather: (random) => (random.chance(0.2) ? latePushes(random) : undefined),
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
  {
    name: 'run-once',
    fits: anywhere,
    operations: (random, setting) => {
      const make = (): Operation =>
        some({
          id: 0,
          actor: random.below(setting.actors),
          at: Math.round(random.next() ** 2 * setting.lastsMs * 0.8),
          type: 'runOnce',
          name: random.pick(['a', 'a', 'b']),
          ttl: random.pick(TTLS),
          wait: random.pick([0, 200, 3_000, 10_000]),
          hold: Math.round(random.pick([0, 1, 30, 300, 1_000]) * random.between(0.5, 1)),
          fails: random.chance(setting.contended ? 0.5 : 0.1) ? true : undefined,
          abortAfter: random.chance(0.1) ? Math.round(random.spread(1, setting.lastsMs)) : undefined,
        })
      const operations = [...many(random, make), ...chaos(random, setting)]
      // Somebody who comes when all is over finds the record.
      for (const name of ['a', 'b']) {
        const late = {
          ...make(),
          name,
          actor: random.below(setting.actors),
          at: setting.lastsMs + 500,
          wait: 10_000,
          fails: undefined,
          abortAfter: undefined,
        }
        operations.push(some(late))
      }
      return operations
    },
  },
  {
    name: 'election',
    fits: anywhere,
    operations: (random, setting) => {
      const candidates = Array.from(
        { length: setting.actors },
        (_, actor): Operation =>
          some({
            id: 0,
            actor,
            at: Math.round(random.next() ** 3 * setting.lastsMs),
            type: 'election',
            name: 'a',
            ttl: random.pick(TTLS.slice(1)),
            hold: Math.round(random.spread(20, 4_000)),
            lasts: Math.round(random.spread(100, setting.lastsMs)),
            resigns: random.chance(0.3) ? true : undefined,
          }),
      )
      const observers = Array.from(
        { length: random.below(2) },
        (): Operation => ({
          id: 0,
          actor: random.below(setting.actors),
          at: Math.round(random.next() * setting.lastsMs * 0.5),
          type: 'observe',
          name: 'a',
          lasts: Math.round(random.spread(200, setting.lastsMs)),
        }),
      )
      return [...candidates, ...observers, ...chaos(random, setting, 'a', 'election')]
    },
  },
  {
    name: 'schedule',
    fits: anywhere,
    lastsMs: 6_000,
    operations: (random, setting) => {
      const cron = random.pick(['* * * * * *', '*/2 * * * * *'])
      const options = some({
        overlap: random.pick([undefined, 'wait']),
        missed: random.pick([undefined, undefined, 'once']),
      })
      const hold = random.pick([0, 50, 700])
      const instances = Array.from(
        { length: setting.actors },
        (_, actor): Operation => ({
          id: 0,
          actor,
          at: Math.round(random.next() ** 2 * 2_000),
          type: 'schedule',
          name: 'job',
          cron,
          ttl: random.pick([400, 1_500, 5_000]),
          hold,
          lasts: 6_000 + 9_000 + random.below(500),
          options,
        }),
      )
      const some_ = chaos(random, setting, 'job', 'schedule').filter(({ type }) => type === 'crash')
      return [...instances, ...some_]
    },
  },
  {
    name: 'limiter',
    fits: anywhere,
    operations: (random, setting) => {
      const limit = random.pick([1, 5, 20])
      const rule = { limit, per: random.pick([200, 1_000]), burst: random.pick([limit, limit, limit * 2]) }
      return many(
        random,
        () => ({
          id: 0,
          actor: random.below(setting.actors),
          at: Math.round(random.next() ** 2 * setting.lastsMs * 0.8),
          type: 'limiter',
          name: 'api',
          key: random.pick(['u', 'u', 'v']),
          cost: random.pick([1, 1, 1, Math.min(2, rule.burst)]),
          rule,
          waits: random.chance(0.4),
          abortAfter: Math.round(random.spread(50, setting.lastsMs * 2)),
        }),
        8,
        30,
      )
    },
  },
  {
    name: 'web-locks',
    fits: (shape) => shape.queue,
    operations: (random, setting) => [
      ...many(random, () => {
        const kind = random.pick(['plain', 'plain', 'plain', 'steal', 'ifAvailable'])
        return some({
          id: 0,
          actor: random.below(setting.actors),
          at: Math.round(random.next() ** 2 * setting.lastsMs * 0.8),
          type: 'request',
          name: random.pick(['a', 'a', 'a', 'b']),
          mode: kind !== 'steal' && random.chance(0.4) ? 'shared' : undefined,
          steal: kind === 'steal' && !setting.calm ? true : undefined,
          ifAvailable: kind === 'ifAvailable' ? true : undefined,
          hold: Math.round(random.pick([0, 1, 30, 300]) * random.between(0.5, 1)),
          abortAfter:
            kind === 'plain' && random.chance(0.15) ? Math.round(random.spread(1, setting.lastsMs)) : undefined,
        })
      }),
      ...chaos(random, setting),
    ],
  },
  {
    name: 'distributed-lock',
    fits: anywhere,
    operations: (random, setting) => [
      ...many(random, () => {
        const ttl = random.pick(TTLS)
        return some({
          id: 0,
          actor: random.below(setting.actors),
          at: Math.round(random.next() ** 2 * setting.lastsMs * 0.8),
          type: 'distributed',
          name: random.pick(['a', 'a', 'b']),
          style: random.pick(['acquire', 'with']),
          ttl,
          wait: random.pick([0, 200, 1_000, 3_000]),
          hold: Math.round(random.pick([0, 1, 30, 300]) * random.between(0.5, 1)),
          keeps: random.chance(0.2) ? true : undefined,
          extend: random.chance(0.2) ? random.pick(TTLS) : undefined,
        })
      }),
      ...many(random, () => lockOperation(random, setting, {}), 0, 4),
    ],
  },
]
