import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { RedisServer } from '../../../testbed/servers/index.js'
import { createLocks, StoreUnavailableError } from '../../../src/index.js'
import { ALL, type Answer, type Claim, type Grant, type Store } from '../../../src/store.js'
import { Servers } from './servers.js'

let names = 0
const fresh = (): string => `lock:fault:${names++}`
const claim = (key: string, more: Partial<Claim> = {}): Claim => {
  return { key, owner: `owner:${names++}`, weight: ALL, capacity: ALL, ttlMs: 20_000, ...more }
}
const ask = async (store: Store, wanted: Claim): Promise<Answer> => (await store.acquire([wanted]))[0] as Answer
const grant = async (store: Store, wanted: Claim): Promise<Grant> => {
  const answer = await ask(store, wanted)
  if (answer.granted !== true) throw answer.granted === 'unknown' ? answer.error : new Error(`refused: ${wanted.key}`)
  return answer
}
const release = async (store: Store, key: string, { owner }: Grant): Promise<string | undefined> =>
  (await store.release([{ key, owner }]))[0]?.outcome

async function until(what: string, condition: () => Promise<boolean>, withinMs = 30_000): Promise<void> {
  const deadline = performance.now() + withinMs
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`waited in vain until ${what}`)
    await sleep(20)
  }
}

describe('five servers', () => {
  let servers: Servers
  let store: Store
  const server = (i: number): RedisServer => servers.all[i] as RedisServer

  beforeAll(async () => {
    servers = await Servers.start(5)
    // So long that a call that waited for a silent node would be noticed.
    store = servers.store({ maxTtl: '2m', nodeTimeout: '20s' })
    await grant(store, claim(fresh()))
  })
  afterAll(() => servers.stop())

  test('a frozen server delays nothing, and leftovers are released there when it thaws', async () => {
    const began = performance.now()
    await server(1).freeze()
    const held: [string, Grant][] = []
    for (let i = 0; i < 10; i++) {
      const key = fresh()
      held.push([key, await grant(store, claim(key))])
    }
    const [lost, lease] = held[0] as [string, Grant]
    const renewed = await store.renew(held.map(([key, { owner }]) => ({ key, owner, ttlMs: 60_000 })))
    expect(renewed.map(({ outcome }) => outcome)).toEqual(held.map(() => 'ours'))
    for (const [key, granted] of held) expect(await release(store, key, granted)).toBe('released')
    expect(await release(store, lost, lease)).toBe('gone')
    expect(performance.now() - began, 'time until nothing waited for it').toBeLessThan(20_000)
    await server(1).thaw()
    await until(
      'nothing is left of them',
      async () => (await server(1).command('EXISTS', ...held.map(([key]) => key))) === 0,
    )
  })

  test('a refusal does not wait for a frozen server either', async () => {
    const key = fresh()
    const held = await grant(store, claim(key))
    await server(4).freeze()
    const began = performance.now()
    expect(await ask(store, claim(key))).toMatchObject({ granted: false, blocker: { owner: held.owner } })
    expect(performance.now() - began).toBeLessThan(20_000)
    await server(4).thaw()
    await release(store, key, held)
  })

  test('the store sends scripts again that a server has forgotten', async () => {
    for (const { command } of servers.all.map((one) => ({ command: one.command.bind(one) })))
      await command('SCRIPT', 'FLUSH')
    const key = fresh()
    expect(await release(store, key, await grant(store, claim(key)))).toBe('released')
  })

  test('a plain key of another library on a majority of the servers is a holder, whatever its type', async () => {
    const [text, list, forever] = [fresh(), fresh(), fresh()]
    for (const i of [0, 1, 2]) {
      await server(i).command('SET', text, 'somebody', 'PX', '60000')
      await server(i).command('RPUSH', list, 'x')
      await server(i).command('SET', forever, 'somebody')
    }
    const free = fresh()
    const answers = await store.acquire([text, free, list, forever].map((key) => claim(key)))
    expect(answers.map(({ granted }) => granted)).toEqual([false, true, false, false])
    expect(answers[0]).toMatchObject({ blocker: { owner: 'somebody', foreign: true } })
    expect(answers[2]).toMatchObject({ blocker: { owner: '(list)', foreign: true, ttlMs: undefined } })
    expect(answers[3]).toMatchObject({ blocker: { foreign: true, ttlMs: undefined } })
    const seen = await store.inspect?.(text)
    expect(seen?.holders).toMatchObject([{ owner: 'somebody', foreign: true, token: undefined }])
  })

  test('a lock of leasehold is a plain key for other libraries, also while it is shared', async () => {
    const [exclusive, shared] = [fresh(), fresh()]
    await grant(store, claim(exclusive))
    await grant(store, claim(shared, { weight: 1 }))
    for (const key of [exclusive, shared]) {
      const taken = await Promise.all(servers.all.map((one) => one.command('SET', key, 'other', 'NX', 'PX', '1000')))
      expect(taken.filter((reply) => reply === 'OK').length, `${key} is there on a majority`).toBeLessThan(3)
    }
  })

  test('a lease that a server forgot is put back there with the next renewal', async () => {
    const key = fresh()
    const held = await grant(store, claim(key))
    await until('all have it', async () => (await everywhere(servers, key)) === 5)
    for (const i of [0, 1]) await server(i).command('DEL', key)
    expect((await store.renew([{ key, owner: held.owner, ttlMs: 30_000 }]))[0]?.outcome).toBe('ours')
    await until('all have it again', async () => (await everywhere(servers, key)) === 5)
    expect(await release(store, key, held)).toBe('released')
    await until('nobody has it', async () => (await everywhere(servers, key)) === 0)
  })

  test('a renewal does not bring back a lease that a majority forgot', async () => {
    const key = fresh()
    const held = await grant(store, claim(key))
    for (const i of [0, 1, 2]) await server(i).command('DEL', key)
    expect((await store.renew([{ key, owner: held.owner, ttlMs: 30_000 }]))[0]?.outcome).toBe('gone')
    expect(await everywhere(servers, key)).toBeLessThanOrEqual(2)
  })

  test('an owner that asks again gets its own grant again, with the same token', async () => {
    const wanted = claim(fresh())
    const first = await grant(store, wanted)
    expect(await grant(store, wanted)).toMatchObject({ owner: first.owner, token: first.token })
    // An owner that did not receive its grant knows only the name it asked under.
    expect((await store.release([{ key: wanted.key, owner: wanted.owner }]))[0]?.outcome).toBe('released')
    expect((await grant(store, claim(wanted.key))).token).toBeGreaterThan(first.token)
  })

  test('a ttl beyond maxTtl is refused', async () => {
    const answer = await ask(store, claim(fresh(), { ttlMs: 120_001 }))
    expect(answer).toMatchObject({ granted: 'unknown', error: { code: 'INVALID_OPTION', option: 'ttl' } })
  })
})

async function everywhere(servers: Servers, key: string): Promise<number> {
  const found = await Promise.all(servers.all.map((server) => server.command('EXISTS', key)))
  return found.filter((reply) => reply === 1).length
}

describe('servers that die', () => {
  let servers: Servers
  beforeAll(async () => {
    servers = await Servers.start(5)
  })
  afterAll(() => servers.stop())

  test('locks are granted with two of five servers dead; with three, StoreUnavailableError names them in time', async () => {
    const store = servers.store({ nodeTimeout: '3s' }, servers.mixed())
    const locks = createLocks(store, { ttl: '20s', wait: '30s' })
    const early = await locks.acquire('early')
    for (const i of [1, 3]) await (servers.all[i] as RedisServer).kill()
    for (let i = 0; i < 20; i++)
      await locks.withLock(`with-two-down:${i}`, async (lock) => expect(lock.isHeld).toBe(true))
    expect(await early.release()).toBe(true)

    await (servers.all[4] as RedisServer).kill()
    const began = performance.now()
    const error = await locks.tryAcquire('x').catch((reason: unknown) => reason)
    expect(performance.now() - began).toBeLessThan(store.timeoutMs)
    expect(error).toBeInstanceOf(StoreUnavailableError)
    const { message, cause } = error as StoreUnavailableError
    for (const i of [1, 3, 4]) expect(message).toContain(servers.ports[i])
    for (const i of [0, 2]) expect(message).not.toContain(servers.ports[i])
    expect((cause as AggregateError).errors.map((reason: { node: string }) => reason.node).sort()).toEqual(
      [1, 3, 4].map((i) => servers.ports[i]).sort(),
    )
    await locks.close({ grace: 0 })
  })
})

describe('servers that come back', () => {
  const MAX_TTL_MS = 1_500

  test('an emptied server sits out maxTtl, also for clients that have just started, and then votes again', async () => {
    // Long enough that a busy machine asks before it is over.
    const maxTtl = 6_000
    const servers = await Servers.start(3)
    const [, second, third] = servers.all as [RedisServer, RedisServer, RedisServer]
    const key = fresh()
    const token = (await grant(servers.store({ maxTtl }), claim(key, { ttlMs: maxTtl }))).token
    await until('all have it', async () => (await everywhere(servers, key)) === 3)

    await second.kill()
    await second.restart({ keepData: false })
    const backAt = performance.now()
    // Only the first still remembers that it is held, and the third is away: the second must not make a majority.
    await third.freeze()
    const newcomer = servers.store({ maxTtl, nodeTimeout: 1_500 })
    const answer = await ask(newcomer, claim(key, { ttlMs: 500 }))
    expect(answer.granted).toBe('unknown')
    expect(String((answer as { error: Error }).error.message)).toContain('sits out')
    await third.thaw()

    let later: Answer | undefined
    await until('it is granted', async () => (later = await ask(newcomer, claim(key, { ttlMs: 500 }))).granted === true)
    expect((later as Grant).token).toBeGreaterThan(token)
    const voter = (): Promise<unknown> => second.command('HGET', 'leasehold:redlock', 'state')
    await until(
      'it votes',
      async () => (await ask(newcomer, claim(fresh(), { ttlMs: 500 }))) && (await voter()) === 'votes',
    )
    expect(performance.now() - backAt).toBeGreaterThan(maxTtl)
    const counter = Number(await second.command('HGET', 'leasehold:redlock', 'counter'))
    expect(counter).toBeGreaterThanOrEqual(Number(token))
    await servers.stop()
  })

  test('a server restarted with its data sits out too, since its last writes may be missing', async () => {
    const servers = await Servers.start(3)
    const store = servers.store({ maxTtl: '30s' })
    await grant(store, claim(fresh(), { ttlMs: 200 }))
    const [first] = servers.all as [RedisServer]
    await first.restart({ keepData: true })
    await until('it was noticed', async () => {
      await ask(store, claim(fresh(), { ttlMs: 200 }))
      return (await first.command('HGET', 'leasehold:redlock', 'state')) === 'lost'
    })
    await servers.stop()
  })

  test('servers that were all restarted with their data serve again after maxTtl', async () => {
    const servers = await Servers.start(3)
    const store = servers.store({ maxTtl: MAX_TTL_MS })
    const before = await grant(store, claim(fresh(), { ttlMs: 1_000 }))
    const began = performance.now()
    await Promise.all(servers.all.map((server) => server.restart({ keepData: true })))
    let after: Answer | undefined
    await until('somebody is granted something', async () => {
      after = await ask(store, claim(fresh(), { ttlMs: 1_000 }))
      return after.granted === true
    })
    expect((after as Grant).token).toBeGreaterThan(before.token)
    expect(performance.now() - began).toBeGreaterThan(MAX_TTL_MS)
    await servers.stop()
  })
})
