// Redis: the conformance kit and one fault after the other on one server, a cluster and through Sentinel; and the figures.
import { distOf, translateBench } from '../../bench/harness/builds.js'
import { measure } from '../../bench/harness/measure.js'
import { median } from '../../bench/harness/statistics.js'
import { scenarios } from '../../bench/scenarios/index.js'
import { ensureBuilt } from '../../scripts/build.mjs'
import { TENANCY_TOKENS } from '../../src/core/tenancy.js'
import { ROOT } from '../../testbed/programs.js'
import { startRedis } from '../../testbed/servers/index.js'
import type { Proving } from './proving.js'
import { chaos } from './redis/chaos.js'
import { conformity } from './redis/conformity.js'
import { crowd } from './redis/crowd.js'
import { listing } from './redis/listing.js'
import { lossNoticed } from './redis/notice.js'
import { clustered, sentinelled, single } from './redis/fixtures.js'

/** Six campaigns of faults share the time that was given. */
const CAMPAIGNS = 6

/** mulberry32 */
function randomFrom(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296
  }
}

export default async function prove(p: Proving): Promise<void> {
  const random = randomFrom(p.seed)
  // First: what the campaigns leave behind in this process slows down what is measured in it.
  await figures(p)
  const clients = ['ioredis', 'node-redis'] as const
  for (const client of clients) {
    for (const fixture of [single, clustered, sentinelled]) await conformity(p, await fixture(client))
  }
  for (const client of clients) {
    for (const fixture of [single, clustered, sentinelled])
      await chaos(p, await fixture(client), Math.max(p.seconds / CAMPAIGNS, 15), random)
  }
}

async function figures(p: Proving): Promise<void> {
  const noticed = await lossNoticed(10)
  const worst = Math.max(...noticed)
  const shown = `median ${median(noticed).toFixed(0)} ms, worst ${worst.toFixed(0)} ms of ${noticed.length}`
  p.check('lost data under a held lock is noticed within 150 ms of the reconnect', worst <= 150, shown)
  await speed(p)

  await using server = await startRedis({ args: ['--enable-debug-command', 'yes'] })
  const waited = await crowd(server)
  const received = `${waited.perAcquisition.toFixed(2)} ${JSON.stringify(waited.commands)}`
  p.check('240 waiters in 4 processes: at most 4 commands per acquisition', waited.perAcquisition <= 4, received)
  p.check(
    '240 waiters in 4 processes: in order within a process',
    waited.outOfOrder === 0,
    `${waited.outOfOrder} were not`,
  )
  p.check(
    '240 waiters in 4 processes: no process has the lock more often in a row than one grant serves',
    waited.longestTurn > 0 && waited.longestTurn <= TENANCY_TOKENS,
    `${waited.longestTurn} times at most`,
  )

  const found = await listing(server, 1_000_000)
  const listed = `${found.indexMs.toFixed(1)} ms; ${found.walkMs.toFixed(0)} ms with the walk for foreign ones`
  p.check(
    '200 locks and a foreign one are listed among a million keys',
    found.found === 201 && found.foreign === 1,
    listed,
  )
}

/** Ratios to the bare commands, by the benchmark's own harness. */
async function speed(p: Proving): Promise<void> {
  // It measures what is built.
  ensureBuilt()
  const { program, remove } = translateBench()
  const options = { program, builds: [{ label: 'leasehold', url: distOf(ROOT) }] }
  const wanted: [name: string, most: number, what: string][] = [
    ['redis-handoff', 1.4, 'hand-off between two processes within 1.4x of a bare BLPOP'],
    ['redis-serial', 1.35, 'serial acquire + release within 1.35x of a bare SET NX PX and a script'],
  ]
  for (const [name, most, what] of wanted) {
    const scenario = scenarios.find((each) => each.name === name)
    if (!scenario) throw new Error(`there is no scenario "${name}"`)
    const { libraries, metrics } = await measure(scenario, options)
    const ours = libraries.find(({ kind }) => kind === 'ours')?.metrics[metrics[0]?.name ?? '']
    const { median: ratio, min, max } = ours?.ratio ?? { median: Number.NaN, min: Number.NaN, max: Number.NaN }
    p.check(what, ratio <= most, `${ratio.toFixed(2)}x (${min.toFixed(2)}x to ${max.toFixed(2)}x)`)
  }
  remove()
}
