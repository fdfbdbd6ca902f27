/** Real processes on real servers lose a lock for four reasons, and name the right one. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type AtEnd, type Child, startChild } from '../../testbed/children.js'
import { startPostgres, startProxy, startRedis } from '../../testbed/servers/index.js'
import { openClient } from '../../src/clients/postgres/open.js'
import { migrate } from '../../src/stores/postgres/index.js'
import type { LossFacts, LossReason } from '../../src/index.js'

/** TTL_MS: a stall of a second, which a busy machine may have, must not be the reason for a loss. */
const TTL_MS = 4_000

type Report = { renewed?: boolean; atRisk?: number } & Partial<LossFacts> & { why?: LossReason; message?: string }

async function holder(url: string, atEnd: AtEnd): Promise<Child<Report>> {
  const child = startChild<Report>(new URL('./loss.child.ts', import.meta.url), [url, String(TTL_MS)], atEnd)
  await child.until(({ renewed }) => renewed === true)
  return child
}

const loss = (child: Child<Report>): Promise<Report> => child.until(({ why }) => why !== undefined)

describe.concurrent('a process on Redis that loses its lock says', () => {
  let url: string
  let stop: () => Promise<void>
  beforeAll(async () => {
    const server = await startRedis({ password: 'pass-word-1' })
    url = server.url
    stop = () => server.stop()
  })
  afterAll(() => stop())

  test('blocked after its event loop was blocked for 9 s', async ({ onTestFinished }) => {
    const child = await holder(url, onTestFinished)
    child.tell({ blockMs: 9_000 })
    const { why, stalledMs, message } = await loss(child)
    expect(why).toBe('blocked')
    expect(message).toMatch(/the event loop was blocked for \d+\.\d s; raise ttl, or find what blocks/)
    // The part before the last tick of the monitor does not count; a machine that is busy afterwards makes it longer.
    expect(stalledMs).toBeGreaterThan(8_500)
    expect(stalledMs).toBeLessThan(20_000)
  })

  test('frozen after it was stopped by a signal', async ({ onTestFinished }) => {
    const child = await holder(url, onTestFinished)
    const stoppedAt = performance.now()
    child.kill('SIGSTOP')
    await new Promise((resolve) => setTimeout(resolve, TTL_MS + 1_000))
    child.kill('SIGCONT')
    const { why, stalledMs, message } = await loss(child)
    expect(why).toBe('frozen')
    expect(message).toMatch(/the process did not run for \d+\.\d s/)
    expect(stalledMs).toBeGreaterThan(TTL_MS)
    expect(stalledMs).toBeLessThan(performance.now() - stoppedAt + 500)
  })

  test('unreachable after its connection was cut, and atRisk before', async ({ onTestFinished }) => {
    const proxy = await startProxy(Number(new URL(url).port))
    onTestFinished(() => proxy.stop())
    const child = await holder(proxy.through(url), onTestFinished)
    proxy.blackhole()
    const { atRisk } = await child.until((report) => report.atRisk !== undefined)
    expect(atRisk).toBeGreaterThan(TTL_MS * 0.3)
    const { why, stalledMs, lastRenewedMsAgo, attempts = [], message } = await loss(child)
    expect(why).toBe('unreachable')
    expect(stalledMs).toBeLessThan(TTL_MS / 2)
    expect(lastRenewedMsAgo).toBeGreaterThanOrEqual(TTL_MS * 0.95)
    expect(attempts.length).toBeGreaterThan(1)
    expect(attempts[0]?.outcome).toBe('renewed')
    expect(attempts.at(-1)?.outcome).not.toBe('renewed')
    expect(message).not.toContain('pass-word-1')
  })

  test('server-down after the server was killed, without its password', async ({ onTestFinished }) => {
    const server = await startRedis({ password: 'pass-word-2' })
    onTestFinished(() => server.stop())
    const child = await holder(server.url, onTestFinished)
    await server.kill()
    const report = await loss(child)
    expect(report.why).toBe('server-down')
    expect(report.message).toContain('the server was down')
    expect(JSON.stringify(report)).not.toContain('pass-word-2')
  })
})

test.concurrent('a process on PostgreSQL says unreachable after its connection was cut, another one server-down after a crash', async ({
  onTestFinished,
}) => {
  const server = await startPostgres()
  onTestFinished(() => server.stop())
  const { client, close } = await openClient(server.url)
  await migrate(client)
  await close()
  const proxy = await startProxy(server.port)
  onTestFinished(() => proxy.stop())
  const [cut, other] = await Promise.all([
    holder(proxy.through(server.url), onTestFinished),
    holder(server.url, onTestFinished),
  ])
  proxy.blackhole()
  expect((await loss(cut)).why).toBe('unreachable')
  await server.kill()
  expect((await loss(other)).why).toBe('server-down')
})
