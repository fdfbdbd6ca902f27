import type { Operation } from './actor.js'
import type { Random } from './random.js'
import type { Shape } from './shape.js'
import { latePushes, slowAnswers, type Weather } from './weather.js'
import { chaos, lockOperation, many, type Setting, some, taking, TTLS } from './workload-operations.js'

/** A kind of schedule. */
export interface Workload {
  name: string
  fits: (shape: Shape) => boolean
  lastsMs?: number
  /** All of it may be done again in the same processes. */
  repeats?: boolean
  weather?: (random: Random, lastsMs: number) => Weather | undefined
  operations: (random: Random, setting: Setting) => Operation[]
}

const anywhere = (): boolean => true
/** What Redlock refuses: records that outlive its longest lease, and rates. */
const onOneServer = (shape: Shape): boolean => !shape.redlock

export const WORKLOADS: readonly Workload[] = [
  {
    name: 'lock',
    fits: anywhere,
    repeats: true,
    weather: (random) => (random.chance(0.15) ? slowAnswers(random) : undefined),
    operations: (random, setting) => [
      ...many(random, () => lockOperation(random, setting, {})),
      ...chaos(random, setting),
    ],
  },
  {
    // Several waiters of one process come together and hold for a short time: the lease is passed on between them.
    name: 'tenancy',
    fits: onOneServer,
    repeats: true,
    weather: (random) => {
      if (random.chance(0.15)) return latePushes(random)
      return random.chance(0.2) ? slowAnswers(random) : undefined
    },
    operations: (random, setting) => {
      const ttl = random.pick([150, 400, 1_500, 5_000, 30_000])
      const make = (style: 'quick' | 'stream' | 'mixed'): Operation => {
        const wait = style === 'stream' ? 3_000 : random.pick([40, 1_000, 3_000])
        const plain = { name: 'a', ttl, wait, autoRenew: undefined, maxHold: undefined, extend: undefined }
        if (style !== 'mixed') return lockOperation(random, setting, { ...plain, hold: style === 'quick' ? 0 : 5 })
        const hold = random.pick([0, 0, 1, 2, 5, 10, 30, 300])
        const extend = random.chance(0.05) ? random.pick([150, 1_000]) : undefined
        const others = [{ mode: 'shared' }, { ttl: 400 }, { autoRenew: false }, { maxHold: 200 }]
        // Some want something else: the lease is not passed on to them.
        const more = random.chance(0.9) ? {} : random.pick(others)
        return lockOperation(random, setting, some({ ...plain, hold, extend, ...more }))
      }
      const operations: Operation[] = []
      const bursts = 2 + random.below(8)
      for (let burst = 0; burst < bursts; burst++) {
        // quick: more than one grant serves. stream: they go on coming while another process waits.
        const style = random.pick(['quick', 'stream', 'mixed', 'mixed', 'mixed', 'mixed', 'mixed', 'mixed'] as const)
        const first = make(style)
        const size = { quick: 40 + random.below(30), stream: 30, mixed: 2 + random.below(random.pick([6, 6, 30])) }[
          style
        ]
        const gapMs = { quick: 0, stream: 3, mixed: random.pick([0, 0, 1, 4]) }[style]
        for (let i = 0; i < size; i++) {
          const way = random.pick(['acquire', 'with'])
          operations.push({ ...make(style), actor: first.actor, at: first.at + i * gapMs, style: way })
        }
        if (style !== 'stream') continue
        const actor = (first.actor + 1) % setting.actors
        operations.push({ ...make(style), actor, at: first.at + 10, style: 'acquire' })
      }
      const forced = random.chance(0.2) ? many(random, () => taking(random, setting, 'a'), 1, 4) : []
      return [...operations, ...forced, ...chaos(random, setting)]
    },
  },
  {
    // Waits end one after the other: the time of a waiter is up when its first request has just left.
    name: 'impatient',
    fits: anywhere,
    repeats: true,
    operations: (random, setting) => {
      const make = (): Operation => lockOperation(random, setting, { name: 'a', wait: random.pick([40, 200, 1_000]) })
      const operations = many(random, make, 6, 20)
      for (const [i, before] of operations.slice(0, -1).entries()) {
        const { actor, at, wait } = before
        if (random.chance(0.6)) Object.assign(operations[i + 1] as Operation, { actor, wait, at: at + random.below(4) })
      }
      return [...operations, ...chaos(random, setting)]
    },
  },
  {
    name: 'shared',
    fits: anywhere,
    repeats: true,
    weather: (random) => (random.chance(0.2) ? latePushes(random) : undefined),
    operations: (random, setting) => [
      ...many(random, () => lockOperation(random, setting, { mode: random.pick(['shared', 'shared', undefined]) })),
      ...chaos(random, setting),
    ],
  },
  {
    name: 'semaphore',
    fits: anywhere,
    repeats: true,
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
    repeats: true,
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
    // What is held is taken away: by an operator, again and again.
    name: 'taken',
    fits: anywhere,
    repeats: true,
    operations: (random, setting) => {
      const permits = random.chance(0.3) ? 2 : undefined
      const held = (): Operation =>
        lockOperation(
          random,
          { ...setting, contended: true },
          some({ permits, autoRenew: random.chance(0.15) ? false : undefined, extend: undefined, name: 'a' }),
        )
      const kind = permits === undefined ? undefined : 'semaphore'
      return [...many(random, held, 3, 12), ...many(random, () => taking(random, setting, 'a', kind), 1, 5)]
    },
  },
  {
    name: 'run-once',
    fits: onOneServer,
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
    repeats: true,
    weather: (random) => (random.chance(0.15) ? slowAnswers(random) : undefined),
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
            ttl: random.pick(setting.aimed ? [150, 400] : TTLS.slice(1)),
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
    fits: onOneServer,
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
    fits: onOneServer,
    repeats: true,
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
    repeats: true,
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
    repeats: true,
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
