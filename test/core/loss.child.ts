// Holds a lock on the store of its first argument, and reports its renewals and why it was lost. Blocks its event loop when told to.
import { createInterface } from 'node:readline'
import { openLocks } from '../../src/index.js'

const [, , url, ttl] = process.argv as [string, string, string, string]
const say = (line: object): boolean => process.stdout.write(`${JSON.stringify(line)}\n`)

const locks = await openLocks(url, { ttl: Number(ttl) })
locks.on('renewed', () => say({ renewed: true }))
locks.on('atRisk', ({ remainingMs }) => say({ atRisk: remainingMs }))
locks.on('lost', ({ why, stalledMs, lastRenewedMsAgo, attempts, error }) =>
  say({ why, stalledMs, lastRenewedMsAgo, attempts, message: error.message, shown: JSON.stringify(error) }),
)
const lock = await locks.acquire(`order:${process.pid}`)

createInterface({ input: process.stdin }).on('line', (line) => {
  const { blockMs } = JSON.parse(line) as { blockMs: number }
  const until = performance.now() + blockMs
  while (performance.now() < until);
  say({ held: lock.isHeld })
})
