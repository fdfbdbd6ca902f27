import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createLocks, type Lock, type Locks } from '../../../src/index.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { isOutdated } from '../../../src/stores/etcd/version.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'
import { until } from '../../../testbed/servers/process.js'

let cluster: EtcdCluster
let locks: Locks
const warnings: string[] = []
process.on('warning', ({ name, message }) => void (name === 'LeaseholdWarning' && warnings.push(message)))

beforeAll(async () => {
  cluster = await startEtcd({ nodes: 3 })
  locks = createLocks(etcd(cluster.nodes.map(({ host }) => host)))
})
afterAll(async () => {
  await locks.close({ grace: 0 })
  await cluster.stop()
})

test('etcd whose former leaders revoke leases is outdated, and what came after is not', () => {
  const outdated = ['2.3.8', '3.3.27', '3.4.23', '3.4.30', '3.5.0', '3.5.12', '3.5.9-rc.1']
  const good = ['3.4.31', '3.4.100', '3.5.13', '3.6.0', '4.0.0', 'unknown']
  expect(outdated.filter(isOutdated)).toEqual(outdated)
  expect(good.filter(isOutdated)).toEqual([])
})

test('a process is warned once of outdated etcd', async () => {
  const second = createLocks(etcd(cluster.nodes.map(({ host }) => host)))
  for (const each of [locks, second]) await each.withLock('warned', async () => {})
  const status = JSON.parse(await cluster.ctl('endpoint', 'status', '-w', 'json')) as [{ Status: { version: string } }]
  const { version } = status[0].Status
  const expected = isOutdated(version)
    ? [expect.stringMatching(/^etcd 3\..* revokes leases .*3\.4\.31, 3\.5\.13 or later\.$/)]
    : []
  await until('it is warned', () => warnings.length >= expected.length)
  await sleep(50)
  expect(warnings).toEqual(expected)
  await second.close()
})

/** The keys of etcd that end with a lease that is kept alive, by lease. */
async function canaries(): Promise<string[]> {
  const keys = await cluster.ctl('get', '--prefix', 'leasehold/!revoked/', '--keys-only')
  return [...keys.matchAll(/\/lease:([0-9a-f]+)/g)].map(([, id]) => id as string)
}

/** The lease that the key of a lock is bound to, as canaries name it. */
async function leaseOf(name: string): Promise<string> {
  const found = await cluster.ctl('get', '--prefix', `leasehold/lock:${name}/`, '-w', 'json')
  return BigInt(/"lease":(\d+)/.exec(found)?.[1] ?? 0).toString(16)
}

test('a holder whose lease is revoked by somebody else learns it at once, not from its next heartbeat', async () => {
  const lock = await locks.acquire('revoked', { ttl: '18s' })
  let id = ''
  // Its own lease, not one that another lock of this process has left behind.
  await until('the first heartbeat has passed', async () => {
    id = await leaseOf('revoked')
    return (await canaries()).includes(id)
  })
  const revokedAt = performance.now()
  const lost = once(lock.signal, 'abort')
  await cluster.ctl('lease', 'revoke', id)
  await lost
  // The next heartbeat comes six seconds after the first.
  expect(performance.now() - revokedAt).toBeLessThan(5_000)
  expect(lock.isHeld).toBe(false)
})

test('a holder knows within half a second that a leader which was frozen for longer than the ttl has ended its lock', async () => {
  let believing: Lock[] = []
  // An election that takes longer than the locks last leaves no holder that could believe anything.
  for (let round = 0; round < 3 && believing.length === 0; round++) {
    const held = await Promise.all([5, 6, 7].map((ttl) => locks.acquire(`thaw:${ttl}:${round}`, { ttl: `${ttl}s` })))
    const leader = await cluster.leader()
    await leader.freeze()
    await sleep(9_000)
    believing = held.filter(({ isHeld }) => isHeld)
    await leader.thaw()
  }
  expect(believing.length).toBeGreaterThan(0)
  const thawedAt = performance.now()
  while (performance.now() - thawedAt < 1_500) {
    for (const lock of believing) {
      const keys = await cluster.ctl('get', '--prefix', `leasehold/lock:${lock.name}/`, '--keys-only')
      if (keys.trim() !== '' || !lock.isHeld) continue
      const lost = once(lock.signal, 'abort')
      // In small steps: a time during which this process stood still counts as one of them.
      for (let ms = 0; ms < 500 && lock.isHeld; ms += 10) await Promise.race([lost, sleep(10)])
      expect(lock.isHeld).toBe(false)
    }
  }
})
