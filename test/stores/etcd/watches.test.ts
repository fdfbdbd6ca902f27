import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { ALL, type Claim, type Store, type Watch } from '../../../src/store.js'
import { EtcdConnection } from '../../../src/stores/etcd/connection.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { decodeWatch } from '../../../src/stores/etcd/messages.js'
import { ProtoWriter } from '../../../src/stores/etcd/protobuf.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'
import { until } from '../../../testbed/servers/process.js'

const { open } = EtcdConnection.prototype
let cluster: EtcdCluster
let store: Store
let direct: Store
let names = 0

beforeAll(async () => {
  cluster = await startEtcd()
  const hosts = cluster.nodes.map(({ host }) => host)
  store = etcd(hosts)
  direct = etcd(hosts)
})
afterEach(() => {
  EtcdConnection.prototype.open = open
})
afterAll(async () => {
  await store.close()
  await direct.close()
  await cluster.stop()
})

const claim = (more: Partial<Claim> = {}): Claim => {
  const key = `lock:watches:${names++}`
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 20_000, renewed: true, ...more }
}

/** The answers to watches pass through `change`; undefined: one is lost. */
function changeWatches(change: (message: Buffer) => Buffer | undefined): void {
  EtcdConnection.prototype.open = function changed(this: EtcdConnection, path, token, handlers) {
    if (!path.endsWith('/Watch')) return open.call(this, path, token, handlers)
    const message = (bytes: Buffer): void => {
      const now = change(bytes)
      if (now) handlers.message(now)
    }
    return open.call(this, path, token, { ...handlers, message })
  }
}

/** As servers from 3.5 on refuse a watch: with the id -1 instead of the one that was asked for. */
const refusal = (reason: string): Buffer =>
  Buffer.from(new ProtoWriter().int64(2, -1n).number(3, 1).number(4, 1).text(6, reason).finish())

test('a watch that is refused without its id is asked for again', async () => {
  let refusals = 0
  changeWatches((bytes) => {
    if (refusals >= 2 || !decodeWatch(bytes).created) return bytes
    refusals++
    return refusal('etcdserver: invalid auth token')
  })
  const { key } = claim()
  let changes = 0
  const watch = store.watch?.(key, ({ type }) => void (type === 'changed' && changes++)) as Watch
  await until('it is live', () => watch.live())
  expect(refusals).toBe(2)
  expect(await direct.acquire([claim({ key, announce: true })])).toMatchObject([{ granted: true }])
  await until('it is heard', () => changes > 0)
  watch.close()
})
