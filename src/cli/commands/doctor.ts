import type { Finding, Severity } from '../../doctor/check.js'
import type { DoctorReport } from '../../doctor/index.js'
import type { Command, Input } from '../command.js'
import { exitCode } from '../exit-codes.js'
import { paint, print, printJson, say } from '../output.js'
import { visible } from '../../util/visible.js'
import { sharedStoreUrl, storeOption, withoutLeaks } from '../stores.js'

export const doctor: Command = {
  usage: '[options]',
  summary: 'what is wrong with this store for locking, and how to fix it',
  about: `
Connects and checks what breaks locks in practice: eviction, persistence, replicas, clocks, latency, rights, poolers,
file systems. Each finding has an ID, what the server answered, and the fix. Changes nothing but one lock of its own,
which it acquires and releases. Exits with 0 if the store is safe, 1 if it is dangerous or a check for danger could not be
made, 69 if it cannot be reached.`,
  options: {
    ttl: { value: 'DURATION', help: 'the ttl of your locks, against which latency is judged (default 30s)' },
    strict: { help: 'exit with 1 for warnings, too' },
    ignore: { value: 'IDS', help: 'leave these checks out, such as redis.persistence,redis.replicas' },
    json: { help: 'for programs' },
    ...storeOption,
  },
  examples: [
    ['leasehold doctor --store redis://db:6379', 'before you trust it with locks'],
    ['leasehold doctor --store-file ~/.locks-url --strict', 'in a deployment check'],
    ['leasehold doctor --store redis://db:6379 --ignore redis.persistence', 'a risk that was accepted'],
    ["leasehold doctor --json | jq -r '.findings[].id'", 'for programs'],
  ],
  run: examine,
}

/** The least ttl that latency is judged against, in milliseconds: a shorter one is a typing mistake. */
const MIN_TTL_MS = 10

async function examine(input: Input): Promise<number> {
  input.none('doctor')
  const ttlMs = input.duration('ttl', { min: MIN_TTL_MS })
  const ignore = (input.value('ignore') ?? '').split(',').filter(Boolean)
  const url = sharedStoreUrl(input)
  const { diagnose } = await import('../../doctor/index.js')
  const report = await withoutLeaks(input, () => diagnose(url, { ignore, ...(ttlMs === undefined ? {} : { ttlMs }) }))
  if (input.has('json')) printJson(report)
  else print(textOf(report))
  say(summaryOf(report))
  if (!report.reachable) return exitCode.unavailable
  const warned = report.findings.some(({ severity }) => severity === 'warning' || severity === 'unknown')
  return report.safe && !(input.has('strict') && warned) ? exitCode.ok : exitCode.found
}

const STYLES: Record<Severity, Parameters<typeof paint>[0]> = {
  danger: 'red',
  warning: 'yellow',
  unknown: 'magenta',
  note: 'cyan',
}
const ORDER: readonly Severity[] = ['danger', 'unknown', 'warning', 'note']

function textOf({ server, target, findings }: DoctorReport): string {
  const sorted = grouped(findings).toSorted((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity))
  return [`${paint('bold', visible(server ?? 'no answer'))} at ${visible(target)}`, ...sorted.map(entryOf)].join('\n\n')
}

/** What is the same on several servers is one entry: a cluster of ten masters would fill pages. */
function grouped(findings: readonly Finding[]): Finding[] {
  const groups = new Map<string, Finding>()
  for (const { at, ...facts } of findings) {
    const key = JSON.stringify(facts)
    const before = groups.get(key)
    groups.set(key, { ...facts, at: before?.at === undefined ? at : `${before.at}, ${at}` })
  }
  return [...groups.values()]
}

function entryOf({ id, severity, at, summary, evidence, fix }: Finding): string {
  const title = `${paint(STYLES[severity], severity.toUpperCase())}  ${id}${at === undefined ? '' : `  ${visible(at)}`}`
  // Evidence quotes servers and other sessions: it must not move the cursor.
  const [what, why, how] = [summary, evidence, fix].map((each) => visible(each))
  return `${title}\n  ${what}\n  ${paint('dim', 'evidence')}  ${why}\n  ${paint('dim', 'fix')}       ${how}`
}

function summaryOf({ reachable, safe, findings, checks }: DoctorReport): string {
  if (!reachable) return 'the store cannot be reached'
  const made = checks.filter(({ outcome }) => outcome === 'ok' || outcome === 'found').length
  const counted = ORDER.map(
    (severity) => [severity, findings.filter((one) => one.severity === severity).length] as const,
  )
    .filter(([, count]) => count > 0)
    .map(([severity, count]) => `${count} ${severity}`)
  const found = counted.length === 0 ? 'nothing found' : counted.join(', ')
  const danger = findings.some(({ severity }) => severity === 'danger')
  const verdict = safe ? 'safe for locks' : danger ? 'not safe for locks' : 'not known to be safe for locks'
  return `${made} of ${checks.length} checks made, ${found}: ${verdict}`
}
