// etcd, three nodes: bare calls of its API, the etcd3 package, and leasehold.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Calls, Context, Figures, Member, Scenario, Slice } from '../harness/types.js'
import { driveHandoffs, takingTurns } from '../libraries/contention.js'
import { bareEtcd, etcd3, etcd3With, leaseholdEtcd } from '../libraries/etcd.js'
import { gateway, nodeHttp2 } from '../libraries/etcd-clients.js'
import { inFlight, type OpenLocker, type Release, serially } from '../libraries/locker.js'
import { ownSeconds } from '../libraries/processor.js'

const IN_FLIGHT = 64
const HANDOFF = 'hand-off'
const HELD = 1_000
/** Every library renews after a third of it. */
const HELD_TTL_S = 6
const PERIOD_MS = (HELD_TTL_S * 1_000) / 3
const CHUNK = 100
const CLIENT = 'client CPU per 1,000 heartbeats'

async function inChunks<T>(items: readonly T[], work: (item: T) => unknown): Promise<void> {
  for (let i = 0; i < items.length; i += CHUNK) await Promise.all(items.slice(i, i + CHUNK).map(work))
}

const holding =
  (open: OpenLocker) =>
  async (context: Context): Promise<Calls> => {
    const locker = await open(context)
    const names = Array.from({ length: HELD }, (_, i) => `${context.prefix}:held:${i}`)
    const releases: Release[] = []
    return {
      async run({ ms }: { ms: number }): Promise<{ seconds: number; periods: number }> {
        // Held from the first warm-up to the end of the process: taken anew for each slice, what is measured would be code that V8 has
        // not compiled yet, and garbage of the acquisitions.
        if (releases.length === 0) {
          await inChunks(names, async (name) => releases.push(await locker.acquire(name)))
          await sleep(PERIOD_MS)
        }
        const periods = Math.max(1, Math.round(ms / PERIOD_MS))
        const before = ownSeconds()
        await sleep(periods * PERIOD_MS)
        const seconds = ownSeconds() - before
        return { seconds, periods }
      },
    }
  }

async function driveHeartbeats([member]: readonly Member[], { ms }: Slice): Promise<Figures> {
  const { seconds, periods } = await (member as Member).call<{ seconds: number; periods: number }>('run', { ms })
  return { [CLIENT]: (seconds * 1_000) / periods }
}

const bare = bareEtcd({ leasePerLock: true, waits: false })
const session = bareEtcd({ leasePerLock: false, waits: false })
const clients = { 'JSON gateway': gateway, '@grpc/grpc-js': session, 'node:http2': nodeHttp2 }

export const etcd: Scenario[] = [
  {
    name: 'etcd-serial',
    title: 'one lock after the other on etcd, 256 names',
    target: '≤ 1.3x of the floor, 1.3x faster than etcd3',
    place: 'etcd',
    metrics: [{ name: 'time per lock', unit: 'µs', better: 'lower' }],
    seconds: 20,
    sliceMs: 500,
    libraries: {
      'lease, put if absent, delete': { kind: 'floor', settings: 'bare calls of etcd3', open: serially(bare) },
      'put if absent, delete': { kind: 'floor', settings: 'one lease for all', open: serially(session) },
      leasehold: { kind: 'ours', open: serially(leaseholdEtcd()) },
      'leasehold, a lease per lock': {
        kind: 'ours',
        settings: 'autoRenew: false',
        open: serially(leaseholdEtcd({ autoRenew: false })),
      },
      etcd3: { kind: 'peer', open: serially(etcd3({ waits: false })) },
    },
  },
  {
    name: 'etcd-in-flight',
    title: `${IN_FLIGHT} locks in flight on etcd, 256 names`,
    target: '≥ 3x of etcd3',
    place: 'etcd',
    metrics: [{ name: 'locks per second', unit: '/s', better: 'higher' }],
    seconds: 20,
    sliceMs: 500,
    libraries: {
      'lease, put if absent, delete': {
        kind: 'floor',
        settings: 'bare calls of etcd3',
        open: inFlight(bare, IN_FLIGHT),
      },
      leasehold: { kind: 'ours', open: inFlight(leaseholdEtcd(), IN_FLIGHT) },
      etcd3: { kind: 'peer', open: inFlight(etcd3({ waits: false }), IN_FLIGHT) },
    },
  },
  {
    name: 'etcd-handoff',
    title: 'from the release in one process to the lock in another on etcd',
    target: '≤ 1.1x of the floor',
    place: 'etcd',
    processes: 2,
    metrics: [{ name: HANDOFF, unit: 'ms', better: 'lower' }],
    seconds: 25,
    sliceMs: 600,
    libraries: {
      'watch, put if absent': {
        kind: 'floor',
        settings: 'bare calls of etcd3, one lease for all',
        open: takingTurns(bareEtcd({ leasePerLock: false, waits: true })),
      },
      leasehold: { kind: 'ours', open: takingTurns(leaseholdEtcd()) },
      etcd3: { kind: 'peer', settings: 'tries again after a watch', open: takingTurns(etcd3({ waits: true })) },
    },
    drive: driveHandoffs(HANDOFF),
  },
  {
    name: 'etcd-heartbeats',
    title: `${HELD.toLocaleString('en')} locks held on etcd, each renewed every ${PERIOD_MS / 1_000} s`,
    target: 'a tenth of etcd3',
    place: 'etcd',
    metrics: [{ name: CLIENT, unit: 'ms', better: 'lower' }],
    seconds: 30,
    sliceMs: 3 * PERIOD_MS,
    // A lock that is held for minutes is what heartbeats are for: both libraries have half a minute of them behind them.
    warmUpMs: 8 * PERIOD_MS,
    base: 'etcd3',
    libraries: {
      etcd3: { kind: 'peer', open: holding(etcd3With(HELD_TTL_S)) },
      leasehold: { kind: 'ours', open: holding(leaseholdEtcd({ ttlS: HELD_TTL_S })) },
    },
    drive: driveHeartbeats,
  },
  {
    name: 'etcd-client-serial',
    title: 'put if absent and delete on etcd through three clients, one after the other',
    place: 'etcd',
    metrics: [{ name: 'time per pair', unit: 'µs', better: 'lower' }],
    seconds: 15,
    sliceMs: 500,
    base: 'node:http2',
    libraries: Object.fromEntries(
      Object.entries(clients).map(([name, open]) => [name, { kind: 'floor', open: serially(open) }]),
    ),
  },
  {
    name: 'etcd-client-in-flight',
    title: `put if absent and delete on etcd through three clients, ${IN_FLIGHT} in flight`,
    place: 'etcd',
    metrics: [{ name: 'pairs per second', unit: '/s', better: 'higher' }],
    seconds: 15,
    sliceMs: 500,
    base: 'node:http2',
    libraries: Object.fromEntries(
      Object.entries(clients).map(([name, open]) => [name, { kind: 'floor', open: inFlight(open, IN_FLIGHT) }]),
    ),
  },
]
