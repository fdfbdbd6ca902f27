import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../testbed/servers/index.js'
import { createLocks } from '../../src/index.js'
import { redis } from '../../src/stores/redis/index.js'
import { CliFixture } from './harness.js'

const HELD = 5_000
const fixture = new CliFixture()
let server: RedisServer
let client: Redis

beforeAll(async () => {
  server = await startRedis()
  client = new Redis(server.url)
  const locks = createLocks(redis(client), { ttl: '10m' })
  await Promise.all(Array.from({ length: HELD }, (_, i) => locks.acquire(`held:${i}`)))
})
afterAll(async () => {
  client.disconnect()
  await server.stop()
})

const listing = (...args: string[]) => fixture.leasehold('ls', '--store', server.url, ...args).ended

async function scriptCalls(): Promise<number> {
  const stats = String(await server.command('INFO', 'commandstats'))
  return Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)?.[1] ?? 0)
}

test('ls prints every page, under one line of titles', async () => {
  const { code, stdout } = await listing()
  const [titles, ...lines] = stdout.trimEnd().split('\n')
  expect(titles).toMatch(/^NAME +HOLDER /)
  expect(new Set(lines.map((line) => line.split(' ')[0])).size).toBe(HELD)
  expect(lines.length).toBe(HELD)
  expect(code).toBe(0)
})

test('ls --json prints one array, whatever the number of pages', async () => {
  const { code, stdout } = await listing('--json')
  const all = JSON.parse(stdout) as { name: string }[]
  expect(all.length).toBe(HELD)
  expect(stdout).toBe(`${JSON.stringify(all, null, 2)}\n`)
  expect(code).toBe(0)
})

test('ls prints the first page before it has read the last, and reads no further for a reader that has gone', async () => {
  const before = await scriptCalls()
  await listing()
  const all = (await scriptCalls()) - before
  const [file, ...args] = [...fixture.program, 'ls', '--store', server.url]
  const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  const exit = once(child, 'exit')
  const [first] = (await once(child.stdout, 'data')) as [Buffer]
  child.stdout.destroy()
  expect(first.toString()).toMatch(/^NAME/)
  expect(await exit).toEqual([0, null])
  // The pipe holds less than two pages: so much may have been read before the reader was found gone.
  expect((await scriptCalls()) - before - all).toBeLessThan(all * 0.7)
})
