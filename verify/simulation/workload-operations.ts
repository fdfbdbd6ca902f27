import type { Operation } from './actor.js'
import type { Random } from './random.js'
import type { Shape } from './shape.js'

export interface Setting {
  /** Holders hold long and waiters wait long: most grants are hand-offs. */
  contended: boolean
  actors: number
  lastsMs: number
  shape: Shape
  calm: boolean
  /** Leases are short, and nothing distracts from hand-offs and expired leases (`Weather.aimed`). */
  aimed: boolean
}

export const TTLS: readonly number[] = [60, 150, 400, 1_000, 1_500, 5_000, 30_000]
const WAITS = [0, 40, 200, 200, 1_000, 3_000, 3_000, 10_000, Number.POSITIVE_INFINITY]

/** Options that defined calls share. Undefined ones are left out, so that a printed plan is short. */
export function some<T extends object>(options: T): T {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as T
}

export function lockOperation(random: Random, setting: Setting, more: object): Operation {
  if (setting.aimed) return aimedOperation(random, setting, more)
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
    shutdown: random.chance(0.2) ? true : undefined,
    ...more,
  })
}

/** Short leases that are held for several times their ttl, and wanted by waiters with patience. */
function aimedOperation(random: Random, setting: Setting, more: object): Operation {
  return some({
    id: 0,
    actor: random.below(setting.actors),
    at: Math.round(random.next() ** 1.5 * setting.lastsMs * 0.6),
    type: 'lock',
    name: 'a',
    style: random.pick(['acquire', 'with']),
    ttl: random.pick([60, 150, 400, 1_000, 1_500]),
    wait: random.pick([3_000, 10_000]),
    hold: Math.round(random.pick([30, 300, 1_500, 4_000]) * random.between(0.5, 1)),
    ...more,
  })
}

/** Some of them come in bursts: several in one turn of one process, with the same patience. */
export function many(random: Random, make: () => Operation, least = 4, most = 20): Operation[] {
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

/** An operator takes away what is held. */
export function taking(random: Random, setting: Setting, name: string, kind?: string): Operation {
  const at = Math.round(random.next() * setting.lastsMs)
  return some({ id: 0, actor: random.below(setting.actors), at, type: 'forceRelease', name, kind })
}

/** Now and then somebody closes, crashes, or takes everything away. */
export function chaos(random: Random, setting: Setting, name = 'a', kind?: string): Operation[] {
  const operations: Operation[] = []
  const add = (chance: number, type: string, more: object = {}): void => {
    if (!random.chance(chance)) return
    const at = Math.round(random.next() * setting.lastsMs)
    operations.push(some({ id: 0, actor: random.below(setting.actors), at, type, name, ...more }))
  }
  if (setting.aimed) return operations
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
