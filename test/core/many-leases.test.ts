import { expect, test } from 'vitest'
import type { Lock } from '../../src/core/lock.js'
import { RemoteMemory } from './remote-memory.js'

const LEASES = 30_000

/** Processor time of this process in milliseconds while `work` runs. */
async function cpuOf(work: () => Promise<void>): Promise<number> {
  const before = process.cpuUsage()
  await work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1_000
}

/** The locks are returned: those that nobody can reach are not renewed. */
async function hold(remote: RemoteMemory, ttls: readonly number[]): Promise<Lock[]> {
  const locks = remote.locks()
  const acquiring = Array.from({ length: LEASES }, (_, i) =>
    locks.acquire(`n${i}`, { ttl: ttls[i % ttls.length] as number }),
  )
  await remote.pass(1)
  return Promise.all(acquiring)
}

test('heartbeats of four ttls cost about as much as those of one', async () => {
  const costs: number[] = []
  for (const ttls of [[30_000], [30_000, 45_000, 60_000, 90_000]]) {
    const remote = new RemoteMemory()
    const held = await hold(remote, ttls)
    costs.push(await cpuOf(() => remote.pass(41_000)))
    expect(held.every((lock) => lock.isHeld)).toBe(true)
  }
  const [one = 0, four = 0] = costs
  expect(four).toBeLessThan(one * 3)
})

test('a renewal call that fails for thousands of leases costs little more than one that works', async () => {
  const remote = new RemoteMemory()
  const held = await hold(remote, [30_000])
  const usual = await cpuOf(() => remote.pass(11_000))
  let broken = 0
  remote.fate = (method) => (method === 'renew' && broken++ === 0 ? 'break' : undefined)
  const failing = await cpuOf(() => remote.pass(11_000))
  expect(broken).toBeGreaterThan(1)
  expect(failing).toBeLessThan(usual * 8)
  expect(held.every((lock) => lock.isHeld)).toBe(true)
})
