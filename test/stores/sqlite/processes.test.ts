import { readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { Answer, Grant, TakeAnswer } from '../../../src/store.js'
import { thisMachine } from '../../../src/stores/sqlite/boot-clock.js'
import { ask, claim, count, directory, granted, open, start, until } from './fixture.js'
import { type Revoked, type StoreProcess, monotonicMs } from './store-process.js'

function several(number: number, path: string): Promise<StoreProcess[]> {
  return Promise.all(Array.from({ length: number }, () => start(path)))
}

const enqueue = async (child: StoreProcess, key: string, owner: string, queueMs = 20_000): Promise<Answer> => {
  const [answer] = await child.call<[Answer]>('acquire', [claim(key, owner, { queueMs })])
  return answer
}

test('8 processes that increment one number under the lock lose no increment, and every token is larger than the one before', async () => {
  const home = directory()
  const file = join(home, 'number')
  writeFileSync(file, '0')
  const children = await several(8, join(home, 'locks.db'))
  await Promise.all(children.map((child) => child.call('count', file, 40)))
  expect(readFileSync(file, 'utf8')).toBe('320')
  const tokens = readFileSync(`${file}.tokens`, 'utf8').trim().split('\n').map(BigInt)
  expect(tokens).toHaveLength(320)
  for (let i = 1; i < tokens.length; i++) expect(tokens[i]).toBeGreaterThan(tokens[i - 1] as bigint)
})

test('processes are granted the lock in the order of their requests, each notified by the one before it', async () => {
  const path = join(directory(), 'locks.db')
  const children = await several(4, path)
  const store = open(path)
  const key = 'lock:queue'
  await granted(store, claim(key, 'first'))
  for (const [i, child] of children.entries()) {
    expect(await child.call('subscribe', key)).toBe(true)
    expect(await enqueue(child, key, `waiter-${i}`)).toMatchObject({ granted: false, ahead: i })
  }
  await store.release([{ key, owner: 'first' }])
  let last = 0n
  for (const [i, child] of children.entries()) {
    const owner = `waiter-${i}`
    const { event } = await child.receives(({ event }) => event.type === 'granted' && event.owner === owner)
    const { token, ttlMs } = event as { token: bigint; ttlMs: number }
    expect(ttlMs).toBe(20_000)
    expect(token).toBeGreaterThan(last)
    last = token
    expect(await child.call('renew', [{ key, owner, ttlMs: 30_000 }])).toMatchObject([{ outcome: 'ours' }])
    await child.call('release', [{ key, owner }])
  }
  // A process is notified of its own grant and of the one it handed off, and of no other.
  for (const [i, child] of children.entries()) {
    const about = child.received.map(({ event }) => (event as { owner: string }).owner)
    expect(about).toEqual([`waiter-${i}`, `waiter-${i + 1}`].slice(0, i === 3 ? 1 : 2))
  }
  await granted(store, claim(key, 'last'))
})

test('a process that exits as soon as it has released has notified the next waiter', async () => {
  const path = join(directory(), 'locks.db')
  const [holder, waiter] = (await several(2, path)) as [StoreProcess, StoreProcess]
  const key = 'lock:a'
  await holder.call('acquire', [claim(key, 'holder')])
  await waiter.call('subscribe', key)
  await enqueue(waiter, key, 'waiter')
  holder.call('exitAfterRelease', key, 'holder').catch(() => {})
  await waiter.receives(({ event }) => event.type === 'granted' && event.owner === 'waiter')
})

test('a waiter that subscribes after its queue entry was added is notified of its grant', async () => {
  const path = join(directory(), 'locks.db')
  const waiter = await start(path)
  const store = open(path)
  await granted(store, claim('lock:a', 'holder'))
  await enqueue(waiter, 'lock:a', 'waiter')
  expect(await waiter.call('subscribe', 'lock:a')).toBe(true)
  await store.release([{ key: 'lock:a', owner: 'holder' }])
  await waiter.receives(({ event }) => event.type === 'granted' && event.owner === 'waiter')
})

test('an announced lease notifies subscribers in other processes', async () => {
  const path = join(directory(), 'locks.db')
  const listener = await start(path)
  await listener.call('subscribe', 'election:a')
  const store = open(path)
  await granted(store, claim('election:a', 'leader', { announce: true }))
  await listener.receives(({ event }) => event.type === 'changed')
  await store.renew([{ key: 'election:a', owner: 'leader', ttlMs: 30_000, value: '"new"' }])
  await until('the second', () => listener.received.length === 2)
})

test('a holder is notified at once of a lease that another process revokes or steals, with the token of the grant', async () => {
  const path = join(directory(), 'locks.db')
  const holder = await start(path)
  const store = open(path)
  expect(await holder.call('subscribeToRevocations')).toBe(true)
  const claims = ['lock:a', 'lock:b', 'lock:c'].map((key) => claim(key, 'holder'))
  const [a, b, c] = await holder.call<[Grant, Grant, Grant]>('acquire', claims)
  await store.release([{ key: 'lock:c', owner: 'holder', token: c.token }])
  const asked = monotonicMs()
  await store.revoke?.('lock:a')
  await granted(store, claim('lock:b', 'stealing', { steal: true }))
  const revocationOf = async (key: string): Promise<Revoked> => {
    await until(`the revocation of ${key}`, () => holder.revoked.some(({ lease }) => lease.key === key))
    return holder.revoked.find(({ lease }) => lease.key === key) as Revoked
  }
  expect((await revocationOf('lock:a')).lease).toEqual({ key: 'lock:a', owner: 'holder', token: a.token })
  const last = await revocationOf('lock:b')
  expect(last.lease).toEqual({ key: 'lock:b', owner: 'holder', token: b.token })
  // By its own renewal the holder would find out after a third of the ttl, ten seconds.
  expect(last.at - asked).toBeLessThan(9_000)
  expect(holder.revoked.map(({ lease }) => lease.key)).toEqual(['lock:a', 'lock:b'])
})

test('a process that holds a thousand locks needs one row and one file to be notified of revocations', async () => {
  const path = join(directory(), 'locks.db')
  const store = open(path)
  const watch = store.watchRevoked?.(() => {})
  expect(await watch?.ready).toBe(true)
  for (let i = 0; i < 1_000; i += 500) {
    await store.acquire(Array.from({ length: 500 }, (_, n) => claim(`lock:${i + n}`, 'me')))
  }
  expect([count(path, 'subscribers'), count(path, 'subscriptions'), readdirSync(`${path}-wakeups`).length]).toEqual([
    1, 1, 1,
  ])
})

test('a holder that was killed (-9) keeps the lock until its ttl has passed, and the next token is larger', async () => {
  const path = join(directory(), 'locks.db')
  const holder = await start(path)
  const store = open(path)
  const asked = monotonicMs()
  const [first] = await holder.call<[Grant]>('acquire', [claim('lock:a', 'holder', { ttlMs: 1_000 })])
  await holder.kill()
  const mine = claim('lock:a', 'next')
  let next: Answer | undefined
  await until('the next one holds', async () => (next = await ask(store, mine)).granted)
  expect(monotonicMs() - asked).toBeGreaterThanOrEqual(1_000)
  expect((next as Grant).token).toBeGreaterThan(first.token)
})

test('a waiter that was killed delays the queue for no longer than its queue entry lasts', async () => {
  const path = join(directory(), 'locks.db')
  const [dead, alive] = (await several(2, path)) as [StoreProcess, StoreProcess]
  const store = open(path)
  await granted(store, claim('lock:a', 'holder'))
  for (const child of [dead, alive]) await child.call('subscribe', 'lock:a')
  await enqueue(dead, 'lock:a', 'dead', 400)
  await enqueue(alive, 'lock:a', 'alive')
  await dead.kill()
  await store.release([{ key: 'lock:a', owner: 'holder' }])
  // Handed to the dead waiter first, for as long as its entry would have lasted; then to the next one.
  await until('the living one holds', async () => (await enqueue(alive, 'lock:a', 'alive')).granted)
})

test('tokens grow over kill -9 and over opening the file again', async () => {
  const path = join(directory(), 'locks.db')
  let last = 0n
  for (let i = 0; i < 3; i++) {
    const child = await start(path)
    const [answer] = await child.call<[Grant]>('acquire', [claim('lock:a', `holder-${i}`, { ttlMs: 1 })])
    expect(answer.token).toBeGreaterThan(last)
    last = answer.token
    await child.kill()
  }
  expect((await granted(open(path), claim('lock:a', 'last'))).token).toBeGreaterThan(last)
})

test('a rate limit counts what all processes take', async () => {
  const path = join(directory(), 'locks.db')
  const children = await several(3, path)
  const limits = [{ algorithm: 'sliding-window', limit: 10, perMs: 3_600_000, burst: 10 }]
  const takes = children.flatMap((child) =>
    Array.from({ length: 7 }, () => child.call<TakeAnswer[]>('take', [{ key: 'limiter:a', cost: 1, limits }])),
  )
  const answers = (await Promise.all(takes)).flat()
  expect(answers.filter(({ allowed }) => allowed)).toHaveLength(10)
})

test('the wake-up file of a killed process is removed', async () => {
  const path = join(directory(), 'locks.db')
  const child = await start(path)
  await child.call('subscribe', 'lock:a')
  expect(readdirSync(`${path}-wakeups`)).toHaveLength(1)
  await child.kill()
  expect(count(path, 'subscriptions')).toBe(1)
  const machine = thisMachine()
  const aMinuteLater = open(path, { machine: { boot: machine.boot, now: () => machine.now() + 61_000 } })
  await granted(aMinuteLater, claim('lock:b', 'me'))
  expect(readdirSync(`${path}-wakeups`)).toEqual([])
  expect([count(path, 'subscribers'), count(path, 'subscriptions')]).toEqual([0, 0])
})
