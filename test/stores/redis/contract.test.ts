/** The contract's second edition, where the conformance kit has no case of its own for it, and what Redis makes of it. */
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import { ALL, type Claim, type Grant, type LeaseId, type Store, type StoreEvent } from '../../../src/store.js'
import { adapterOf } from '../../../src/clients/redis/open.js'
import type { RedisStoreOptions } from '../../../src/stores/redis/index.js'
import { embedded, type RedisScriptSources } from '../../../src/stores/redis/transport.js'
import { createRedisStore } from '../../../src/stores/redis/create.js'
import { mustBeBefore, unhurried } from '../../../src/testing/unhurried.js'
import { ioredis } from '../../../testbed/redis/fixtures.js'

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

function open(options: RedisStoreOptions = {}, sources: RedisScriptSources = embedded): Store {
  const { client, end } = ioredis[6](server.url)
  cleanups.push(end)
  const store = createRedisStore(adapterOf(client), { listForeign: false, ...options }, sources)
  cleanups.push(() => store.close())
  return store
}

let counter = 0
function claim(key: string, over: Partial<Claim> = {}): Claim {
  return { key, owner: `test/${++counter}`, weight: ALL, capacity: ALL, ttlMs: 30_000, ...over }
}

const permit = (key: string, over: Partial<Claim> = {}): Claim => claim(key, { weight: 1, capacity: 3, ...over })

async function granted(store: Store, what: Claim): Promise<Grant> {
  const [answer] = await store.acquire([what])
  if (answer?.granted !== true) throw new Error(`not granted: ${String(answer?.granted)}`)
  return answer
}

async function outcomes(answers: Promise<{ outcome: string }[]> | { outcome: string }[]): Promise<string[]> {
  return (await answers).map(({ outcome }) => outcome)
}

test.each([
  ['a lock', claim('lock:a')],
  ['a lock with a value', claim('lock:a', { value: '{}', announce: true })],
  ['a permit', permit('semaphore:s')],
])('%s is released and renewed only with its own token', async (_what, wanted) => {
  const store = open()
  const { key, owner } = wanted
  const { token } = await granted(store, wanted)
  for (const wrong of [token - 1n, token + 1n]) {
    expect(await outcomes(store.renew([{ key, owner, token: wrong, ttlMs: 90_000 }]))).toEqual(['gone'])
    expect(await outcomes(store.release([{ key, owner, token: wrong }]))).toEqual(['gone'])
  }
  expect(Number(await server.command('PTTL', key))).toBeLessThanOrEqual(30_000)
  expect(await outcomes(store.renew([{ key, owner, token, ttlMs: 30_000 }]))).toEqual(['ours'])
  expect(
    await outcomes(
      store.release([
        { key, owner, token },
        { key, owner, token },
      ]),
    ),
  ).toEqual(['released', 'gone'])
})

test('a release with a token leaves a queue entry of the same owner alone; without, it ends it', async () => {
  const store = open()
  const [held, waiting] = [claim('lock:a'), claim('lock:a', { queueMs: 30_000 })]
  await granted(store, held)
  await store.acquire([waiting])
  const lease = { key: waiting.key, owner: waiting.owner }
  expect(await outcomes(store.release([{ ...lease, token: 1n }]))).toEqual(['gone'])
  expect((await store.inspect?.('lock:a'))?.waiters).toHaveLength(1)
  expect(await outcomes(store.release([lease]))).toEqual(['released'])
  expect((await store.inspect?.('lock:a'))?.waiters).toHaveLength(0)
})

test('a queue entry lives by renewal alone, and is told who is first, when it would be granted, and that it was', async () => {
  const store = open()
  const held = claim('lock:a', { ttlMs: 60_000 })
  const { token } = await granted(store, held)
  const queueMs = 3_000
  const [first, second] = [claim('lock:a', { queueMs }), claim('lock:a', { queueMs })]
  await store.acquire([first, second])
  const renewals = [first, second].map(({ key, owner }) => ({ key, owner, ttlMs: queueMs, queued: true }))
  const until = performance.now() + 1.3 * queueMs
  while (performance.now() < until) {
    const [one, two] = await store.renew(renewals)
    expect(one).toMatchObject({ outcome: 'waiting', ahead: 0, newest: token })
    expect(one?.outcome === 'waiting' && (one.blockedMs ?? 0)).toBeGreaterThan(50_000)
    expect(two).toMatchObject({ outcome: 'waiting', ahead: 1 })
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  await store.release([held])
  const [one, two] = await store.renew(renewals)
  expect(one).toMatchObject({ outcome: 'granted' })
  expect(one?.outcome === 'granted' && one.token > token).toBe(true)
  expect(two).toMatchObject({ outcome: 'waiting', ahead: 0 })
  // The renewal of a queue entry must not prolong the grant that came of it.
  expect(Number(await server.command('PTTL', 'lock:a'))).toBeLessThanOrEqual(queueMs)
  const stranger = { key: 'lock:a', owner: 'nobody', ttlMs: queueMs, queued: true }
  expect(await outcomes(store.renew([stranger]))).toEqual(['gone'])
})

test('a waiter becomes first when the one before it stops renewing, and its renewal says that it would be granted', async () => {
  const store = open()
  await unhurried(300, async (queueMs) => {
    const key = `lock:a:${queueMs}`
    await granted(store, claim(key, { ttlMs: 2 * queueMs }))
    const began = performance.now()
    await store.acquire([claim(key, { queueMs })])
    const alive = claim(key, { queueMs: 60_000 })
    await store.acquire([alive])
    const renewal = { key, owner: alive.owner, ttlMs: 60_000, queued: true }
    const early = await store.renew([renewal])
    mustBeBefore(began + queueMs)
    expect(early).toMatchObject([{ outcome: 'waiting', ahead: 1 }])
    await expect.poll(async () => (await store.renew([renewal]))[0]).toMatchObject({ outcome: 'waiting', ahead: 0 })
    await expect.poll(async () => (await store.renew([renewal]))[0]).toMatchObject({ ahead: 0, blockedMs: 0 })
    await granted(store, alive)
  })
})

test('two hundred queue entries of one name are renewed with little more than one command each', async () => {
  const store = open()
  await granted(store, claim('lock:a', { ttlMs: 60_000 }))
  const waiting = Array.from({ length: 200 }, () => claim('lock:a', { queueMs: 60_000 }))
  await store.acquire(waiting)
  const renewals = waiting.map(({ key, owner }) => ({ key, owner, ttlMs: 60_000, queued: true }))
  await store.renew(renewals)
  await new Promise((resolve) => setTimeout(resolve, 5))
  await server.command('CONFIG', 'RESETSTAT')
  const answers = await store.renew(renewals)
  expect(answers.every(({ outcome }) => outcome === 'waiting')).toBe(true)
  const stats = String(await server.command('INFO', 'commandstats'))
  let inner = 0
  for (const [, name, calls] of stats.matchAll(/cmdstat_([a-z|]+):calls=(\d+)/g))
    if (!/evalsha|config|info/.test(String(name))) inner += Number(calls)
  expect(inner).toBeLessThan(200 + 25)
})

test('a refusal carries the newest token, which a grant of before does not exceed and a later one does', async () => {
  const store = open()
  const [one, two] = [permit('semaphore:s'), permit('semaphore:s', { weight: 2 })]
  const [, { token: second }] = [await granted(store, one), await granted(store, two)]
  const waiting = permit('semaphore:s', { queueMs: 10_000 })
  const [refusal] = await store.acquire([waiting])
  expect(refusal).toMatchObject({ granted: false, newest: second })
  const heard: StoreEvent[] = []
  expect(await store.watch?.('semaphore:s', (event) => heard.push(event)).ready).toBe(true)
  await store.release([one])
  // It waits no longer behind the subscriber of before the watch: so it asks again, and finds its own grant.
  const grant = await granted(store, waiting)
  expect(grant.token > second).toBe(true)
})

test('an acquire by an owner that holds already keeps the value that is there', async () => {
  const store = open()
  const held = claim('run-once:a', { value: '"first"' })
  const { token } = await granted(store, held)
  await store.renew([{ key: held.key, owner: held.owner, token, ttlMs: 30_000, value: '"result"' }])
  expect(await granted(store, held)).toMatchObject({ token })
  expect((await store.inspect?.('run-once:a'))?.holders).toMatchObject([{ value: '"result"' }])
})

test('one subscription tells of every lease that was revoked or stolen, with its key and token', async () => {
  const [store, other] = [open(), open()]
  const heard: LeaseId[] = []
  const watch = store.watchRevoked?.((lease) => heard.push(lease))
  expect(await watch?.ready).toBe(true)
  const [lock, reader, permits] = [claim('lock:a'), claim('lock:b', { weight: 1 }), permit('semaphore:s')]
  const [a, b, c] = [await granted(store, lock), await granted(store, reader), await granted(store, permits)]
  await other.revoke?.('lock:a')
  await granted(other, claim('lock:b', { steal: true }))
  await other.revoke?.('semaphore:s')
  await expect
    .poll(() => heard)
    .toEqual([
      { key: 'lock:a', owner: lock.owner, token: a.token },
      { key: 'lock:b', owner: reader.owner, token: b.token },
      { key: 'semaphore:s', owner: permits.owner, token: c.token },
    ])
  expect(await server.command('PUBSUB', 'NUMSUB', 'leasehold:1:revoked')).toEqual(['leasehold:1:revoked', 1])
  watch?.close()
})

test('a watch outlives a revoked foreign holder and nonsense on its channel', async () => {
  const store = open()
  const heard: LeaseId[] = []
  expect(await store.watchRevoked?.((lease) => heard.push(lease)).ready).toBe(true)
  await server.command('SET', 'lock:f', 'somebody', 'PX', '60000')
  for (const text of ['', 'nonsense', 'lock:x\0nonsense\0', '\0\0\0'])
    await server.command('PUBLISH', 'leasehold:1:revoked', text)
  await store.revoke?.('lock:f')
  await expect.poll(() => heard).toEqual([{ key: 'lock:f', owner: 'somebody' }])
})

/** The list to which grants of the only listening store are pushed. */
async function inbox(store: Store): Promise<string> {
  const held = claim('lock:find')
  await granted(store, held)
  await store.acquire([claim('lock:find', { queueMs: 1_000 })])
  const state = String(await server.command('HGET', 'leasehold:1:held:lock', 'lock:find\0'))
  await store.revoke?.('lock:find')
  return String(/>(leasehold:1:inbox:\w+)/.exec(state)?.[1])
}

test('a pushed grant that lay in a buffer until it had run out is not believed: its waiter is told to ask', async () => {
  const store = open()
  const heard: StoreEvent[] = []
  expect(await store.watch?.('lock:a', (event) => heard.push(event)).ready).toBe(true)
  const list = await inbox(store)
  const now = Number((await store.now?.()) ?? 0)
  const push = (end: number): Promise<unknown> =>
    server.command('RPUSH', list, `1700000000000001${Math.round(end)}-somebody\0lock:a`)
  await push(now - 50)
  await push(now + 5_000)
  await expect.poll(() => heard).toMatchObject([{ type: 'freed', owner: 'somebody' }, { type: 'granted' }])
  expect(heard[1]?.type === 'granted' && heard[1].ttlMs).toBeLessThanOrEqual(5_000)
})

test('a grant with a short time does not take the messages of other grants with it', async () => {
  const store = open()
  expect(await store.watch?.('lock:a', () => {}).ready).toBe(true)
  const list = await inbox(store)
  await server.command('CLIENT', 'KILL', 'TYPE', 'pubsub')
  const holder = open()
  const [long, short] = [claim('lock:x'), claim('lock:y')]
  await granted(holder, long)
  await granted(holder, short)
  // As if the process were frozen: nobody reads the list.
  await server.command('RPUSH', list, 'x')
  const state = `s-${'9'.repeat(26)}50 >${list}`
  for (const [key, { owner }] of [
    ['lock:x', long],
    ['lock:y', short],
  ] as const)
    await server.command('HSET', 'leasehold:1:held:lock', `${key}\0`, `${state}\0${owner}\0next\0${key}`)
  await holder.release([long])
  await holder.release([short])
  expect(await server.command('LLEN', list)).toBe(3)
  expect(Number(await server.command('PTTL', list))).toBeGreaterThan(10_000)
})

test('what a refusal beside a foreign holder, and a hand-off without an index, leave behind has an expiry', async () => {
  const store = open()
  await server.command('SET', 'lock:x', 'foreigner')
  await store.acquire([claim('lock:x', { weight: 1, ttlMs: 1_000, queueMs: 500 })])
  const [held, waiting] = [claim('run-once:y', { ttlMs: 1_000 }), claim('run-once:y', { ttlMs: 1_000, queueMs: 500 })]
  await granted(store, held)
  await store.acquire([waiting])
  await server.command('DEL', 'leasehold:1:held:run-once')
  await store.release([held])
  expect(await server.command('GET', 'run-once:y')).toBe(waiting.owner)
  const keys = ((await server.command('KEYS', '*')) as string[]).filter((key) => key !== 'lock:x')
  expect(keys.length).toBeGreaterThan(4)
  for (const key of keys) expect([key, await server.command('PTTL', key)]).not.toEqual([key, -1])
})

/** The scripts of a version of this library that keeps another format. */
function otherFormat(): RedisScriptSources {
  const entries = Object.entries(embedded).map(([name, source]) => [
    name,
    source.replaceAll('leasehold:1:', 'leasehold:9:'),
  ])
  return Object.fromEntries(entries) as RedisScriptSources
}

test('a version that keeps another format excludes us and is excluded, and takes nothing of ours for its own', async () => {
  const [ours, theirs] = [open(), open()]
  const { client, end } = ioredis[6](server.url)
  cleanups.push(end)
  const adapter = adapterOf(client)
  // Names are made in TypeScript too: as they leave the process they are renamed.
  const rename = (keys: string[]): string[] => keys.map((key) => key.replace('leasehold:1:', 'leasehold:9:'))
  const evalsha = adapter.evalsha.bind(adapter)
  const evaluate = adapter.eval.bind(adapter)
  Object.assign(adapter, {
    evalsha: (sha: string, keys: string[], args: string[]) => evalsha(sha, rename(keys), args),
    eval: (source: string, keys: string[], args: string[]) => evaluate(source, rename(keys), args),
  })
  const next = createRedisStore(adapter, { listForeign: false }, otherFormat())
  cleanups.push(() => next.close())
  const [lock, shared] = [claim('lock:a', { value: '{}' }), permit('semaphore:s')]
  const { token } = await granted(ours, lock)
  await granted(ours, shared)
  await ours.acquire([claim('lock:a', { queueMs: 30_000 })])
  expect(await next.acquire([claim('lock:a')])).toMatchObject([
    { granted: false, ahead: 0, blocker: { foreign: true } },
  ])
  expect(await next.acquire([permit('semaphore:s')])).toMatchObject([{ granted: false, blocker: { foreign: true } }])
  expect(await outcomes(ours.renew([{ ...lock, token, ttlMs: 30_000 }]))).toEqual(['ours'])
  await ours.revoke?.('lock:a')
  await ours.revoke?.('lock:a')
  const theirLock = claim('lock:a')
  const grant = await granted(next, theirLock)
  expect(grant.token > token).toBe(true)
  expect(await theirs.acquire([claim('lock:a')])).toMatchObject([{ granted: false, blocker: { foreign: true } }])
  expect(await outcomes(next.release([{ ...theirLock, token: grant.token }]))).toEqual(['released'])
  await granted(ours, claim('lock:a'))
})

/** The scripts, counting their commands; and the most that one of them took. */
function counting(): RedisScriptSources {
  const count = `local real, commands = redis, 0
    local redis = {
      call = function(...) commands = commands + 1 return real.call(...) end,
      pcall = function(...) commands = commands + 1 return real.pcall(...) end,
      error_reply = real.error_reply,
    }
    local function main()\n`
  const report = `\nend
    local answer = main()
    if commands > tonumber(real.call('GET', 'most') or 0) then real.call('SET', 'most', commands) end
    return answer`
  const entries = Object.entries(embedded).map(([name, source]) => [
    name,
    name === 'common' ? source : count + source + report,
  ])
  return Object.fromEntries(entries) as RedisScriptSources
}

async function mostCommands(): Promise<number> {
  return Number(await server.command('GET', 'most'))
}

/** The scripts, refusing every key that was not declared, as some servers do. */
function strict(): RedisScriptSources {
  const guard = `local declared, real = {}, redis
    for _, key in ipairs(KEYS) do declared[key] = true end
    local function check(command, key)
      if command == 'TIME' or command == 'PUBLISH' then return end
      if not declared[key] then error('undeclared key: ' .. tostring(key)) end
    end
    local redis = {
      call = function(command, ...) check(command, ...) return real.call(command, ...) end,
      pcall = function(command, ...) check(command, ...) return real.pcall(command, ...) end,
      error_reply = real.error_reply,
    }\n`
  const entries = Object.entries(embedded).map(([name, source]) => [name, name === 'common' ? source : guard + source])
  return Object.fromEntries(entries) as RedisScriptSources
}

test('with declareKeys no script touches a key that was not declared', async () => {
  const store = open({ declareKeys: true }, strict())
  const heard: StoreEvent[] = []
  expect(await store.watch?.('lock:a', (event) => heard.push(event)).ready).toBe(true)
  const held = claim('lock:a', { value: '{}', announce: true })
  const { token } = await granted(store, held)
  const waiting = claim('lock:a', { queueMs: 30_000 })
  expect(await store.acquire([waiting, permit('semaphore:s'), claim('lock:b', { weight: 1 })])).toMatchObject([
    { granted: false },
    { granted: true },
    { granted: true },
  ])
  const renewals = [
    { key: 'lock:a', owner: waiting.owner, ttlMs: 30_000, queued: true },
    { ...held, token, ttlMs: 30_000 },
  ]
  expect(await outcomes(store.renew(renewals))).toEqual(['waiting', 'ours'])
  expect(await outcomes(store.release([{ ...held, token }]))).toEqual(['released'])
  await expect.poll(() => heard.at(-1)).toMatchObject({ type: 'granted', owner: waiting.owner })
  expect((await store.holders?.('lock:'))?.map(({ key }) => key)).toEqual(['lock:a', 'lock:b'])
  expect(await store.revoke?.('lock:a')).toHaveLength(1)
  expect(await store.now?.()).toBeGreaterThan(0)
})

test('no script takes many commands: readers behind a lock, a contended batch, a long queue, a busy window', async () => {
  const [store, other] = [open({ timeout: '20s' }, counting()), open({ timeout: '20s' }, counting())]
  const held = claim('lock:a', { ttlMs: 60_000 })
  await granted(store, held)
  const readers = Array.from({ length: 3_000 }, () => claim('lock:a', { weight: 1, ttlMs: 60_000, queueMs: 60_000 }))
  const events: StoreEvent[] = []
  expect(await other.watch?.('lock:a', (event) => events.push(event)).ready).toBe(true)
  for (let i = 0; i < readers.length; i += 249) {
    const answers = await other.acquire(readers.slice(i, i + 249))
    expect(answers.every((answer) => answer.granted === false)).toBe(true)
  }
  expect((await store.inspect?.('lock:a'))?.waiters).toHaveLength(3_000)
  await store.release([held])
  // A waiter that is told to ask makes the server grant to the next ones.
  await expect
    .poll(
      async () => {
        const freed = events.findLast(({ type }) => type === 'freed')
        const one = readers.find(({ owner }) => freed?.type === 'freed' && owner === freed.owner)
        if (one) await other.acquire([one])
        return (await store.inspect?.('lock:a'))?.holders.length
      },
      { timeout: 20_000, interval: 1 },
    )
    .toBe(3_000)
  expect(await store.holders?.('lock:a')).toHaveLength(3_000)
  const limits = [{ algorithm: 'sliding-window', limit: 1e6, perMs: 1_000, burst: 1e6 }] as const
  for (let i = 0; i < 5_000; i += 200)
    await store.take?.(Array.from({ length: 200 }, () => ({ key: 'limiter:k', limits, cost: 1 })))
  // In commands, since other processes of this machine take the processor away in the midst of a script. A thousand take
  // about two milliseconds.
  expect(await mostCommands()).toBeLessThan(1_500)
})

/** The scripts, with a clock that is set by the test. */
function timed(): RedisScriptSources {
  const clock = "{ redis.call('GET', 'clock:s'), redis.call('GET', 'clock:us') }"
  const entries = Object.entries(embedded).map(([name, source]) => [
    name,
    source.replaceAll("call('TIME')", `call('TIME') and ${clock}`),
  ])
  return Object.fromEntries(entries) as RedisScriptSources
}

test('a sliding window keeps a bounded number of entries, and never more than its limit passes in any stretch', async () => {
  const { client, end } = ioredis[6](server.url)
  cleanups.push(end)
  const store = open({}, timed())
  // Of the injected time, and so long that what passes of the real time meanwhile is nothing beside it.
  const [limit, perMs] = [700, 1_000_000]
  const limits = [{ algorithm: 'sliding-window', limit, perMs, burst: limit }] as const
  const passed: number[] = []
  const exact: number[] = []
  let [at, seed, longest] = [1_700_000_000_000, 1, 0]
  for (let i = 0; i < 3_000; i++) {
    seed = (seed * 48_271) % 2_147_483_647
    // Bursts and lulls, some longer than the window.
    at += seed % 400 === 0 ? seed % 1_500_000 : seed % 1_500
    await client.mset('clock:s', String(Math.floor(at / 1_000)), 'clock:us', String((at % 1_000) * 1_000))
    const [answer] = (await store.take?.([{ key: 'limiter:w', limits, cost: 1 }])) ?? []
    if (answer && 'allowed' in answer && answer.allowed) passed.push(at)
    if (exact.filter((before) => before > at - perMs).length < limit) exact.push(at)
    if (i % 4 > 0) continue
    longest = Math.max(longest, Number(await client.llen('leasehold:1:{limiter:w}:0:w:1000000')))
  }
  expect(passed.length).toBeLessThan(3_000)
  for (const [i, first] of passed.entries()) {
    const later = passed[i + limit]
    if (later !== undefined) expect(later - first).toBeGreaterThanOrEqual(perMs)
  }
  expect(longest).toBeGreaterThan(256)
  expect(longest).toBeLessThanOrEqual(514)
  // A 256th of the window late at most, each time it fills.
  expect(passed.length).toBeGreaterThan(exact.length * 0.97)
})
