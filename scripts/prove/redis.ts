// Redis: the conformance kit and one fault after the other on one server, a cluster and through Sentinel; and the figures.
import { ensureBuilt } from '../build.mjs'
import { startRedis } from '../servers/index.js'
import type { Proving } from './proving.js'
import { chaos } from './redis/chaos.js'
import { conformity } from './redis/conformity.js'
import { lossNoticed } from './redis/notice.js'
import { clustered, sentinelled, single } from './redis/places.js'

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
    for (const place of [single, clustered, sentinelled]) await conformity(p, await place(client))
  }
  for (const client of clients) {
    for (const place of [single, clustered, sentinelled])
      await chaos(p, await place(client), Math.max(p.seconds / CAMPAIGNS, 15), random)
  }
}

async function figures(p: Proving): Promise<void> {
  // It measures what is built.
  ensureBuilt()
  const { crowd, handoff, listing, median, serial } = await import('../../bench/redis.js')
  const noticed = await lossNoticed(10)
  const worst = Math.max(...noticed)
  const shown = `median ${median(noticed).toFixed(0)} ms, worst ${worst.toFixed(0)} ms of ${noticed.length}`
  p.check('lost data under a held lock is noticed within 150 ms of the reconnect', worst <= 150, shown)

  await using server = await startRedis({ args: ['--enable-debug-command', 'yes'] })
  const { ours, blpop } = await handoff(server.url, 1_000)
  const [mine, bare] = [median(ours), median(blpop)]
  const ratio = `${(mine / bare).toFixed(2)}x: ${mine.toFixed(2)} against ${bare.toFixed(2)} ms`
  p.check('hand-off between two processes within 1.4x of a bare BLPOP', mine <= 1.4 * bare, ratio)

  const waited = await crowd(server)
  const received = `${waited.perAcquisition.toFixed(2)} ${JSON.stringify(waited.commands)}`
  p.check('100 waiters in 4 processes: at most 4 commands per acquisition', waited.perAcquisition <= 4, received)
  p.check(
    '100 waiters in 4 processes: in order within a process',
    waited.outOfOrder === 0,
    `${waited.outOfOrder} were not`,
  )
  p.check('100 waiters in 4 processes: processes take turns', waited.changes >= 8, `${waited.changes} changes`)

  const times = await serial(server.url, 10)
  const least = times['bare SET NX PX + script'] as number
  for (const name of ['the store alone', 'leasehold']) {
    const us = times[name] as number
    const figure = `${(us / least).toFixed(2)}x: ${us.toFixed(0)} against ${least.toFixed(0)} µs`
    p.check(
      `serial acquire + release within 1.25x of a bare SET NX PX and a script (${name})`,
      us <= 1.25 * least,
      figure,
    )
  }

  const found = await listing(server, 1_000_000)
  const listed = `${found.indexMs.toFixed(1)} ms; ${found.firstWithForeignMs.toFixed(0)} ms with the walk for foreign ones`
  p.check(
    '200 locks and a foreign one are listed among a million keys',
    found.found === 201 && found.foreign === 1,
    listed,
  )
}
