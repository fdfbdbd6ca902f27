import {
  appendFileSync,
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import type { Store, StoreEvent } from '../../../src/store.js'
import { Bell, type Message, ring } from '../../../src/stores/sqlite/bell.js'
import { ask, claim, count, directory, granted, open, until } from './place.js'

/** A bell of its own, beside a file that stands for the database. */
function hang(home = directory()): { bells: string; heard: Message[]; broken: () => boolean } {
  writeFileSync(join(home, 'db'), '')
  const bells = join(home, 'db-bells')
  const heard: Message[] = []
  let broken = false
  const bell = new Bell(
    bells,
    'mine',
    (message) => heard.push(message),
    () => (broken = true),
  )
  onTestFinished(() => bell.close())
  return { bells, heard, broken: () => broken }
}

const granting = (owner: string): StoreEvent => ({ type: 'granted', owner, token: 2n ** 60n, ttlMs: 3_000 })

test('a bell hears everything that is rung, in order, whatever it says', async () => {
  const { bells, heard } = hang()
  const messages: Message[] = Array.from({ length: 500 }, (_, i) => ({
    key: `lock:ö\n"${i}"`,
    event: granting(`o-${i}`),
  }))
  for (const message of messages) ring(bells, 'mine', [message])
  await until('all are heard', () => heard.length === messages.length)
  expect(heard).toEqual(messages)
})

test('a bell begins its file anew before it grows large', async () => {
  const { bells, heard } = hang()
  const event = granting('x'.repeat(1_000))
  for (let i = 0; i < 10; i++) {
    ring(
      bells,
      'mine',
      Array.from({ length: 100 }, () => ({ key: 'lock:a', event })),
    )
    await until('it is heard', () => heard.length === (i + 1) * 100)
  }
  expect(statSync(join(bells, 'mine')).size).toBeLessThan(512 * 1024)
})

test('what somebody left half written does not hide what others say', async () => {
  const { bells, heard } = hang()
  appendFileSync(join(bells, 'mine'), '{"key":"lock:a","ev')
  ring(bells, 'mine', [{ key: 'lock:b', event: { type: 'changed' } }])
  await until('it is heard', () => heard.length > 0)
  expect(heard).toEqual([{ key: 'lock:b', event: { type: 'changed' } }])
})

test('whoever may write to the database may ring, and nobody else', () => {
  const home = directory()
  writeFileSync(join(home, 'db'), '')
  chmodSync(join(home, 'db'), 0o660)
  const { bells } = hang(home)
  expect(statSync(bells).mode & 0o777).toBe(0o770)
  expect(statSync(join(bells, 'mine')).mode & 0o777).toBe(0o660)
})

test('ringing a bell that is gone is no trouble', () => {
  ring(join(directory(), 'nowhere'), 'nobody', [{ key: 'lock:a', event: { type: 'changed' } }])
})

function listen(store: Store, key: string): { events: StoreEvent[]; watch: ReturnType<NonNullable<Store['watch']>> } {
  const events: StoreEvent[] = []
  const watch = (store.watch as NonNullable<Store['watch']>)(key, (event) => events.push(event))
  return { events, watch }
}

test('many keys that begin to be watched together cost one bell, and are given back with the store', async () => {
  const path = join(directory(), 'locks.db')
  const store = open(path)
  const watches = Array.from({ length: 50 }, (_, i) => listen(store, `lock:${i}`).watch)
  for (const { ready } of watches) expect(await ready).toBe(true)
  expect(readdirSync(`${path}-bells`)).toHaveLength(1)
  expect([count(path, 'bells'), count(path, 'watchers')]).toEqual([1, 50])
  await store.close()
  expect(watches.some((watch) => watch.live())).toBe(false)
  expect(readdirSync(`${path}-bells`)).toEqual([])
  expect([count(path, 'bells'), count(path, 'watchers')]).toEqual([0, 0])
})

test('a key that is watched again soon after is heard at once', async () => {
  const path = join(directory(), 'locks.db')
  const [store, other] = [open(path), open(path)]
  const first = listen(store, 'lock:a')
  expect(await first.watch.ready).toBe(true)
  first.watch.close()
  const again = listen(store, 'lock:a')
  expect(again.watch.ready).toBe(true)
  await granted(other, claim('lock:a', 'me', { announce: true }))
  await until('it is heard', () => again.events.length > 0)
  expect(first.events).toEqual([])
})

test('a bell that somebody removed is hung up again', async () => {
  const path = join(directory(), 'locks.db')
  const [store, other] = [open(path), open(path)]
  const { events, watch } = listen(store, 'lock:a')
  expect(await watch.ready).toBe(true)
  const [old] = readdirSync(`${path}-bells`)
  rmSync(`${path}-bells`, { recursive: true })
  await until('it hangs again', () => {
    const [now] = existsSync(`${path}-bells`) ? readdirSync(`${path}-bells`) : []
    return watch.live() && now !== undefined && now !== old
  })
  await granted(other, claim('lock:a', 'me', { announce: true }))
  await until('it is heard', () => events.length > 0)
})

test('where no bell can hang the watch says so, and everything else works', async () => {
  const path = join(directory(), 'locks.db')
  writeFileSync(`${path}-bells`, 'in the way')
  const [store, other] = [open(path), open(path)]
  const { events, watch } = listen(store, 'lock:a')
  expect(await watch.ready).toBe(false)
  expect(watch.live()).toBe(false)
  await granted(other, claim('lock:a', 'other'))
  expect(await ask(store, claim('lock:a', 'me', { placeMs: 5_000 }))).toMatchObject({ granted: false })
  await other.release([{ key: 'lock:a', owner: 'other' }])
  await granted(store, claim('lock:a', 'me'))
  // What happens in this very store is told without a bell.
  await ask(store, claim('lock:a', 'next', { placeMs: 5_000 }))
  await store.release([{ key: 'lock:a', owner: 'me' }])
  expect(events).toMatchObject([{ type: 'granted', owner: 'next' }])
})

test('bells that nobody knows are cleared away once they are old', async () => {
  const path = join(directory(), 'locks.db')
  mkdirSync(`${path}-bells`)
  for (const name of ['old', 'young']) writeFileSync(join(`${path}-bells`, name), '')
  const longAgo = new Date(Date.now() - 120_000)
  utimesSync(join(`${path}-bells`, 'old'), longAgo, longAgo)
  expect(await listen(open(path), 'lock:a').watch.ready).toBe(true)
  const left = readdirSync(`${path}-bells`)
  expect(left).toHaveLength(2)
  expect(left).toContain('young')
})

test('a listener that fails does not make what was done look undone', async () => {
  const store = open(join(directory(), 'locks.db'))
  store.watch?.('lock:a', () => {
    throw new Error('a bug in a listener')
  })
  expect(await store.acquire([claim('lock:a', 'me', { announce: true })])).toMatchObject([{ granted: true }])
})
