import { createServer, type Server } from 'node:net'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Place } from './harness.js'

const place = new Place()
/** Takes connections and never says a word. */
let mute: Server
/** Where nobody listens any more. */
let deadPort: number

beforeAll(async () => {
  mute = createServer().listen(0, '127.0.0.1')
  await once(mute, 'listening')
  const gone = createServer().listen(0, '127.0.0.1')
  await once(gone, 'listening')
  deadPort = portOf(gone)
  gone.close()
})

afterAll(() => {
  mute.close()
})

test.each([
  ['redis', 'a dead', () => `redis://127.0.0.1:${deadPort}`],
  ['redis', 'a mute', () => `redis://127.0.0.1:${portOf(mute)}`],
  ['postgres', 'a dead', () => `postgres://user:pw@127.0.0.1:${deadPort}/db`],
  ['postgres', 'a mute', () => `postgres://user:pw@127.0.0.1:${portOf(mute)}/db`],
])('run on %s with %s server exits with 69 when --wait is over, and not much later', async (_, __, url) => {
  // How long this machine takes to start a process just now.
  const before = performance.now()
  await place.leasehold('run', 'x', '--', 'true').ended
  const startMs = performance.now() - before
  const since = performance.now()
  const { code, stderr } = await place.leasehold('run', 'x', '--wait', '1s', '--store', url(), '--', 'true').ended
  const tookMs = performance.now() - since
  expect(stderr).toContain('leasehold: "x" could not be acquired: ')
  expect(stderr).not.toContain('pw')
  expect(code).toBe(69)
  expect(tookMs).toBeGreaterThan(1_000)
  // A second to wait, 300 ms to clean up, and a second more for a busy machine: trying to clean up took three.
  expect(tookMs).toBeLessThan(2_300 + 2 * startMs)
})

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port
}
