import { expect, test } from 'vitest'
import type { EtcdClient } from '../../../src/stores/etcd/client.js'
import { EtcdKeys } from '../../../src/stores/etcd/keys.js'
import { EtcdLeases } from '../../../src/stores/etcd/leases.js'
import { realWorld } from '../../../src/util/world.js'

/** Answers of a cluster in which a keep-alive and the read after it see these terms. */
function leasesSeeing(keepAliveTerm: number, readTerm: number, ttlS = 30): EtcdLeases {
  const header = (raftTerm: number): { revision: number; raftTerm: number } => ({ revision: 1, raftTerm })
  const answers = {
    grantLease: async (id: bigint, seconds: number) => ({ header: header(1), id, ttlS: seconds }),
    keepAlive: async (ids: readonly bigint[]) =>
      new Map(ids.map((id) => [id, { header: header(keepAliveTerm), id, ttlS }])),
    range: async () => ({ header: header(readTerm), kvs: [], more: false, count: 1 }),
    revokeLease: async () => {},
  }
  return new EtcdLeases(answers as unknown as EtcdClient, new EtcdKeys('leasehold/'), realWorld)
}

test('a keep-alive prolongs a lease if a majority confirms the term of the leader that answered it', async () => {
  const leases = leasesSeeing(5, 5)
  const lease = await leases.own(30_000)
  lease.validUntil = realWorld.now() + 1_000
  await leases.refresh([lease])
  expect(lease.validUntil - realWorld.now()).toBeGreaterThan(29_000)
})

test('a keep-alive that a former leader answered, frozen and deposed meanwhile, prolongs nothing', async () => {
  const leases = leasesSeeing(5, 6)
  const lease = await leases.own(30_000)
  lease.validUntil = realWorld.now() + 1_000
  await leases.refresh([lease])
  expect(lease.validUntil - realWorld.now()).toBeLessThanOrEqual(1_000)
})

test('a lease that a keep-alive does not find is not used for another grant', async () => {
  const leases = leasesSeeing(5, 5, 0)
  const lease = await leases.shared(30_000)
  lease.validUntil = realWorld.now() + 1_000
  await leases.refresh([lease])
  expect(lease.retired).toBe(true)
  expect(await leases.shared(30_000)).not.toBe(lease)
})
