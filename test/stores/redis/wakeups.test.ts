/** The subscriber connection: opened with the first lock or waiter, shared, replaced when it breaks, and closed again. */
import { execFile } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { type RedisServer, startProxy, startRedis } from '../../../testbed/servers/index.js'
import { createLocks, type Locks } from '../../../src/index.js'
import { ALL, type Claim, type Store, type StoreEvent, type Watch } from '../../../src/store.js'
import { type RedisStoreOptions, redis } from '../../../src/stores/redis/index.js'
import { onlyTheNextWakes } from '../../../testbed/hand-off.js'
import { type Connection, eventually, ioredis, nodeRedis } from '../../../testbed/redis/fixtures.js'

let server: RedisServer
beforeAll(async () => {
  server = await startRedis()
})
afterAll(() => server.stop())

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean()
  await server.command('FLUSHALL')
})

function on(connection: Connection, options?: RedisStoreOptions): Store {
  cleanups.push(connection.end)
  const store = redis(connection.client, options)
  cleanups.push(() => store.close())
  return store
}

let counter = 0
function claim(key: string, over: Partial<Claim> = {}): Claim {
  return { key, owner: `test/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

/** How many connections there are besides the one that asks. */
async function connections(): Promise<number> {
  return (
    String(await server.command('CLIENT', 'LIST'))
      .trim()
      .split('\n').length - 1
  )
}

const clients = {
  'ioredis 6': async () => ioredis[6](server.url),
  'ioredis 5': async () => ioredis[5](server.url),
  'node-redis': async () => nodeRedis(server.url),
}

test('grants arrive although names are subscribed to faster than the server answers', async () => {
  const proxy = await startProxy(server.port)
  cleanups.push(() => proxy.stop())
  const [holder, waiter] = [on(await ioredis[6](server.url)), on(await ioredis[6](proxy.through(server.url)))]
  const granted: StoreEvent[] = []
  const grants = waiter.watchGrants?.((_key, event) => granted.push(event))
  expect(await grants?.ready).toBe(true)
  const held = claim('lock:busy')
  await holder.acquire([held])
  expect(await waiter.acquire([claim('lock:busy', { queueMs: 20_000 })])).toMatchObject([{ granted: false }])
  proxy.delay(25)
  let names = 0
  const subscribing = setInterval(() => waiter.watch?.(`lock:steady:${names++}`, () => {}), 5)
  cleanups.push(() => clearInterval(subscribing))
  await expect.poll(() => names).toBeGreaterThan(50)
  await holder.release([held])
  await expect.poll(() => granted, { timeout: 3_000 }).toMatchObject([{ type: 'granted' }])
})

test('a name is subscribed to in time although node-redis sends that only after its unsubscription was answered', async () => {
  const proxy = await startProxy(server.port)
  cleanups.push(() => proxy.stop())
  const store = on(await nodeRedis(proxy.through(server.url), { RESP: 3 }))
  expect(await store.watchGrants?.(() => {}).ready).toBe(true)
  proxy.delay(5)
  const watch = async (name: string): Promise<Watch> => {
    const watching = store.watch?.(name, () => {}) as Watch
    expect(await watching.ready, name).toBe(true)
    return watching
  }
  for (const pauseMs of [14, 16, 18, 20]) {
    const [first, second] = [await watch(`lock:first:${pauseMs}`), await watch(`lock:second:${pauseMs}`)]
    first.close()
    const again = watch(`lock:first:${pauseMs}`)
    await sleep(pauseMs)
    second.close()
    await Promise.all([again, watch(`lock:second:${pauseMs}`)])
  }
})

describe.each(Object.entries(clients))('%s', (_name, connect) => {
  test('a store unsubscribes from names that it no longer watches', async () => {
    const store = on(await connect())
    const channels = async (): Promise<unknown[]> => (await server.command('PUBSUB', 'CHANNELS')) as unknown[]
    for (let i = 0; i < 20; i++) {
      const watch = store.watch?.(`lock:job:${i}`, () => {})
      expect(await watch?.ready).toBe(true)
      watch?.close()
    }
    expect(await store.watch?.('lock:last', () => {}).ready).toBe(true)
    await expect
      .poll(async () => (await channels()).filter((channel) => !String(channel).includes('lock:last')))
      .toEqual([])
    expect(await channels()).not.toEqual([])
  })

  test('a store opens one more connection, with the first lock that is held, for all names together', async () => {
    const store = on(await connect())
    const locks = createLocks(store)
    await store.now?.()
    expect(await connections()).toBe(1)
    const held = await Promise.all(['a', 'b', 'c'].map((name) => locks.acquire(name)))
    await expect.poll(connections).toBe(2)
    const other = createLocks(store)
    const waiting = ['a', 'b', 'c', 'a'].map((name) => other.acquire(name, { wait: '20s' }))
    await expect.poll(async () => (await locks.waiters('c')).length).toBe(1)
    expect(await connections()).toBe(2)
    await Promise.all(held.map((lock) => lock.release()))
    const [a] = await Promise.all(waiting.slice(0, 3))
    await a?.release()
    await waiting[3]
    await other.releaseAll()
    await other.close()
    await store.close()
    await expect.poll(connections).toBe(1)
  })

  test('several stores on one client share one subscriber connection, and each receives its own events until it is closed', async () => {
    const { client, end } = await connect()
    cleanups.push(end)
    const stores = Array.from({ length: 3 }, () => redis(client))
    const all = stores.map((store) => createLocks(store))
    const [a, b, c] = all as [Locks, Locks, Locks]
    cleanups.push(() => Promise.all(stores.map((store) => store.close())))
    const held = await Promise.all([a.acquire('a'), b.acquire('b'), c.acquire('c')])
    await expect.poll(connections).toBe(2)
    // Each waits for what another store of the same client holds.
    const waiting = [b.acquire('a', { wait: '20s' }), c.acquire('b', { wait: '20s' }), a.acquire('c', { wait: '20s' })]
    for (const name of ['a', 'b', 'c']) await expect.poll(async () => (await a.waiters(name)).length).toBe(1)
    expect(await connections()).toBe(2)
    await Promise.all(held.map((lock) => lock.release()))
    const handed = await Promise.all(waiting)
    // A revocation reaches the store that holds the lock.
    const lost = new Promise<void>((resolve) => b.on('lost', () => resolve()))
    await c.forceRelease('a')
    await lost
    await Promise.all(handed.slice(1).map((lock) => lock.release()))
    await b.close()
    await stores[1]?.close()
    const kept = await a.acquire('d')
    const next = c.acquire('d', { wait: '20s' })
    await expect.poll(async () => (await a.waiters('d')).length).toBe(1)
    expect(await connections()).toBe(2)
    await kept.release()
    await (await next).release()
    await Promise.all([a.close(), c.close()])
    await Promise.all([stores[0]?.close(), stores[2]?.close()])
    await expect.poll(connections).toBe(1)
    // A store that is made later opens a connection anew.
    const late = on({ client, end: () => {} })
    const lateLocks = createLocks(late)
    await lateLocks.acquire('e')
    await expect.poll(connections).toBe(2)
    await lateLocks.close({ grace: 0 })
  })

  test('a watch whose subscriber connection is killed becomes live again, and its waiter is told to ask', async () => {
    const store = on(await connect())
    const heard: StoreEvent[] = []
    const watch = store.watch?.('lock:a', (event) => heard.push(event))
    expect(await watch?.ready).toBe(true)
    expect(await server.command('CLIENT', 'KILL', 'TYPE', 'pubsub')).toBe(1)
    await expect.poll(() => watch?.live(), { interval: 1 }).toBe(false)
    await expect.poll(() => watch?.live()).toBe(true)
    expect(heard).toEqual([{ type: 'freed' }])
    const held = claim('lock:a')
    await store.acquire([held])
    const waiting = claim('lock:a', { queueMs: 30_000 })
    await store.acquire([waiting])
    await store.release([held])
    await expect.poll(() => heard.at(-1)).toMatchObject({ type: 'granted', owner: waiting.owner })
    const granted = heard.at(-1)
    const left = granted?.type === 'granted' ? granted.ttlMs : 0
    expect(left, 'what is left of it now').toBeGreaterThan(15_000)
    expect(left).toBeLessThanOrEqual(30_000)
  })

  test('a hand-off wakes only the waiter that gets it, however many others wait', async () => {
    await onlyTheNextWakes(await Promise.all([1, 2, 3].map(async () => on(await connect()))), 'lock:a')
  })

  test('a store publishes no event that nobody can need', async () => {
    const store = on(await connect())
    const heard: StoreEvent[] = []
    const watch = store.watch?.('lock:a', (event) => heard.push(event))
    await watch?.ready
    for (let i = 0; i < 3; i++) {
      const held = claim('lock:a', { value: '{}' })
      await store.acquire([held])
      await store.renew([{ key: held.key, owner: held.owner, ttlMs: 30_000 }])
      await store.release([held])
    }
    const announced = claim('lock:a', { announce: true })
    await store.acquire([announced])
    await expect.poll(() => heard.length).toBe(1)
    expect(heard).toEqual([{ type: 'changed' }])
  })

  test('a subscription to a silent server ends after the timeout', async () => {
    const store = on(await connect(), { timeout: 200 })
    await eventually(() => store.acquire([claim('lock:warm')]))
    await server.freeze()
    cleanups.push(() => server.thaw())
    const watch = store.watch?.('lock:a', () => {})
    expect(await watch?.ready).toBe(false)
    expect(watch?.live()).toBe(false)
    await server.thaw()
    await expect.poll(() => watch?.live(), { timeout: 5_000 }).toBe(true)
  })
})

/** How often the server was asked this since the last time. */
async function received(command: string): Promise<number> {
  const stats = String(await server.command('INFO', 'commandstats'))
  await server.command('CONFIG', 'RESETSTAT')
  return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats)?.[1] ?? 0)
}

/**
 * The quickest of several hand-offs, in milliseconds. Without a notification, a waiter finds out with its heartbeat, which
 * comes a second after it has entered the queue: each takes about as long. On a slow machine some do in any case.
 */
async function quickest(handOff: () => Promise<number>): Promise<number> {
  let ms = Number.POSITIVE_INFINITY
  for (let i = 0; i < 8 && ms > 600; i++) ms = Math.min(ms, await handOff())
  return ms
}

/** A store that has waited for a name before. Returns how long the hand-off of another name to it takes. */
async function waitingAlready(store: Store): Promise<() => Promise<number>> {
  const holder = createLocks(on(ioredis[6](server.url)), { wait: '30s' })
  const other = createLocks(store, { wait: '30s' })
  cleanups.push(() => Promise.all([holder.close({ grace: 0 }), other.close({ grace: 0 })]))
  const handOff = async (): Promise<number> => {
    const name = `handed:${++counter}`
    const held = await holder.acquire(name)
    const next = other.acquire(name)
    await expect.poll(async () => (await holder.waiters(name)).length, { interval: 5 }).toBe(1)
    const releasedAt = performance.now()
    await held.release()
    await next
    return performance.now() - releasedAt
  }
  await handOff()
  return handOff
}

describe.each([
  ['ioredis 6', async () => ioredis[6](server.url)],
  ['node-redis', async () => nodeRedis(server.url)],
] as const)('with a grant inbox, %s', (_name, connect) => {
  test('a waiter for one name more subscribes to nothing, and gets its grant from the inbox', async () => {
    const handOff = await waitingAlready(on(await connect()))
    await received('subscribe')
    expect(await quickest(handOff), 'it was told').toBeLessThan(600)
    expect(await received('subscribe')).toBe(0)
    const blocked = String(await server.command('CLIENT', 'LIST')).match(/ flags=\w*b\w* /g)
    expect(blocked, 'one connection of each store waits').toHaveLength(2)
  })

  test('an observer receives events while the connection blocks on the inbox', async () => {
    const store = on(await connect())
    await waitingAlready(store)
    const heard: StoreEvent[] = []
    expect(await store.watch?.('election:a', (event) => heard.push(event)).ready).toBe(true)
    await store.acquire([claim('election:a', { announce: true })])
    await expect.poll(() => heard).toEqual([{ type: 'changed' }])
    const watched = store.watchGrants?.(() => {})
    expect(watched?.ready, 'grants still arrive').toBe(true)
  })

  test('watchGrants() receives the grants of every key that its store asked for, with their keys', async () => {
    const [store, holder] = [on(await connect()), on(ioredis[6](server.url))]
    const pushed: [string | undefined, StoreEvent][] = []
    const watch = store.watchGrants?.((key, event) => pushed.push([key, event]))
    expect(await watch?.ready).toBe(true)
    await received('subscribe')
    const waiting: Claim[] = []
    for (const key of ['lock:a', 'lock:b']) {
      const [held, next] = [claim(key), claim(key, { queueMs: 10_000 })]
      await holder.acquire([held])
      await store.acquire([next])
      await holder.release([held])
      waiting.push(next)
    }
    const grants = waiting.map(({ key, owner }) => [key, { type: 'granted', owner }])
    await expect.poll(() => pushed).toMatchObject(grants)
    expect(await received('subscribe')).toBe(0)
    watch?.close()
    expect(watch?.live()).toBe(false)
  })

  test('watchGrants() tells every waiter to ask after its connection was killed', async () => {
    const store = on(await connect())
    const pushed: [string | undefined, StoreEvent][] = []
    const watch = store.watchGrants?.((key, event) => pushed.push([key, event]))
    expect(await watch?.ready).toBe(true)
    await server.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')
    await expect.poll(() => pushed, { timeout: 5_000 }).toEqual([[undefined, { type: 'freed' }]])
    expect(watch?.live()).toBe(true)
  })

  test('messages in the inbox of a process that is gone expire', async () => {
    const store = on(await connect())
    expect(await store.watch?.('lock:a', () => {}).ready).toBe(true)
    const held = claim('lock:a')
    const holder = on(ioredis[6](server.url))
    await holder.acquire([held])
    await store.acquire([claim('lock:a', { queueMs: 1_000 })])
    await store.close()
    await expect.poll(connections, { interval: 5 }).toBe(2)
    await holder.release([held])
    const inboxes = (await server.command('KEYS', 'leasehold:1:inbox:*')) as string[]
    expect(inboxes).toHaveLength(1)
    const left = Number(await server.command('PTTL', String(inboxes[0])))
    expect(left).toBeGreaterThan(0)
    expect(left).toBeLessThanOrEqual(60_000)
  })

  test('a client that selected another database gets its grants by channels', async () => {
    const connection = await connect()
    const { client } = connection as unknown as { client: { select(db: number): Promise<unknown> } }
    await client.select(5)
    const elsewhere = ioredis[6](`${server.url}/5`)
    const [store, holder] = [on(connection, { timeout: 300 }), on(elsewhere)]
    const heard: StoreEvent[] = []
    const watch = store.watch?.('lock:a', (event) => heard.push(event))
    await expect.poll(() => watch?.live(), { timeout: 5_000 }).toBe(true)
    const [held, waiting] = [claim('lock:a'), claim('lock:a', { queueMs: 10_000 })]
    await holder.acquire([held])
    await store.acquire([waiting])
    await holder.release([held])
    await expect.poll(() => heard.at(-1)).toMatchObject({ type: 'granted', owner: waiting.owner })
  })

  test('a user without the right to BLMPOP gets its grants by channels', async () => {
    await server.command('ACL', 'SETUSER', 'plain', 'on', '>pw', '~*', '&*', '+@all', '-blmpop')
    cleanups.push(() => server.command('ACL', 'DELUSER', 'plain'))
    const url = server.url.replace('redis://', 'redis://plain:pw@')
    const store = on(_name === 'node-redis' ? await nodeRedis(url) : ioredis[6](url))
    const holder = createLocks(on(ioredis[6](server.url)))
    const other = createLocks(store)
    cleanups.push(() => Promise.all([holder.close({ grace: 0 }), other.close({ grace: 0 })]))
    const handOff = async (): Promise<number> => {
      const name = `plain:${++counter}`
      const lock = await holder.acquire(name)
      const next = other.acquire(name)
      const channels = `leasehold:1:{lock:${name}}:events:*`
      await expect.poll(() => server.command('PUBSUB', 'CHANNELS', channels), { interval: 5 }).toHaveLength(1)
      await expect.poll(async () => (await holder.waiters(name)).length, { interval: 5 }).toBe(1)
      const releasedAt = performance.now()
      await lock.release()
      await next
      return performance.now() - releasedAt
    }
    expect(await quickest(handOff), 'it was told').toBeLessThan(600)
  })
})

/** A holder and a waiter in two stores, and how long a hand-off from one to the other takes. */
function handOffs(holder: Store, waiter: Store): () => Promise<number> {
  const [a, b] = [createLocks(holder), createLocks(waiter)]
  cleanups.push(() => Promise.all([a.close({ grace: 0 }), b.close({ grace: 0 })]))
  return async () => {
    const lock = await a.acquire('handed', { wait: '10s' })
    const next = b.acquire('handed', { wait: '10s' })
    await expect.poll(async () => (await a.waiters('handed')).length, { interval: 5 }).toBe(1)
    const at = performance.now()
    await lock.release()
    const got = await next
    const took = performance.now() - at
    await got.release()
    return took
  }
}

test.each(['TIMEOUT', 'ERROR'])(
  'CLIENT UNBLOCK %s of the listening connection changes nothing: hand-offs stay pushed',
  async (how) => {
    const handOff = handOffs(on(ioredis[6](server.url)), on(ioredis[6](server.url)))
    await handOff()
    const unhandled: unknown[] = []
    const note = (error: unknown): void => void unhandled.push(error)
    process.on('unhandledRejection', note)
    cleanups.push(() => process.off('unhandledRejection', note))
    const blocked = String(await server.command('CLIENT', 'LIST')).match(/^id=\d+(?=.* cmd=blmpop)/gm) ?? []
    expect(blocked.length).toBeGreaterThan(0)
    for (const id of blocked) expect(await server.command('CLIENT', 'UNBLOCK', id.slice(3), how)).toBe(1)
    await expect.poll(async () => / cmd=blmpop/.test(String(await server.command('CLIENT', 'LIST')))).toBe(true)
    expect(await quickest(handOff), 'the waiter was told, and did not poll').toBeLessThan(600)
    expect(unhandled).toEqual([])
  },
)

test('a listener that throws, and a message that cannot be read, do not keep a grant from other waiters', async () => {
  const store = on(ioredis[6](server.url))
  const unhandled: unknown[] = []
  const note = (error: unknown): void => void unhandled.push(error)
  process.on('unhandledRejection', note)
  cleanups.push(() => process.off('unhandledRejection', note))
  const heard: StoreEvent[] = []
  const throwing = store.watch?.('lock:a', () => {
    throw new Error('a listener of a user')
  })
  const watch = store.watch?.('lock:a', (event) => heard.push(event))
  expect(await Promise.all([throwing?.ready, watch?.ready])).toEqual([true, true])
  const [held, waiting, third] = [
    claim('lock:a'),
    claim('lock:a', { queueMs: 9_000 }),
    claim('lock:a', { queueMs: 9_000 }),
  ]
  await store.acquire([held])
  await store.acquire([waiting, third])
  const inbox = String(await server.command('CLIENT', 'LIST'))
  expect(inbox).toMatch(/cmd=blmpop/)
  for (const list of (await server.command('KEYS', '*inbox*')) as string[])
    await server.command('RPUSH', list, 'nonsense')
  await store.release([held])
  await store.release([waiting])
  await expect
    .poll(() => heard)
    .toMatchObject([
      { type: 'granted', owner: waiting.owner },
      { type: 'granted', owner: third.owner },
    ])
  expect(unhandled).toEqual([])
})

describe('the token of a hand-off', () => {
  const INDEX = 'leasehold:1:held:lock'
  const tokenOf = async (key: string): Promise<bigint> =>
    BigInt(String(await server.command('HGET', INDEX, key)).split(':')[0] ?? '')

  /** One has just been handed what another let go of. */
  async function handedOff(): Promise<{ store: Store; successor: Claim; releasedAt: bigint }> {
    const store = on(ioredis[6](server.url))
    const [held, successor] = [claim('lock:a'), claim('lock:a', { queueMs: 10_000 })]
    await store.acquire([held])
    await store.acquire([successor])
    const [seconds, micros] = (await server.command('TIME')) as [string, string]
    await store.release([held])
    expect(await server.command('GET', 'lock:a')).toBe(successor.owner)
    return { store, successor, releasedAt: BigInt(seconds) * 1_000_000n + BigInt(micros) }
  }

  test('is by the clock of that moment: what was written down before may come from before a failover', async () => {
    const { releasedAt } = await handedOff()
    expect(await tokenOf('lock:a')).toBeGreaterThanOrEqual(releasedAt)
  })

  test('is the last token of its kind, so that a clock that goes back does not repeat it', async () => {
    const { store, successor } = await handedOff()
    expect(BigInt(String(await server.command('HGET', INDEX, '')))).toBe(await tokenOf('lock:a'))
    // As if it had been handed off while the clock was ahead.
    const ahead = (await tokenOf('lock:a')) + 3_600_000_000n
    await server.command('HSET', INDEX, '', String(ahead), 'lock:a', `${ahead}:${successor.owner}`)
    const waiting = claim('lock:a', { queueMs: 10_000 })
    await store.acquire([waiting])
    expect(await store.release([successor])).toEqual([{ outcome: 'released' }])
    expect(await server.command('GET', 'lock:a')).toBe(waiting.owner)
    expect(await tokenOf('lock:a')).toBe(ahead + 1n)
  })
})

test('the first renewal after a hand-off finishes it, so that the next release need not', async () => {
  const store = on(ioredis[6](server.url))
  const [held, second, third] = [
    claim('lock:a'),
    claim('lock:a', { queueMs: 10_000 }),
    claim('lock:a', { queueMs: 10_000 }),
  ]
  for (const each of [held, second, third]) await store.acquire([each])
  await store.release([held])
  const state = async (): Promise<string> =>
    String(await server.command('HGET', 'leasehold:1:held:lock', 'lock:a\0')).slice(0, 1)
  expect(await state()).toBe('h')
  expect(await store.renew([{ key: 'lock:a', owner: second.owner, ttlMs: 10_000 }])).toMatchObject([
    { outcome: 'ours' },
  ])
  expect(await state()).toBe('s')
  await store.release([second])
  expect(await server.command('GET', 'lock:a')).toBe(third.owner)
})

test('a forced release notifies the holder at once, also in a process that waits for nothing', async () => {
  const holder = createLocks(on(ioredis[6](server.url)))
  const other = createLocks(on(ioredis[6](server.url)))
  cleanups.push(() => Promise.all([holder.close({ grace: 0 }), other.close({ grace: 0 })]))
  const lock = await holder.acquire('job', { ttl: '60s' })
  const lost = new Promise((resolve) => lock.signal.addEventListener('abort', resolve))
  await expect.poll(() => server.command('PUBSUB', 'NUMSUB', 'leasehold:1:revoked')).toEqual(['leasehold:1:revoked', 1])
  const forcedAt = performance.now()
  expect(await other.forceRelease('job')).toMatchObject([{ holder: lock.holder }])
  await lost
  // The next heartbeat would have been due after 20 s.
  expect(performance.now() - forcedAt).toBeLessThan(15_000)
})

test('the subscriber connection does not keep a process alive', async () => {
  const source = `
    import { Redis } from 'ioredis'
    import { createClient } from 'redis'
    import { redis } from './src/stores/redis/index.ts'
    const url = ${JSON.stringify(server.url)}
    const one = new Redis(url)
    const other = await createClient({ url }).connect()
    for (const client of [one, other]) {
      const watch = redis(client).watch('lock:a', () => {})
      if (!(await watch.ready)) throw new Error('it does not listen')
    }
    one.disconnect()
    other.destroy()
    console.log('done')`
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--import', 'tsx', '--input-type=module', '--eval', source],
    { timeout: 50_000 },
  )
  expect(stdout.trim()).toBe('done')
})
