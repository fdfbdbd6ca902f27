// One process's share of many schedules, so that all cores can take part. Prints what it found as JSON.
//
//   tsx verify/simulation/redlock/share.ts <first seed> <how many> <nth of the shares> <how many shares>
import { REGIMES, simulate } from './simulation.js'

export interface Share {
  grants: number
  refusals: number
  restarts: number
  cpuSeconds: number
  bad: string[]
}

const [seed = 0, schedules = 0, nth = 0, shares = 1] = process.argv.slice(2).map(Number)
// Outages are usual here, and nothing reads the stacks of their errors: collecting them would only cost time.
Error.stackTraceLimit = 0
const share: Share = { grants: 0, refusals: 0, restarts: 0, cpuSeconds: 0, bad: [] }
for (let i = nth; i < schedules; i += shares) {
  const regime = REGIMES[i % REGIMES.length] as (typeof REGIMES)[number]
  const outcome = simulate({ seed: seed + i, regime })
  share.grants += outcome.grants
  share.refusals += outcome.refusals
  share.restarts += outcome.restarts
  if (outcome.violations.length > 0) share.bad.push(`${regime}, seed ${seed + i}: ${outcome.violations[0]}`)
}
const { user, system } = process.cpuUsage()
share.cpuSeconds = (user + system) / 1e6
console.log(JSON.stringify(share))
