/** The listening connection in bad surroundings: refused, half-open, idle; and requests that outlive their sender. */
import { connect as connectTo, createServer, type Socket } from 'node:net'
import { describe, expect, test, type TestContext } from 'vitest'
import { type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import { createLocks } from '../../../src/index.js'
import { ALL, type Claim, type Store, type StoreEvent } from '../../../src/store.js'
import { type RedisStoreOptions, redis } from '../../../src/stores/redis/index.js'
import { type Connection, eventually, ioredis, nodeRedis } from '../../../testbed/redis/fixtures.js'

async function start(t: TestContext): Promise<RedisServer> {
  const server = await startRedis()
  t.onTestFinished(() => server.stop())
  return server
}

function on(t: TestContext, connection: Connection, options?: RedisStoreOptions): Store {
  t.onTestFinished(() => void connection.end())
  const store = redis(connection.client, options)
  t.onTestFinished(() => store.close())
  return store
}

let counter = 0
function claim(key: string, over: Partial<Claim> = {}): Claim {
  return { key, owner: `test/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

const clients = {
  'ioredis 6': async (url: string) => ioredis[6](url),
  'ioredis 5': async (url: string) => ioredis[5](url),
  'node-redis': async (url: string) => nodeRedis(url),
}

/** Passes everything on, until connections that listen are silenced: they stay open, and nothing comes any more. */
async function silencer(t: TestContext, port: number): Promise<{ url: string; silence: () => number }> {
  const pairs: { listens: boolean; silent: boolean; sockets: Socket[] }[] = []
  const proxy = createServer((client) => {
    const upstream = connectTo(port, '127.0.0.1')
    const pair = { listens: false, silent: false, sockets: [client, upstream] }
    pairs.push(pair)
    client.on('data', (data) => {
      // As a command: the text of a script, which the other connection sends, may name them too.
      if (/\r\n(blmpop|subscribe)\r\n/i.test(data.toString('latin1'))) pair.listens = true
      if (!pair.silent) upstream.write(data)
    })
    upstream.on('data', (data) => {
      if (!pair.silent) client.write(data)
    })
    for (const socket of pair.sockets) {
      socket.on('error', () => {})
      socket.on('close', () => {
        for (const each of pair.sockets) each.destroy()
      })
    }
  })
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve))
  t.onTestFinished(() => {
    for (const { sockets } of pairs) for (const socket of sockets) socket.destroy()
    proxy.close()
  })
  const { port: own } = proxy.address() as { port: number }
  return {
    url: `redis://127.0.0.1:${own}`,
    silence: () => {
      const listening = pairs.filter(({ listens, silent }) => listens && !silent)
      for (const pair of listening) pair.silent = true
      return listening.length
    },
  }
}

/** LATE_MS: a request is carried out until its timeout and the time that an answer took (at most as long), and 50 ms. */
const LATE_MS = 2 * 400 + 150

describe.concurrent.each(Object.entries(clients))('%s', (_name, connect) => {
  test.concurrent('a subscriber connection that only seems to be open is replaced, and hand-offs are pushed again', async (t) => {
    const server = await start(t)
    const proxy = await silencer(t, server.port)
    const holder = on(t, await connect(server.url))
    const waiter = on(t, await connect(proxy.url), { timeout: 2_000 })
    const heard: StoreEvent[] = []
    const watch = waiter.watch?.('lock:x', (event) => heard.push(event))
    const handOff = async (): Promise<void> => {
      const [held, waiting] = [claim('lock:x'), claim('lock:x', { queueMs: 30_000 })]
      await holder.acquire([held])
      await waiter.acquire([waiting])
      heard.length = 0
      await holder.release([held])
      await t.expect.poll(() => heard).toMatchObject([{ type: 'granted', owner: waiting.owner }])
      await waiter.release([waiting])
    }
    expect(await watch?.ready).toBe(true)
    await handOff()
    expect(proxy.silence()).toBeGreaterThan(0)
    expect(watch?.live()).toBe(true)
    await t.expect.poll(() => watch?.live(), { interval: 2 }).toBe(false)
    await t.expect.poll(() => watch?.live()).toBe(true)
    await handOff()
  })

  test.concurrent('a frozen server does not grant the first request of a process when it wakes up after its deadline', async (t) => {
    const server = await start(t)
    const store = on(t, await connect(server.url), { timeout: 400 })
    const known = on(t, await connect(server.url), { timeout: 400 })
    await eventually(() => known.acquire([claim('lock:warm')]))
    await eventually(() => store.now?.())
    await server.freeze()
    t.onTestFinished(() => server.thaw())
    const asked = [store.acquire([claim('lock:fresh')]), known.acquire([claim('run-once:fresh')])]
    const settled = Promise.allSettled(asked)
    await new Promise((resolve) => setTimeout(resolve, LATE_MS))
    await server.thaw()
    expect((await settled).map(({ status }) => status)).toEqual(['rejected', 'rejected'])
    expect(await server.command('EXISTS', 'lock:fresh', 'run-once:fresh')).toBe(0)
    // Nor the next time: what was heard from a server that had been frozen says little of its time.
    await server.freeze()
    const again = Promise.allSettled([store.acquire([claim('lock:fresh')]), known.acquire([claim('run-once:fresh')])])
    await new Promise((resolve) => setTimeout(resolve, LATE_MS))
    await server.thaw()
    expect((await again).map(({ status }) => status)).toEqual(['rejected', 'rejected'])
    expect(await server.command('EXISTS', 'lock:fresh', 'run-once:fresh')).toBe(0)
  })
})

test.concurrent('a server that refuses connections is not asked for one many times a second', async (t) => {
  const server = await start(t)
  const admin = ioredis[6](server.url)
  t.onTestFinished(() => void admin.end())
  await admin.client.ping()
  const holder = createLocks(on(t, ioredis[6](server.url)))
  const waiting = on(t, ioredis[6](server.url))
  await holder.acquire('y')
  await waiting.now?.()
  await admin.client.config('SET', 'maxclients', '1')
  const watch = waiting.watch?.('lock:y', () => {})
  expect(await watch?.ready).toBe(false)
  const refused = async (): Promise<number> =>
    Number(/rejected_connections:(\d+)/.exec(await admin.client.info('stats'))?.[1])
  const before = await refused()
  await new Promise((resolve) => setTimeout(resolve, 3_000))
  expect((await refused()) - before).toBeLessThan(10)
  await admin.client.config('SET', 'maxclients', '1000')
  await t.expect.poll(() => watch?.live()).toBe(true)
  watch?.close()
  await holder.close({ grace: 0 })
})
