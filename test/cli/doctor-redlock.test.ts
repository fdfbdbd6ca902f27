/** `doctor` against Redlocks, each with one thing wrong. */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../testbed/servers/index.js'
import { openLocks } from '../../src/index.js'
import { diagnose, type DoctorReport } from '../../src/doctor/index.js'
import { judgeClocks } from '../../src/doctor/redlock.js'
import { DEFAULTS } from '../../src/doctor/check.js'
import type { ExaminedNode } from '../../src/doctor/redis-node.js'
import { until } from './harness.js'

let servers: RedisServer[]
let spare: RedisServer

beforeAll(async () => {
  // Otherwise a master waits for five seconds whether a second replica comes.
  const args = ['--repl-diskless-sync-delay', '0']
  const all = await Promise.all(Array.from({ length: 4 }, () => startRedis({ appendonly: true, args })))
  spare = all.pop() as RedisServer
  servers = all
})
afterAll(() => Promise.all([...servers, spare].map((server) => server.stop())))

const at = (...nodes: RedisServer[]): string => `redlock://${nodes.map(({ port }) => `127.0.0.1:${port}`).join()}`
const shown = ({ findings }: DoctorReport): string[] => findings.map(({ id, severity }) => `${severity} ${id}`)

test('a good Redlock gets no finding, before its first lock and after', async () => {
  for (const _ of ['before', 'after']) {
    const report = await diagnose(at(...servers))
    expect(report.findings).toEqual([])
    expect(report).toMatchObject({ safe: true, server: expect.stringMatching(/^3 servers, Redis \d/) })
  }
})

test('one server under two addresses is found', async () => {
  const [a, b] = servers as [RedisServer, RedisServer]
  const report = await diagnose(`redlock://127.0.0.1:${a.port},localhost:${a.port},127.0.0.1:${b.port}`)
  expect(shown(report)).toContain('danger redlock.independence')
  expect(report.findings[0]?.at).toBe(`127.0.0.1:${a.port} and localhost:${a.port}`)
  expect(report.safe).toBe(false)
})

test('a server that copies another is found', async () => {
  const [a, b] = servers as [RedisServer, RedisServer]
  await spare.command('REPLICAOF', '127.0.0.1', String(a.port))
  await until('it follows', async () =>
    String(await spare.command('INFO', 'replication')).includes('master_link_status:up'),
  )
  const report = await diagnose(at(a, b, spare))
  await spare.command('REPLICAOF', 'NO', 'ONE')
  expect(shown(report)).toEqual(expect.arrayContaining(['danger redlock.independence', 'danger redlock.role']))
  expect(report.findings.find(({ id }) => id === 'redlock.independence')?.at).toBe(
    `127.0.0.1:${a.port} and 127.0.0.1:${spare.port}`,
  )
})

test('servers that belong to a Redlock of another size are found, and an even number is noted', async () => {
  await spare.command('FLUSHALL')
  const report = await diagnose(at(...servers, spare))
  expect(shown(report)).toContain('note redlock.servers')
  expect(shown(report)).toContain('danger redlock.votes')
  expect(report.findings.find(({ id }) => id === 'redlock.votes')?.evidence).toBe(
    'it votes for a Redlock of 3 servers, and the URL names 4',
  )
})

test('one of three servers that is down is a warning, two of three are danger, all are unreachable', async () => {
  const [a] = servers as [RedisServer]
  const dead = '127.0.0.1:1'
  const one = await diagnose(`${at(...servers.slice(0, 2))},${dead}`)
  const two = await diagnose(`redlock://127.0.0.1:${a.port},${dead},127.0.0.1:2`)
  const all = await diagnose(`redlock://${dead},127.0.0.1:2,127.0.0.1:3`)
  expect(shown(one)).toEqual(['warning redlock.servers'])
  expect(one.safe).toBe(true)
  expect(shown(two)).toEqual(['danger redlock.servers', 'danger redlock.servers'])
  expect(two.findings[0]?.summary).toBe('no lock can be had: 1 of 3 servers answer, and it takes 2')
  expect(all).toMatchObject({ reachable: false, findings: [{ id: 'redlock.reachable' }] })
})

test('a server that was emptied does not vote, and the finding says until when', async () => {
  const [, , last] = servers as [RedisServer, RedisServer, RedisServer]
  await last.command('FLUSHALL')
  const empty = await diagnose(at(...servers), { ignore: ['redlock.trial'] })
  expect(shown(empty)).toEqual(['warning redlock.votes'])
  expect(empty.findings[0]).toMatchObject({
    at: `127.0.0.1:${last.port}`,
    summary: 'this server does not vote; 2 of 3 do, and it takes 2',
    evidence: 'it is empty, and the others are not: it was emptied or is new',
  })
  // A client that locks notices the loss, and the server begins to sit out.
  const locks = await openLocks(at(...servers))
  await using _ = await locks.acquire('notices')
  await until('it has noticed', async () => (await last.command('HGET', 'leasehold:redlock', 'state')) === 'lost')
  await locks.close({ grace: 0 })
  const since = Number(await last.command('HGET', 'leasehold:redlock', 'since'))
  const report = await diagnose(at(...servers))
  expect(shown(report)).toEqual(['warning redlock.votes'])
  expect(report.findings[0]?.evidence).toContain(`sits out until ${new Date(since + 60_000).toISOString()}`)
})

test('clocks that differ between servers are found', async () => {
  const [a, b] = servers.map(
    (server): ExaminedNode => ({
      node: { name: `127.0.0.1:${server.port}`, send: (...args) => server.command(...args) },
      info: new Map(),
    }),
  ) as [ExaminedNode, ExaminedNode]
  const fast: ExaminedNode = {
    info: new Map(),
    node: {
      name: 'fast',
      send: async (...args) => {
        const [seconds, micros] = (await b.node.send(...args)) as string[]
        return [String(Number(seconds) + 5), micros]
      },
    },
  }
  expect(await judgeClocks([a, b], DEFAULTS)).toEqual([])
  const found = await judgeClocks([a, fast], DEFAULTS)
  expect(found.map(({ at: where }) => where)).toEqual(['fast', `${a.node.name} and fast`])
  expect(found[1]?.evidence).toMatch(/^fast is 5(\.0)?s ahead of/)
})

test('eviction and missing rights on one of the servers are found there', async () => {
  const [a] = servers as [RedisServer]
  await a.command('CONFIG', 'SET', 'maxmemory', '100mb')
  await a.command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru')
  for (const server of servers) {
    await server.command('ACL', 'SETUSER', 'narrow', 'reset', 'on', '>pw', '~*', '&*', '+@all', '-pexpire')
  }
  const report = await diagnose(at(...servers).replace('redlock://', 'redlock://narrow:pw@'))
  await a.command('CONFIG', 'SET', 'maxmemory', '0')
  expect(shown(report).filter((line) => line.startsWith('danger'))).toEqual([
    'danger redlock.eviction',
    ...servers.map(() => 'danger redlock.rights'),
  ])
  expect(report.findings.find(({ id }) => id === 'redlock.eviction')?.at).toBe(`127.0.0.1:${a.port}`)
})
