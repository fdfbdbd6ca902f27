import { Histogram } from '../primitives/publish/histogram.js'
import type { PublishingProcess } from './processes.js'
import type { Sampler } from './sampler.js'

/** Upper bounds of the histograms in seconds: powers of two of milliseconds, which the buckets of `Histogram` meet exactly. */
const BOUNDS_MS = [1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576]

/**
 * The state as Prometheus text. No label carries the name of a lock: a program with a name per order would fill the database
 * of the program that scrapes.
 */
export function prometheusText(sampler: Sampler): string {
  const lines: string[] = []
  const publishing = [...sampler.processes.publishing.values()]
  const family = (
    name: string,
    type: string,
    help: string,
    samples: [labels: Record<string, string>, value: number][],
  ): void => {
    lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`)
    for (const [labels, value] of samples) lines.push(`${name}${labelText(labels)} ${value}`)
  }
  family('leasehold_store_up', 'gauge', 'Whether the store could be read.', [[{}, sampler.isReachable ? 1 : 0]])
  if (sampler.isReachable) heldFamilies(sampler, family)
  family('leasehold_processes_publishing', 'gauge', 'Processes that publish their figures.', [[{}, publishing.length]])
  processFamilies(publishing, family)
  for (const [name, what, help] of [
    ['leasehold_wait_seconds', 'wait', 'How long was waited for a lock, in vain or not, by process.'],
    ['leasehold_hold_seconds', 'hold', 'How long locks were held, by process.'],
  ] as const) {
    if (publishing.length > 0) lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} histogram`)
    for (const each of publishing) lines.push(...histogramLines(name, each, what))
  }
  return `${lines.join('\n')}\n`
}

type Family = (name: string, type: string, help: string, samples: [Record<string, string>, number][]) => void

/** What was read in the store. */
function heldFamilies(sampler: Sampler, family: Family): void {
  const held = new Map<string, number>([
    ['lock', 0],
    ['semaphore', 0],
    ['election', 0],
  ])
  const waiting = new Map<string, { kind: string; count: number }>()
  const states = new Map<string, number>([
    ['alive', 0],
    ['at-risk', 0],
    ['silent', 0],
    ['gone', 0],
    ['unknown', 0],
  ])
  let oldest = 0
  const now = Date.now()
  for (const { kind, name, waiting: count, health, since } of sampler.holders.rows()) {
    held.set(kind, (held.get(kind) ?? 0) + 1)
    states.set(health.state, (states.get(health.state) ?? 0) + 1)
    if (count > 0) waiting.set(`${kind}:${name}`, { kind, count })
    if (since !== undefined) oldest = Math.max(oldest, (now - since) / 1_000)
  }
  const sums = new Map<string, number>([...held.keys()].map((kind) => [kind, 0]))
  for (const { kind, count } of waiting.values()) sums.set(kind, (sums.get(kind) ?? 0) + count)
  const byKind = (counts: Map<string, number>): [Record<string, string>, number][] =>
    [...counts].map(([kind, count]) => [{ kind }, count])
  family('leasehold_held', 'gauge', 'Leases that are held, as read in the store.', byKind(held))
  family('leasehold_waiting', 'gauge', 'Waiters in the queues of the store.', byKind(sums))
  family(
    'leasehold_holders',
    'gauge',
    'Holders by whether there is evidence that they are alive.',
    [...states].map(([state, count]) => [{ state }, count]),
  )
  family('leasehold_oldest_hold_seconds', 'gauge', 'How long the oldest lease has been held.', [[{}, oldest]])
}

/** What processes publish, since each of them started. */
function processFamilies(publishing: readonly PublishingProcess[], family: Family): void {
  if (publishing.length === 0) return
  const counter = (
    name: string,
    help: string,
    key: 'acquired' | 'released' | 'renewed' | 'timeouts' | 'errors',
  ): void =>
    family(
      name,
      'counter',
      help,
      publishing.map(({ stats }) => [{ process: stats.instance }, stats.counters[key] ?? 0]),
    )
  counter('leasehold_acquired_total', 'Locks acquired.', 'acquired')
  counter('leasehold_released_total', 'Locks released.', 'released')
  counter('leasehold_renewed_total', 'Renewals that worked.', 'renewed')
  counter('leasehold_timeouts_total', 'Waits in vain.', 'timeouts')
  counter('leasehold_errors_total', 'Calls in the background that failed.', 'errors')
  const lost = publishing.flatMap(({ stats }) =>
    Object.entries(stats.lostBy).map(([why, count]): [Record<string, string>, number] => [
      { process: stats.instance, why },
      count,
    ]),
  )
  family('leasehold_lost_total', 'counter', 'Locks lost, by reason.', lost)
}

function histogramLines(name: string, { stats }: PublishingProcess, what: 'wait' | 'hold'): string[] {
  const histogram = new Histogram()
  histogram.merge(stats[what])
  const { instance: process } = stats
  const buckets = BOUNDS_MS.map(
    (bound) => `${name}_bucket${labelText({ process, le: String(bound / 1_000) })} ${histogram.countUpTo(bound)}`,
  )
  return [
    ...buckets,
    `${name}_bucket${labelText({ process, le: '+Inf' })} ${histogram.total}`,
    `${name}_sum${labelText({ process })} ${stats[`${what}Ms`] / 1_000}`,
    `${name}_count${labelText({ process })} ${histogram.total}`,
  ]
}

function labelText(labels: Record<string, string>): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escaped(value)}"`)
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`
}

function escaped(value: string): string {
  return value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')
}
