/** Idempotency under a storm: time-outs, aborts, thrown errors, broken streams and killed servers, on Redis and PostgreSQL. */
import { storm, type StormReport } from '../../testbed/http/storm.js'
import type { Proving } from './proving.js'

const SERVERS = 8
const KEYS = 2_000

export default async function prove(p: Proving): Promise<void> {
  for (const kind of p.parts(['redis', 'postgres'])) {
    p.say(`${kind}: ${SERVERS} servers, ${KEYS} keys, each requested 5 times at once and until it has its response`)
    const report = await storm({ kind, servers: SERVERS, keys: KEYS, atOnce: 60, ttlMs: 5_000, killEveryMs: 4_000 })
    tell(p, kind, report)
  }
}

function tell(p: Proving, kind: string, report: StormReport): void {
  const { runs, requests, answers, kills, lost, seconds } = report
  const counts = Object.entries(answers)
    .toSorted()
    .map(([what, count]) => `${what}: ${count}`)
  p.say(
    `${requests} requests, ${runs} runs, ${kills} servers killed, ${lost} leases lost, ${seconds.toFixed(0)} s; ${counts.join(', ')}`,
  )
  const check = (label: string, wrong: readonly string[]): void =>
    p.check(`${kind}: ${label}`, wrong.length === 0, wrong.length === 0 ? '0' : `${wrong.length}, such as ${wrong[0]}`)
  check('two handlers of one key at the same time', report.overlaps)
  check('runs after a recorded one', report.runsAfterRecord)
  check('keys whose callers got different responses', report.differingAnswers)
  check('keys that did not end', report.unended)
}
