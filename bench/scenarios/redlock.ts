// Five independent Redis servers: all up, one frozen, two dead.
import type { Library, PlaceKind, Scenario } from '../harness/types.js'
import { inFlight, type OpenLocker, serially } from '../libraries/locker.js'
import {
  bareQuorum,
  leaseholdRedlock,
  redisSemaphoreQuorum,
  redlock4Quorum,
  redlock5Quorum,
  redlockUniversalQuorum,
} from '../libraries/redlock.js'

const IN_FLIGHT = 32

const LOCKERS: Record<string, Omit<Library, 'open'> & { locker: OpenLocker }> = {
  'bare quorum': { kind: 'floor', locker: bareQuorum },
  leasehold: { kind: 'ours', locker: leaseholdRedlock },
  'redlock@5': { kind: 'peer', locker: redlock5Quorum },
  'redlock@4': { kind: 'peer', locker: redlock4Quorum },
  'redis-semaphore': { kind: 'peer', locker: redisSemaphoreQuorum },
  'redlock-universal': { kind: 'peer', locker: redlockUniversalQuorum },
}

const librariesWith = (workload: (locker: OpenLocker) => Library['open']): Record<string, Library> =>
  Object.fromEntries(
    Object.entries(LOCKERS).map(([name, { locker, ...library }]) => [name, { ...library, open: workload(locker) }]),
  )

function damaged(place: PlaceKind, name: string, title: string, target: string): Scenario {
  return {
    name,
    title,
    target,
    place,
    metrics: [{ name: 'time per lock', unit: 'µs', better: 'lower' }],
    seconds: 25,
    libraries: {
      ...librariesWith(serially),
      'leasehold, all five up': { kind: 'ours', place: 'redlock', open: serially(leaseholdRedlock) },
    },
  }
}

export const redlock: Scenario[] = [
  {
    name: 'redlock-serial',
    title: 'one lock after the other on five servers, 256 names',
    target: '≤ 1.75x of the floor',
    place: 'redlock',
    metrics: [{ name: 'time per lock', unit: 'µs', better: 'lower' }],
    seconds: 30,
    libraries: librariesWith(serially),
  },
  {
    name: 'redlock-in-flight',
    title: `${IN_FLIGHT} locks in flight on five servers, 256 names`,
    target: '≥ 4x of every peer',
    place: 'redlock',
    metrics: [{ name: 'locks per second', unit: '/s', better: 'higher' }],
    seconds: 30,
    libraries: librariesWith((locker) => inFlight(locker, IN_FLIGHT)),
  },
  damaged(
    'redlock-frozen',
    'redlock-frozen',
    'one lock after the other, one of five servers is frozen',
    '≤ 1.1x of our own time with all five up',
  ),
  damaged(
    'redlock-dead',
    'redlock-dead',
    'one lock after the other, two of five servers are dead',
    'no row slower than before',
  ),
]
