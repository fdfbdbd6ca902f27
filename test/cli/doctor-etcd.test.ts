/** `doctor` against etcd over its JSON gateway, with one thing wrong at a time. */
import { writeFileSync } from 'node:fs'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { temporaryFolder } from '../../testbed/children.js'
import { type EtcdCluster, type EtcdNode, startEtcd } from '../../testbed/servers/index.js'
import { DEFAULTS, runChecks, type Outcome } from '../../src/doctor/check.js'
import { type EtcdRequest, examineEtcd } from '../../src/doctor/etcd.js'
import { diagnose } from '../../src/doctor/index.js'
import { until } from './harness.js'

let cluster: EtcdCluster

beforeAll(async () => {
  cluster = await startEtcd({ nodes: 3 })
})
afterAll(() => cluster.stop())

const url = (): string => `etcd://${cluster.nodes.map(({ host }) => host).join()}`
const shown = ({ findings }: Pick<Outcome, 'findings'>): string[] =>
  findings.map(({ id, severity }) => `${severity} ${id}`)

const request: EtcdRequest = async (address, body) => {
  const response = await fetch(address, body ? { method: 'POST', body: JSON.stringify(body) } : {})
  return response.text()
}

test('a good cluster gets no finding', async () => {
  const report = await diagnose(url(), { ignore: ['etcd.disk', 'etcd.version'] })
  expect(report.findings).toEqual([])
  expect(report).toMatchObject({ store: 'etcd', safe: true, server: expect.stringMatching(/^etcd 3.*3 endpoints$/) })
})

test('a version whose former leaders revoke leases is a warning for each member that has it', async () => {
  const versions = ['3.4.30', '3.5.13', '3.5.12']
  const mixed: EtcdRequest = async (address, body) => {
    const answer = await request(address, body)
    const at = cluster.endpoints.findIndex((endpoint) => address.startsWith(endpoint))
    return answer.replace(/"version":"[^"]*"/, `"version":"${versions[at]}"`)
  }
  const { checks } = await examineEtcd(cluster.endpoints, mixed, DEFAULTS)
  const outcome = await runChecks(
    checks.filter(({ id }) => id === 'etcd.version'),
    DEFAULTS,
  )
  expect(shown(outcome)).toEqual(['warning etcd.version', 'warning etcd.version'])
  expect(outcome.findings.map(({ evidence }) => evidence).toSorted()).toEqual(['version 3.4.30', 'version 3.5.12'])
})

test('a slow disk is found by its metrics', async () => {
  const name = 'etcd_disk_wal_fsync_duration_seconds'
  const slow: EtcdRequest = async (address, body) => {
    const answer = await request(address, body)
    return answer.replace(new RegExp(`^${name}_count .*`, 'm'), `${name}_count 100000`)
  }
  const { checks } = await examineEtcd(cluster.endpoints, slow, DEFAULTS)
  const outcome = await runChecks(
    checks.filter(({ id }) => id === 'etcd.disk'),
    DEFAULTS,
  )
  expect(shown(outcome)).toEqual(Array.from({ length: 3 }, () => 'warning etcd.disk'))
  expect(outcome.findings[0]?.evidence).toMatch(/of 100000 syncs took longer than 256ms$/)
})

test('an alarm for lack of space is found', async () => {
  const [endpoint] = cluster.endpoints as [string]
  const { header } = JSON.parse(await request(`${endpoint}/v3/maintenance/status`, {}))
  const alarm = { memberID: header.member_id, alarm: 'NOSPACE' }
  await request(`${endpoint}/v3/maintenance/alarm`, { action: 'ACTIVATE', ...alarm })
  const report = await diagnose(url(), { ignore: ['etcd.disk', 'etcd.version'] })
  await request(`${endpoint}/v3/maintenance/alarm`, { action: 'DEACTIVATE', ...alarm })
  expect(shown(report)).toContain('danger etcd.alarms')
  expect(report.safe).toBe(false)
  expect(report.findings.find(({ id }) => id === 'etcd.alarms')?.fix).toContain('etcdctl alarm disarm')
})

test('a member that is down is a warning, and a lost quorum is danger', async () => {
  const statuses = await Promise.all(
    cluster.endpoints.map(async (each) => JSON.parse(await request(`${each}/v3/maintenance/status`, {}))),
  )
  const leader = statuses.findIndex((status) => status.leader === status.header.member_id)
  const [first, second] = cluster.nodes.filter((_, i) => i !== leader) as [EtcdNode, EtcdNode]
  await first.kill()
  const one = await diagnose(url(), { ignore: ['etcd.disk', 'etcd.version'] })
  await second.kill()
  await until('nobody leads', async () => {
    const status = JSON.parse(await request(`${cluster.endpoints[leader]}/v3/maintenance/status`, {}))
    return (status.leader ?? '0') === '0'
  })
  const two = await diagnose(url(), { ignore: ['etcd.disk', 'etcd.health'], timeoutMs: 1_000 })
  await cluster.nodes[leader]?.kill()
  const none = await diagnose(url())
  expect(shown(one)).toEqual(['warning etcd.quorum'])
  expect(one.findings[0]?.at).toBe(`http://${first.host}`)
  expect(shown(two)).toContain('danger etcd.quorum')
  expect(two.safe).toBe(false)
  expect(none).toMatchObject({ reachable: false, findings: [{ id: 'etcd.reachable' }] })
})

test('certificates and a prefix in the URL are used as the store uses them', async () => {
  const secure = await startEtcd({ nodes: 1, tls: 'client-certificates' })
  onTestFinished(() => secure.stop())
  const folder = temporaryFolder(onTestFinished)
  const files = new URLSearchParams()
  for (const name of ['ca', 'cert', 'key'] as const) {
    writeFileSync(`${folder}/${name}.pem`, secure[name] ?? '')
    files.set(name, `${folder}/${name}.pem`)
  }
  const ignore = ['etcd.disk', 'etcd.version']
  const report = await diagnose(`${secure.url}/shop/?${files}`, { ignore })
  expect(report).toMatchObject({ reachable: true, safe: true, findings: [] })
  const without = await diagnose(secure.url, { ignore })
  expect(without).toMatchObject({ reachable: false, findings: [{ id: 'etcd.reachable' }] })
})

test('a URL that the store refuses is refused before anything is asked', async () => {
  await expect(diagnose('etcd://')).rejects.toThrow('store takes etcd://')
  await expect(diagnose('etcd://127.0.0.1:1,127.0.0.1:1')).rejects.toThrow('each endpoint once')
  await expect(diagnose('etcd://ada:hunter2/x@127.0.0.1:1')).rejects.not.toThrow('hunter2')
})

test('a member that is down does not hide that another one knows the user', async () => {
  const secured = await startEtcd({ nodes: 1 })
  onTestFinished(() => secured.stop())
  for (const words of ['user add root:pw', 'user grant-role root root', 'auth enable'])
    await secured.ctl(...words.split(' '))
  const [host] = secured.nodes.map((node) => node.host)
  const report = await diagnose(`etcd://root:pw@127.0.0.1:9,${host}`, { ignore: ['etcd.disk', 'etcd.version'] })
  expect(report.reachable).toBe(true)
  expect(shown(report)).toContain('warning etcd.quorum')
})
