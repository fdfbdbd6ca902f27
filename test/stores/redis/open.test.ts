/** Options, URLs, and what is taken for a client. */
import { execFile } from 'node:child_process'
import { EventEmitter } from 'node:events'
import { promisify } from 'node:util'
import { afterEach, expect, test } from 'vitest'
import { startRedis, startRedisCluster } from '../../../testbed/servers/index.js'
import { createLocks, InvalidOptionError } from '../../../src/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import { open, parseAddress } from '../../../src/stores/redis/open.js'
import { ioredis, nodeRedis } from '../../../testbed/redis/fixtures.js'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean()
})

const parsed = (url: string): object => {
  const { address, options } = parseAddress(url)
  return { ...address, options }
}

test('URLs are taken apart as documented', () => {
  const single = {
    kind: 'single',
    tls: false,
    db: 0,
    master: '',
    username: undefined,
    password: undefined,
    options: {},
  }
  expect(parsed('redis://localhost')).toEqual({ ...single, hosts: [{ host: 'localhost', port: 6379 }] })
  expect(parsed('rediss://user:p%40ss:w@[::1]:7000/5')).toEqual({
    ...single,
    tls: true,
    db: 5,
    username: 'user',
    password: 'p@ss:w',
    hosts: [{ host: '::1', port: 7000 }],
  })
  expect(parsed('redis://:secret@h:1?prefix=app%3A&timeout=5s')).toMatchObject({
    username: undefined,
    password: 'secret',
    options: { prefix: 'app:', timeout: '5s' },
  })
  expect(parsed('redis+cluster://a:1,b:2')).toMatchObject({
    kind: 'cluster',
    hosts: [
      { host: 'a', port: 1 },
      { host: 'b', port: 2 },
    ],
  })
  expect(parsed('rediss+sentinel://:pw@a,b:2/mymaster/3')).toMatchObject({
    kind: 'sentinel',
    tls: true,
    password: 'pw',
    db: 3,
    master: 'mymaster',
    hosts: [
      { host: 'a', port: 26379 },
      { host: 'b', port: 2 },
    ],
  })
})

test('a malformed URL is refused, without showing its password', async () => {
  const wrong = [
    'redis://a,b',
    'redis://a:99999999',
    'redis://a/x',
    'redis://a/1/2',
    'redis+cluster://a/3',
    'redis+sentinel://a:1',
    'redis+other://a',
    'redis://user:hidden@a?unknown=1',
  ]
  for (const url of wrong) await expect(open(url), url).rejects.toThrow(InvalidOptionError)
  const error = (await open('redis://user:hidden@a?unknown=1').catch((reason: unknown) => reason)) as Error
  expect(error.message).not.toContain('hidden')
})

test('a store opened from a URL locks in the named database under the prefix, and closes its client', async () => {
  const server = await startRedis({ password: 'pw' })
  cleanups.push(() => server.stop())
  const store = await open(`redis://:pw@127.0.0.1:${server.port}/2?prefix=app:`)
  const locks = createLocks(store)
  const lock = await locks.acquire('job')
  expect(await server.command('GET', 'app:lock:job')).toBeNull()
  expect(String(await server.command('INFO', 'keyspace'))).toContain('db2:')
  expect(await lock.release()).toBe(true)
  await locks.close()
  await store.close()
  const clients = async (): Promise<number> =>
    String(await server.command('CLIENT', 'LIST'))
      .trim()
      .split('\n').length
  await expect.poll(clients).toBe(1)
})

/** Runs code in a process where these packages are not installed. */
async function without(packages: string[], code: string): Promise<string> {
  const hook = `export const resolve = (name, context, next) => {
    if (!${JSON.stringify(packages)}.includes(name)) return next(name, context)
    throw Object.assign(new Error('Cannot find package ' + name), { code: 'ERR_MODULE_NOT_FOUND' })
  }`
  const source = `
    import { register } from 'node:module'
    register('data:text/javascript,' + encodeURIComponent(${JSON.stringify(hook)}))
    const { open } = await import('./src/stores/redis/open.ts')
    ${code}`
  const args = ['--import', 'tsx', '--input-type=module', '--eval', source]
  const { stdout } = await promisify(execFile)(process.execPath, args, { timeout: 20_000 })
  return stdout.trim()
}

test('whichever client is installed is used; if none is, the error says what to install', async () => {
  const server = await startRedis({ password: 'pw' })
  cleanups.push(() => server.stop())
  const locking = `
    const store = await open('redis://:pw@127.0.0.1:${server.port}/1')
    const claim = { key: 'lock:a', owner: 'me', weight: 2 ** 31 - 1, capacity: 2 ** 31 - 1, ttlMs: 1000 }
    console.log((await store.acquire([claim]))[0].granted, (await store.release([claim]))[0].outcome)
    await store.close()`
  expect(await without(['ioredis'], locking)).toBe('true released')
  const missing = `console.log(await open('redis://127.0.0.1').catch((error) => error.code + ' ' + error.message))`
  expect(await without(['ioredis', 'redis'], missing)).toMatch(/^MISSING_PACKAGE .*npm install ioredis \(or redis\)/)
})

test('redis+cluster:// opens a store on a cluster', async () => {
  const cluster = await startRedisCluster({ masters: 3, replicasPerMaster: 0 })
  cleanups.push(() => cluster.stop())
  const store = await open(cluster.url)
  cleanups.push(() => store.close())
  const locks = createLocks(store)
  for (const name of ['a', 'b', 'c', 'd']) expect((await locks.acquire(name)).isHeld).toBe(true)
  await locks.releaseAll()
})

test('an argument that is not a client, and options that make no sense, are refused by name', async () => {
  const { client, end } = ioredis[6]('redis://127.0.0.1:1', { lazyConnect: true })
  cleanups.push(end)
  for (const wrong of [undefined, null, 'redis://localhost', {}, new EventEmitter(), () => {}])
    expect(() => redis(wrong as never)).toThrow(/client takes an ioredis/)
  expect(() => redis(client, { timeout: '2 bananas' as never })).toThrow(/timeout takes a duration/)
  expect(() => redis(client, { timeout: 0 })).toThrow(InvalidOptionError)
  expect(() => redis(client, { prefix: 5 as never })).toThrow(/prefix takes a text/)
  expect(() => redis(client, { prefix: 'a\0b' })).toThrow(InvalidOptionError)
})

test('a borrowed client is left as it was: open, and without our listeners', async () => {
  const server = await startRedis()
  cleanups.push(() => server.stop())
  for (const { client, end } of [ioredis[6](server.url), ioredis[5](server.url), await nodeRedis(server.url)]) {
    cleanups.push(end)
    const emitter = client as unknown as EventEmitter
    const count = (): number => emitter.eventNames().reduce((sum, event) => sum + emitter.listenerCount(event), 0)
    await (client as { ping(): Promise<string> }).ping()
    const before = count()
    const store = redis(client)
    const locks = createLocks(store)
    await (await locks.acquire('job')).release()
    await locks.close()
    await store.close()
    expect(count()).toBe(before)
    expect(await (client as { ping(): Promise<string> }).ping()).toBe('PONG')
  }
})

test('a client that is still connecting, or connects with its first command, is waited for', async () => {
  const server = await startRedis()
  cleanups.push(() => server.stop())
  for (const options of [{}, { lazyConnect: true }]) {
    const { client, end } = ioredis[6](server.url, options)
    cleanups.push(end)
    const locks = createLocks(redis(client))
    expect((await locks.acquire(`job${Object.keys(options).length}`)).isHeld).toBe(true)
    await locks.releaseAll()
  }
})
