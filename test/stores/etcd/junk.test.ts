/** Values that leasehold did not write, under keys of leasehold: of another program, of a mistaken script, of a later version. */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createLocks } from '../../../src/index.js'
import { ALL, type Claim, type HolderView, type Store } from '../../../src/store.js'
import { etcd } from '../../../src/stores/etcd/index.js'
import { type EtcdCluster, startEtcd } from '../../../testbed/servers/index.js'

let cluster: EtcdCluster
let store: Store
let names = 0

beforeAll(async () => {
  cluster = await startEtcd()
  store = etcd(cluster.nodes.map(({ host }) => host))
})
afterAll(async () => {
  await store.close()
  await cluster.stop()
})

const claim = (more: Partial<Claim> = {}): Claim => {
  const key = `lock:junk:${names++}`
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 20_000, renewed: true, ...more }
}
const put = (key: string, value: string): Promise<string> => cluster.ctl('put', '--', `leasehold/${key}/junk`, value)
const listed = async (prefix: string): Promise<HolderView[]> => {
  const all: HolderView[] = []
  for await (const page of store.holderPages?.(prefix) ?? []) all.push(...page)
  return all
}

/** A holder as leasehold writes it, with these fields as they are written here. */
function holder(changes: Record<string, string | undefined>): string {
  const fields = { s: '"h"', w: '1', c: '1', i: '"x"', n: '1', l: '5000', t: '1', ...changes }
  const written = Object.entries(fields).filter(([, text]) => text !== undefined)
  return `{${written.map(([name, text]) => `"${name}":${text}`).join()}}`
}

const JUNK: [string, Record<string, string | undefined>][] = [
  ['no ttl', { l: undefined }],
  ['a ttl below 0', { l: '-1' }],
  ['a ttl without end', { l: '1e400' }],
  ['a ttl as text', { l: '"5000"' }],
  ['no time of the grant', { t: undefined }],
  ['an endless time of the grant', { t: '-1e400' }],
  ['a weight below 0', { w: '-2147483647' }],
  ['a weight far below 0', { w: '-1e300' }],
  ['a weight of 0', { w: '0' }],
  ['a weight with a fraction', { w: '0.5' }],
  ['a capacity of 0', { c: '0' }],
  ['an endless capacity', { c: '1e400' }],
  ['a revision with a fraction', { r: '1.5' }],
  ['an endless revision', { r: '1e400' }],
  ['a revision of 0', { r: '0' }],
  ['a revision as text', { r: '"7"' }],
  ['no attempt', { n: undefined }],
  ['an attempt with a fraction', { n: '1.5' }],
  ['no session', { i: undefined }],
  ['a session that is an object', { i: '{"toString":1,"valueOf":1}' }],
]

test.each(JUNK)('a value with %s counts as of another program, and hides no other lock', async (_, changes) => {
  const taken = claim()
  const prefix = `${taken.key}:`
  const other = claim({ key: `${prefix}other` })
  await put(`${prefix}junk`, holder(changes))
  expect(await store.acquire([other])).toMatchObject([{ granted: true }])
  const [refused] = await store.acquire([claim({ key: `${prefix}junk` })])
  expect(refused).toMatchObject({ granted: false, blocker: { owner: 'junk', ttlMs: undefined, token: undefined } })
  expect((await store.inspect?.(`${prefix}junk`))?.holders).toMatchObject([{ owner: 'junk', foreign: true }])
  const holders = await listed(prefix)
  expect(holders.map(({ owner, foreign }) => [owner, foreign === true])).toEqual([
    ['junk', true],
    [other.owner, false],
  ])
})

test('a value with all that leasehold writes is a holder of leasehold', async () => {
  const { key } = claim()
  await put(key, holder({ w: '2', c: '3', r: '7' }))
  expect(await listed(key)).toMatchObject([{ owner: 'junk', weight: 2, capacity: 3 }])
  expect((await listed(key))[0]).not.toHaveProperty('foreign')
})

test.each(['-2147483647', '-1e300'])('a weight of %s beside a holder lets nobody in beside it', async (w) => {
  const held = claim()
  expect(await store.acquire([held])).toMatchObject([{ granted: true }])
  await put(held.key, holder({ w }))
  expect(await store.acquire([claim({ key: held.key })])).toMatchObject([{ granted: false }])
})

test('a holder without a ttl ends no wait late, neither for its name nor for others', async () => {
  const locks = createLocks(etcd(cluster.nodes.map(({ host }) => host)), { ttl: '3s' })
  await locks.acquire('busy')
  const { key } = claim()
  const name = key.slice('lock:'.length)
  await put(key, '{"s":"h","w":1,"c":1}')
  const began = performance.now()
  const late = async (wanted: string, wait: number): Promise<number> => {
    const error = await locks.acquire(wanted, { wait }).catch((reason: { code: string }) => reason)
    expect(error).toMatchObject({ code: 'LOCK_TIMEOUT' })
    return performance.now() - began - wait
  }
  const never = new Promise<number[]>((resolve) => setTimeout(resolve, 9_000, [Number.POSITIVE_INFINITY]).unref())
  const all = Promise.all([late('busy', 2_000), late(name, 3_000), late(name, 1_000), late('busy', 4_000)])
  expect(Math.max(...(await Promise.race([all, never])))).toBeLessThan(1_000)
  await locks.close({ grace: 0 })
})
