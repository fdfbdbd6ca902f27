import { afterEach, expect, test } from 'vitest'
import {
  type RedisServer,
  startEtcd,
  startPgBouncer,
  startPostgres,
  startRedis,
  startRedisCluster,
  startSentinel,
  startStandby,
} from '../../testbed/servers/index.js'
import { reservePort } from '../../testbed/servers/ports.js'
import { until } from '../../testbed/servers/process.js'

const running: { stop(): Promise<void> }[] = []

function using<T extends { stop(): Promise<void> }>(server: T): T {
  running.push(server)
  return server
}

afterEach(async () => {
  for (const server of running.splice(0).toReversed()) await server.stop()
})

test('every port is handed out once, however many callers ask at the same time', async () => {
  const ports = await Promise.all(Array.from({ length: 50 }, () => reservePort({ alsoBus: true })))
  try {
    const numbers = ports.flatMap(({ number }) => [number, number + 10_000])
    expect(new Set(numbers).size).toBe(100)
    await expect(reservePort({ wanted: numbers[0] })).rejects.toThrow(`port ${numbers[0]} is in use`)
  } finally {
    for (const port of ports) port.free()
  }
})

test('Redis restarts on the same port, empty or with its data, as requested', async () => {
  const redis = using(await startRedis())
  const { port, pid } = redis
  await redis.command('SET', 'name', 'value')
  await redis.restart({ keepData: true })
  expect([redis.port, await redis.command('GET', 'name')]).toEqual([port, 'value'])
  expect(redis.pid).not.toBe(pid)
  await redis.restart({ keepData: false })
  expect(await redis.command('GET', 'name')).toBeNull()
})

test('Redis without persistence rejects a restart that must keep data after a crash', async () => {
  const redis = using(await startRedis())
  await redis.kill()
  expect(() => redis.pid).toThrow('not running')
  await expect(redis.restart({ keepData: true })).rejects.toThrow('appendonly')
  await redis.restart()
  expect(await redis.command('DBSIZE')).toBe(0)
})

test('Redis with appendonly keeps every acknowledged write through kill -9', async () => {
  const redis = using(await startRedis({ appendonly: true }))
  for (let count = 1; count <= 50; count++) expect(await redis.command('INCR', 'count')).toBe(count)
  await redis.kill()
  await redis.restart({ keepData: true })
  expect(await redis.command('GET', 'count')).toBe('50')
})

test('a frozen Redis keeps the port open and answers nothing until thawed', async () => {
  const redis = using(await startRedis())
  await redis.freeze()
  const answer = redis.command('PING')
  await expect(answer).rejects.toThrow('no answer to PING')
  await redis.thaw()
  expect(await redis.command('PING')).toBe('PONG')
})

test('Redis supports a password, further settings and TLS', async () => {
  const redis = using(await startRedis({ password: 'open:sesame', args: ['--maxmemory', '12mb'], tls: true }))
  expect(redis.url).toBe(`rediss://:open%3Asesame@127.0.0.1:${redis.port}`)
  expect(redis.ca).toContain('BEGIN CERTIFICATE')
  expect(await redis.command('CONFIG', 'GET', 'maxmemory')).toEqual(['maxmemory', String(12 * 1024 * 1024)])
})

test('a server that cannot start reports why and leaves nothing behind', async () => {
  await expect(startRedis({ args: ['--no-such-setting', 'yes'] })).rejects.toThrow('no-such-setting')
})

async function successorOf(master: RedisServer, ask: () => Promise<RedisServer>): Promise<RedisServer> {
  let current = master
  await until('another node is master', async () => {
    current = await ask().catch(() => master)
    return current !== master
  })
  return current
}

test('a Redis cluster serves all slots with a replica each, and fails over', async () => {
  const cluster = using(await startRedisCluster())
  expect(cluster.nodes).toHaveLength(6)
  expect(cluster.url).toBe(`redis+cluster://${cluster.nodes.map(({ port }) => `127.0.0.1:${port}`).join(',')}`)
  const master = await cluster.masterOf(0)
  expect(master).toBe(cluster.masters[0])
  await master.kill()
  const successor = await successorOf(master, () => cluster.masterOf(0))
  expect(cluster.replicas).toContain(successor)
  await master.restart()
  await cluster.settled()
  expect(await cluster.masterOf(0)).toBe(successor)
})

test('sentinels replace a master that was killed', async () => {
  const setup = using(await startSentinel())
  expect(setup.url).toBe(
    `redis+sentinel://${setup.sentinels.map(({ port }) => `127.0.0.1:${port}`).join(',')}/mymaster`,
  )
  expect(await setup.currentMaster()).toBe(setup.master)
  await setup.master.kill()
  const successor = await successorOf(setup.master, () => setup.currentMaster())
  expect(setup.replicas).toContain(successor)
})

test('PostgreSQL keeps committed rows through kill -9 and both kinds of restart', async () => {
  const postgres = using(await startPostgres({ settings: { max_connections: 33 } }))
  expect(await postgres.psql('SHOW max_connections')).toBe('33')
  const url = await postgres.createDatabase('a shop')
  expect(url).toBe(`postgres://postgres@127.0.0.1:${postgres.port}/a%20shop`)
  await postgres.psql('CREATE TABLE t (n int)', 'a shop')
  const endings = [() => postgres.kill(), () => postgres.restart({ mode: 'immediate' }), () => postgres.restart()]
  for (const end of endings) {
    await postgres.psql('INSERT INTO t VALUES (1)', 'a shop')
    await end()
    if (end === endings[0]) await postgres.restart()
  }
  expect(await postgres.psql('SELECT count(*) FROM t', 'a shop')).toBe('3')
  await postgres.restart({ keepData: false })
  await expect(postgres.psql('SELECT 1', 'a shop')).rejects.toThrow('does not exist')
})

test('freezing PostgreSQL freezes its open sessions as well', async () => {
  const postgres = using(await startPostgres())
  const slept = postgres.psql('SELECT pg_sleep(3)').then(() => performance.now())
  await until('the session sleeps', async () => {
    return (await postgres.psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")) === '1'
  })
  await postgres.freeze()
  await new Promise((resolve) => setTimeout(resolve, 3_500))
  const thawedAt = performance.now()
  await postgres.thaw()
  expect(await slept).toBeGreaterThanOrEqual(thawedAt)
})

test('a synchronous standby has every commit, and can be promoted', async () => {
  const primary = using(await startPostgres())
  await primary.psql('CREATE TABLE t (n int)')
  const standby = using(await startStandby(primary, { synchronous: true }))
  await primary.psql('INSERT INTO t VALUES (1)')
  await primary.kill()
  await expect(standby.psql('INSERT INTO t VALUES (2)')).rejects.toThrow('read-only')
  await standby.promote()
  await standby.psql('INSERT INTO t VALUES (2)')
  expect(await standby.psql('SELECT count(*) FROM t')).toBe('2')
})

test('PgBouncer in transaction mode shares server connections, and serves again after a restart of either server', async () => {
  const postgres = using(await startPostgres())
  await postgres.createDatabase('shop')
  const bouncer = using(await startPgBouncer({ postgres, mode: 'transaction', poolSize: 1 }))
  const backend = () => bouncer.psql('SELECT pg_backend_pid()', 'shop')
  const first = await backend()
  expect(await backend(), 'a second client gets the same backend').toBe(first)
  await postgres.restart()
  let second = first
  await until('PgBouncer has found the new PostgreSQL', async () => {
    second = await backend().catch(() => first)
    return second !== first
  })
  await bouncer.restart()
  expect(await backend()).not.toBe(second)
})

test.each([
  { nodes: 1, tls: false },
  { nodes: 3, tls: 'client-certificates' },
] as const)('etcd with $nodes node(s), TLS $tls, starts and restarts', async (options) => {
  const etcd = using(await startEtcd(options))
  expect(etcd.nodes).toHaveLength(options.nodes)
  expect(etcd.url).toMatch(options.tls ? /^etcds:\/\/127/ : /^etcd:\/\/127/)
  await etcd.nodes[0]?.kill()
  await etcd.nodes[0]?.restart()
  await etcd.restart({ keepData: false })
})
