import { createServer, type Server } from 'node:net'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Input } from '../../src/cli/command.js'
import { run } from '../../src/cli/commands/run.js'
import { withStore } from '../../src/cli/stores.js'
import { StoreUnavailableError } from '../../src/errors.js'
import { startStopwatch, type Stopwatch } from '../../testbed/running-time.js'
import { CliFixture } from './harness.js'

const fixture = new CliFixture()
/** Takes connections and never says a word. */
let mute: Server
/** A port on which no server listens. */
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

const SERVERS: [kind: string, server: string, url: () => string][] = [
  ['redis', 'a dead', () => `redis://127.0.0.1:${deadPort}`],
  ['redis', 'a mute', () => `redis://127.0.0.1:${portOf(mute)}`],
  ['postgres', 'a dead', () => `postgres://user:pw@127.0.0.1:${deadPort}/db`],
  ['postgres', 'a mute', () => `postgres://user:pw@127.0.0.1:${portOf(mute)}/db`],
]

// Not as a process of its own, whose start would be measured, too.
test.each(SERVERS)('run on %s with %s server respects --wait, and closing adds little to it', async (_, __, url) => {
  const input = new Input(run, ['x', '--store', url()])
  let since = 0
  let watch: Stopwatch | undefined
  const waiting = withStore(input, (locks) => {
    // From here on: loading a client takes its time.
    since = performance.now()
    watch = startStopwatch()
    return locks.acquire('x', { wait: 1_000 })
  })
  await expect(waiting).rejects.toBeInstanceOf(StoreUnavailableError)
  const [tookMs, ranMs = 0] = [performance.now() - since, watch?.ms()]
  watch?.stop()
  expect(tookMs).toBeGreaterThan(990)
  // 300 ms for the clean-up, and the rest for a busy machine. Giving up on the clean-up by itself took three seconds more.
  expect(ranMs).toBeLessThan(3_000)
})

test.each(SERVERS)('run on %s with %s server exits with 69 and says why, without the password', async (_, __, url) => {
  const { code, stderr } = await fixture.leasehold('run', 'x', '--wait', '1s', '--store', url(), '--', 'true').ended
  expect(stderr).toContain('leasehold: "x" could not be acquired: ')
  expect(stderr).not.toContain('pw')
  expect(code).toBe(69)
})

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port
}

test.each(['redis://127.0.0.1:1', 'postgres://127.0.0.1:1/x'])(
  'run --wait on a server that is down (%s) ends in time, with the reason and without the password',
  async (url) => {
    const began = performance.now()
    const store = url.replace('//', '//admin:hunter2@')
    const { code, stderr } = await fixture.leasehold('run', 'x', '--wait', '1s', '--store', store, '--', 'true').ended
    expect(code).toBe(69)
    expect(stderr).toContain('ECONNREFUSED 127.0.0.1:1')
    expect(stderr).not.toContain('hunter2')
    // Not for ever, and not for as long as a client tries by itself. How exactly the wait is kept is measured above.
    expect(performance.now() - began).toBeLessThan(30_000)
  },
)
