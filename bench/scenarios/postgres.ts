// PostgreSQL: the lease table and session advisory locks. The first floor is bare advisory locks for both of them.
import type { Library, Scenario } from '../harness/types.js'
import { driveHandoffs, takingTurns } from '../libraries/contention.js'
import { inFlight, type OpenLocker, serially } from '../libraries/locker.js'
import {
  advisoryLock,
  bareAdvisory,
  bareTable,
  leaseholdAdvisory,
  leaseholdTable,
  verrouKnex,
} from '../libraries/postgres.js'

const IN_FLIGHT = 64
const RETRY_MS = 5
const HANDOFF = 'hand-off'

interface Group {
  prefix: string
  where: string
  targets: [serial: string, inFlight: string, handoff: string]
  ours: OpenLocker
  /** Floors and peers by workload; those that cannot wait are left out of hand-offs. */
  others: Record<string, Omit<Library, 'open'> & { locker: OpenLocker }>
  handoffs: Record<string, Omit<Library, 'open'> & { locker: OpenLocker }>
}

function librariesOf(
  all: Record<string, Omit<Library, 'open'> & { locker: OpenLocker }>,
  workload: (locker: OpenLocker) => Library['open'],
): Record<string, Library> {
  return Object.fromEntries(
    Object.entries(all).map(([name, { locker, ...library }]) => [name, { ...library, open: workload(locker) }]),
  )
}

function scenariosOf({ prefix, where, targets, ours, others, handoffs }: Group): Scenario[] {
  const mine = { leasehold: { kind: 'ours', locker: ours } } as const
  return [
    {
      name: `${prefix}-serial`,
      title: `one lock after the other on ${where}, 256 names`,
      target: targets[0],
      place: 'postgres',
      metrics: [{ name: 'time per lock', unit: 'µs', better: 'lower' }],
      seconds: 20,
      libraries: librariesOf({ ...others, ...mine }, serially),
    },
    {
      name: `${prefix}-in-flight`,
      title: `${IN_FLIGHT} locks in flight on ${where}, 256 names`,
      target: targets[1],
      place: 'postgres',
      metrics: [{ name: 'locks per second', unit: '/s', better: 'higher' }],
      seconds: 20,
      libraries: librariesOf({ ...others, ...mine }, (locker) => inFlight(locker, IN_FLIGHT)),
    },
    {
      name: `${prefix}-handoff`,
      title: `from the release in one process to the lock in another on ${where}`,
      target: targets[2],
      place: 'postgres',
      processes: 2,
      metrics: [{ name: HANDOFF, unit: 'ms', better: 'lower' }],
      seconds: 25,
      sliceMs: 600,
      libraries: librariesOf({ ...handoffs, ...mine }, takingTurns),
      drive: driveHandoffs(HANDOFF),
    },
  ]
}

export const postgres: Scenario[] = [
  ...scenariosOf({
    prefix: 'postgres-table',
    where: 'the lease table of PostgreSQL',
    targets: ['no row slower than before', '≥ 2.5x of the floor', '≤ 1.5x of the floor'],
    ours: leaseholdTable,
    others: {
      pg_try_advisory_lock: { kind: 'floor', settings: 'one connection', locker: bareAdvisory(false) },
      'INSERT … ON CONFLICT, DELETE': { kind: 'floor', settings: 'ten connections', locker: bareTable },
      verrou: { kind: 'peer', settings: 'knex', locker: verrouKnex() },
    },
    handoffs: {
      pg_advisory_lock: { kind: 'floor', locker: bareAdvisory(true) },
      verrou: { kind: 'peer', settings: 'knex', locker: verrouKnex() },
      'verrou, tuned': { kind: 'peer', settings: `knex, retry every ${RETRY_MS} ms`, locker: verrouKnex(RETRY_MS) },
    },
  }),
  ...scenariosOf({
    prefix: 'postgres-advisory',
    where: 'advisory locks of PostgreSQL',
    targets: ['≤ 1.15x of the floor', '≥ 8x of the floor', '≤ 1.2x of the floor'],
    ours: leaseholdAdvisory,
    others: {
      pg_try_advisory_lock: { kind: 'floor', settings: 'one connection', locker: bareAdvisory(false) },
      'advisory-lock': { kind: 'peer', locker: advisoryLock },
    },
    handoffs: {
      pg_advisory_lock: { kind: 'floor', locker: bareAdvisory(true) },
      'advisory-lock': { kind: 'peer', locker: advisoryLock },
    },
  }),
]
