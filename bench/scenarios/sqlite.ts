// Processes of one machine, on SQLite and on lock files.
import type { Scenario } from '../harness/types.js'
import { driveHandoffs, takingTurns } from '../libraries/contention.js'
import { leaseholdSqlite, lockFile, properLockfile } from '../libraries/files.js'
import { inFlight, serially } from '../libraries/locker.js'

const IN_FLIGHT = 64
const RETRY_MS = 5
const HANDOFF = 'hand-off'

export const sqlite: Scenario[] = [
  {
    name: 'sqlite-serial',
    title: 'one lock after the other on SQLite, 256 names',
    target: 'no row slower than before',
    place: 'folder',
    metrics: [{ name: 'time per lock', unit: 'µs', better: 'lower' }],
    seconds: 12,
    libraries: {
      'lock file': { kind: 'floor', open: serially(lockFile) },
      leasehold: { kind: 'ours', open: serially(leaseholdSqlite) },
      'proper-lockfile': { kind: 'peer', open: serially(properLockfile()) },
    },
  },
  {
    name: 'sqlite-in-flight',
    title: `${IN_FLIGHT} locks in flight on SQLite, 256 names`,
    target: 'no row slower than before',
    place: 'folder',
    metrics: [{ name: 'locks per second', unit: '/s', better: 'higher' }],
    seconds: 12,
    libraries: {
      'lock file': { kind: 'floor', open: inFlight(lockFile, IN_FLIGHT) },
      leasehold: { kind: 'ours', open: inFlight(leaseholdSqlite, IN_FLIGHT) },
      'proper-lockfile': { kind: 'peer', open: inFlight(properLockfile(), IN_FLIGHT) },
    },
  },
  {
    name: 'sqlite-handoff',
    title: 'from the release in one process to the lock in another on SQLite',
    target: 'no row slower than before',
    place: 'folder',
    processes: 2,
    metrics: [{ name: HANDOFF, unit: 'ms', better: 'lower' }],
    seconds: 20,
    sliceMs: 600,
    libraries: {
      'lock file, watched': { kind: 'floor', open: takingTurns(lockFile) },
      leasehold: { kind: 'ours', open: takingTurns(leaseholdSqlite) },
      'proper-lockfile, tuned': {
        kind: 'peer',
        settings: `retry every ${RETRY_MS} ms`,
        open: takingTurns(properLockfile(RETRY_MS)),
      },
    },
    drive: driveHandoffs(HANDOFF),
  },
]
