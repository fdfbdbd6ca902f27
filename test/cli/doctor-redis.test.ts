/** `doctor` against Redis servers, each with one thing wrong. */
import { mkdir, rm } from 'node:fs/promises'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startProxy, startRedis } from '../../testbed/servers/index.js'
import { diagnose, type DoctorReport } from '../../src/doctor/index.js'
import { fieldsOf } from '../../src/doctor/redis-node.js'
import {
  CLUSTER_COMMANDS,
  commandOf,
  REDIS_COMMANDS,
  REDLOCK_COMMANDS,
  REPLICA_COMMANDS,
} from '../../src/doctor/redis-rights.js'
import { judgeVersion } from '../../src/doctor/redis-server.js'
import { makeUser } from '../../testbed/redis/acl.js'
import { LOCK_KINDS } from '../../src/primitives/inspect.js'
import { until } from './harness.js'

let server: RedisServer
let replica: RedisServer

beforeAll(async () => {
  // Otherwise a master waits for five seconds whether a second replica comes.
  const args = ['--repl-diskless-sync-delay', '0']
  ;[server, replica] = await Promise.all([startRedis({ appendonly: true, args }), startRedis({ appendonly: true })])
})
afterAll(() => Promise.all([server.stop(), replica.stop()]))

/** Sets these, diagnoses, and sets them back. */
async function withSettings(
  settings: Record<string, string>,
  url: () => string = () => server.url,
): Promise<DoctorReport> {
  const before: [string, string][] = []
  for (const [name, value] of Object.entries(settings)) {
    const [, old = ''] = (await server.command('CONFIG', 'GET', name)) as string[]
    before.unshift([name, old])
    await server.command('CONFIG', 'SET', name, value)
  }
  try {
    return await diagnose(url())
  } finally {
    for (const [name, value] of before) await server.command('CONFIG', 'SET', name, value)
  }
}

const shown = ({ findings }: DoctorReport): string[] => findings.map(({ id, severity }) => `${severity} ${id}`)

test('a good server gets no finding, by the default user and by the user of the docs', async () => {
  const report = await diagnose(server.url)
  expect(report).toMatchObject({
    store: 'redis',
    reachable: true,
    safe: true,
    findings: [],
    server: expect.stringMatching(/^Redis \d/),
  })
  expect(report.checks.map(({ outcome }) => outcome)).toEqual(report.checks.map(() => 'ok'))
  const kinds = [...LOCK_KINDS, 'leasehold']
  await makeUser(
    server,
    kinds.map((kind) => `${kind}:*`),
    ['leasehold:*'],
  )
  const asLocker = await diagnose(server.url.replace('redis://', 'redis://locker:pw@'))
  expect(shown(asLocker), 'CONFIG is not among its rights').toEqual(['note redis.persistence'])
  expect(asLocker.safe).toBe(true)
  expect(JSON.stringify(asLocker)).not.toContain('pw@')
})

test('what a trial leaves behind expires, and nothing else was written', async () => {
  await server.command('FLUSHALL')
  await server.command('SET', 'theirs', '1')
  await diagnose(server.url)
  const keys = ((await server.command('KEYS', '*')) as string[]).filter((key) => key !== 'theirs')
  expect(keys.filter((key) => !key.startsWith('leasehold:1:'))).toEqual([])
  for (const key of keys) expect(Number(await server.command('PTTL', key)), key).toBeGreaterThan(0)
})

test.each<[string, Record<string, string>, string[], string]>([
  [
    'eviction',
    { maxmemory: '100mb', 'maxmemory-policy': 'volatile-ttl' },
    ['danger redis.eviction'],
    'maxmemory-policy volatile-ttl with maxmemory 100 MiB',
  ],
  ['memory that is used up', { maxmemory: '500kb' }, ['danger redis.memory'], 'of maxmemory 500 KiB used'],
  ['no persistence', { appendonly: 'no' }, ['warning redis.persistence'], 'appendonly no, no snapshots'],
  ['snapshots only', { appendonly: 'no', save: '3600 1' }, ['warning redis.persistence'], 'snapshots by "save 3600 1"'],
  ['a sync every second', { appendfsync: 'everysec' }, ['note redis.persistence'], 'appendfsync everysec'],
  [
    'too few replicas',
    { 'min-replicas-to-write': '1' },
    ['danger redis.replicas'],
    'min-replicas-to-write 1, 0 connected',
  ],
])('%s is found, with what the server answered', async (_, settings, found, evidence) => {
  const report = await withSettings(settings)
  expect(shown(report)).toEqual(found)
  expect(report.findings[0]?.evidence).toContain(evidence)
  expect(report.findings[0]?.fix).not.toBe('')
  expect(report.safe).toBe(!found[0]?.startsWith('danger'))
})

test('a policy that evicts is no danger without maxmemory', async () => {
  expect(shown(await withSettings({ 'maxmemory-policy': 'allkeys-lru' }))).toEqual([])
})

test('a server that cannot save is found', async () => {
  const inTheWay = join(server.dir, 'dump.rdb')
  // A snapshot of an earlier test may be there.
  await rm(inTheWay, { force: true })
  await mkdir(inTheWay)
  const status = async (): Promise<string | undefined> =>
    fieldsOf(String(await server.command('INFO', 'persistence'))).get('rdb_last_bgsave_status')
  // Scheduled: an earlier test may have left a rewrite of the log under way.
  await server.command('BGSAVE', 'SCHEDULE')
  await until('the snapshot fails', async () => (await status()) === 'err')
  const report = await diagnose(server.url)
  await rm(inTheWay, { recursive: true })
  await server.command('BGSAVE', 'SCHEDULE')
  await until('the snapshot works', async () => (await status()) === 'ok')
  expect(shown(report)).toContain('warning redis.persistence')
  expect(report.findings[0]?.evidence).toBe('rdb_last_bgsave_status err')
})

test('replicas: unsafe failover, a URL that asks for too many, and a URL of a replica are found', async () => {
  await replica.command('REPLICAOF', '127.0.0.1', String(server.port))
  const linked = async (): Promise<boolean> =>
    String(await server.command('INFO', 'replication')).includes('state=online')
  await until('the replica follows', linked)
  const plain = await diagnose(server.url)
  const many = await diagnose(`${server.url}?replicas=2`)
  const confirmed = await diagnose(`${server.url}?replicas=1&within=2s`)
  const careful = await withSettings({ 'min-replicas-to-write': '1' })
  const ofReplica = await diagnose(replica.url)
  await replica.command('REPLICAOF', 'NO', 'ONE')
  await until('it is alone again', async () => String(await server.command('ROLE')) !== '' && !(await linked()))
  expect(shown(plain)).toEqual(['warning redis.replicas'])
  expect(plain.findings[0]?.evidence).toBe(
    '1 replica, min-replicas-to-write 0: a write is answered before any replica has it',
  )
  expect(shown(many)).toEqual(['danger redis.replicas'])
  expect(shown(confirmed)).toEqual([])
  expect(shown(careful)).toEqual([])
  expect(shown(ofReplica)).toContain('danger redis.role')
  expect(ofReplica.findings[0]?.fix).toContain(`127.0.0.1:${server.port}`)
})

test('a clock that differs from the one of this host is found', async () => {
  const report = await diagnose(server.url, { hostNow: () => Date.now() - 90_000 })
  expect(shown(report)).toEqual(['warning redis.clock'])
  expect(report.findings[0]?.evidence).toMatch(/^the server is 1.5m ahead of this host/)
})

test('latency is judged by the ttl', async () => {
  const proxy = await startProxy(server.port)
  proxy.delay(20)
  const url = proxy.through(server.url)
  const [long, short] = await Promise.all([30_000, 60].map((ttlMs) => diagnose(url, { ttlMs })))
  await proxy.stop()
  expect(shown(long as DoctorReport)).toEqual([])
  expect(shown(short as DoctorReport)).toEqual(['danger redis.latency'])
})

test('a server that answers nothing more ends in findings, not in waiting', async () => {
  const proxy = await startProxy(server.port)
  proxy.blackhole('replies')
  const began = performance.now()
  const report = await diagnose(proxy.through(server.url), { timeoutMs: 200 })
  await proxy.stop()
  expect(report).toMatchObject({ reachable: false, safe: false, findings: [{ id: 'redis.reachable' }] })
  expect(performance.now() - began).toBeLessThan(5_000)
})

test('missing rights are named as ACL rules, commands and keys', async () => {
  await makeUser(server, ['lock:*', 'leasehold:*'], ['leasehold:*'])
  await server.command('ACL', 'SETUSER', 'locker', '-rpush', '-blmpop')
  const url = server.url.replace('redis://', 'redis://locker:pw@')
  const keys = await diagnose(url)
  await server.command('ACL', 'SETUSER', 'locker', '-eval')
  const scripts = await diagnose(url)
  expect(shown(keys)).toContain('danger redis.rights')
  const rights = keys.findings.find(({ id }) => id === 'redis.rights')
  const others = LOCK_KINDS.filter((kind) => kind !== 'lock').map((kind) => `~${kind}:*`)
  expect(rights?.evidence).toBe(`denied: +rpush +blmpop ${others.join(' ')}`)
  expect(rights?.fix).toContain('ACL SETUSER <user> +rpush +blmpop')
  expect(scripts.findings.find(({ id }) => id === 'redis.rights')?.evidence).toBe('denied: +eval')
})

test('a user who may not ask for INFO leaves checks unmade, and the store not known to be safe', async () => {
  await makeUser(server, ['*'], ['*'])
  await server.command('ACL', 'SETUSER', 'locker', '-info')
  const report = await diagnose(server.url.replace('redis://', 'redis://locker:pw@'))
  expect(report).toMatchObject({ reachable: true, safe: false, server: 'Redis' })
  expect(shown(report)).toEqual([
    ...['version', 'role', 'eviction', 'memory', 'persistence', 'replicas', 'cluster'].map(
      (id) => `unknown redis.${id}`,
    ),
    'warning redis.rights',
  ])
  expect(report.checks.find(({ id }) => id === 'redis.trial')?.outcome).toBe('ok')
})

test('the rights that are asked for are those of the docs', () => {
  const rules = (page: string): string[] => {
    const text = readFileSync(new URL(`../../docs/stores/${page}.md`, import.meta.url), 'utf8')
    const [block = ''] = /ACL SETUSER locker [^`]*/.exec(text) ?? []
    const more = [/On a cluster besides: `([^`]*)`/, /With `replicas` besides: `([^`]*)`/].map(
      (at) => at.exec(text)?.[1],
    )
    return `${block} ${more.join(' ')}`
      .split(/[\s\\]+/)
      .filter((word) => word.startsWith('+'))
      .map((word) => word.slice(1))
  }
  // Sent by clients while they connect: nobody gets as far as a check without them.
  const connecting = ['hello', 'auth', 'client|setname']
  const asked = (...lists: (readonly string[])[]): string[] => [...lists.flat().map(commandOf), ...connecting].sort()
  expect(asked(REDIS_COMMANDS, CLUSTER_COMMANDS, REPLICA_COMMANDS)).toEqual(rules('redis').sort())
  expect(asked(REDLOCK_COMMANDS)).toEqual(rules('redlock').sort())
})

test('a cluster: the wrong kind of URL and slots that nobody serves are found', async () => {
  const node = await startRedis({
    appendonly: true,
    args: ['--cluster-enabled', 'yes', '--cluster-announce-ip', '127.0.0.1'],
  })
  const url = node.url.replace('redis://', 'redis+cluster://')
  const serving = async (): Promise<string> => String(await node.command('CLUSTER', 'INFO'))
  await node.command('CLUSTER', 'ADDSLOTSRANGE', '0', '16383')
  await until('the cluster is up', async () => (await serving()).includes('cluster_state:ok'))
  const [good, single] = [await diagnose(url), await diagnose(node.url)]
  await node.command('CLUSTER', 'DELSLOTS', '5', '6')
  await until('the cluster is down', async () => (await serving()).includes('cluster_state:fail'))
  const broken = await diagnose(url)
  await node.stop()
  expect(shown(good)).toEqual([])
  expect(good.server).toMatch(/^Redis [\d.]+, cluster$/)
  expect(shown(single)).toContain('danger redis.cluster')
  expect(single.findings.find(({ id }) => id === 'redis.cluster')?.fix).toBe(`redis+cluster://127.0.0.1:${node.port}`)
  expect(shown(broken)).toEqual(['danger redis.cluster'])
  expect(broken.findings[0]?.evidence).toBe('cluster_state fail, 16382 of 16384 slots served')
})

test('kinds and versions of servers that locks do not work on are recognised by INFO', () => {
  const judged = (info: string): string | undefined => {
    const fault = judgeVersion({ node: { name: 'a:1', send: async () => '' }, info: fieldsOf(info) })
    return fault && `${fault.severity}: ${fault.evidence}`
  }
  expect(judged('redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1')).toBe(undefined)
  expect(judged('redis_version:7.4.0\r\ndragonfly_version:df-v1.20')).toBe('danger: dragonfly_version df-v1.20')
  expect(judged('redis_version:6.3.4\r\nexecutable:/usr/bin/keydb-server\r\nrole:active-replica')).toBe(
    'danger: role active-replica',
  )
  expect(judged('redis_version:6.2.14')).toBe('note: Redis 6.2.14 is older than Redis 7.0, so grants come on channels')
  expect(judged('redis_version:5.0.7')).toBe('danger: Redis 5.0.7')
})
