import { execFileSync, spawn } from 'node:child_process'
import {
  appendFileSync,
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import type { Store, StoreEvent } from '../../../src/store.js'
import { SUBSCRIBER_TTL_MS, WakeupFile, type WakeupMessage, notify } from '../../../src/stores/sqlite/wakeup-file.js'
import { type World, realWorld } from '../../../src/util/world.js'
import { ask, claim, count, directory, granted, open, raw, until } from './fixture.js'

/** A wake-up file beside an empty file that stands for the database. */
function openWakeupFile(home = directory()): { folder: string; path: string; received: WakeupMessage[] } {
  writeFileSync(join(home, 'db'), '')
  const folder = join(home, 'db-wakeups')
  const received: WakeupMessage[] = []
  const file = new WakeupFile(
    folder,
    'mine',
    (message) => received.push(message),
    () => {},
  )
  onTestFinished(() => file.close())
  return { folder, path: join(folder, 'mine'), received }
}

const granting = (owner: string): StoreEvent => ({ type: 'granted', owner, token: 2n ** 60n, ttlMs: 3_000 })

test('a wake-up file receives every message, in order, whatever the message contains', async () => {
  const { folder, received } = openWakeupFile()
  const messages: WakeupMessage[] = Array.from({ length: 500 }, (_, i) => ({
    key: `lock:ö\n"${i}"`,
    event: granting(`o-${i}`),
  }))
  for (const message of messages) notify(folder, 'mine', [message])
  await until('all are received', () => received.length === messages.length)
  expect(received).toEqual(messages)
})

test('a wake-up file is emptied before it grows large', async () => {
  const { folder, received } = openWakeupFile()
  const event = granting('x'.repeat(1_000))
  for (let i = 0; i < 10; i++) {
    notify(
      folder,
      'mine',
      Array.from({ length: 100 }, () => ({ key: 'lock:a', event })),
    )
    await until('it is received', () => received.length === (i + 1) * 100)
  }
  expect(statSync(join(folder, 'mine')).size).toBeLessThan(512 * 1024)
})

test('a message that a process left half written does not hide the next one', async () => {
  const { folder, received } = openWakeupFile()
  appendFileSync(join(folder, 'mine'), '{"key":"lock:a","ev')
  notify(folder, 'mine', [{ key: 'lock:b', event: { type: 'changed' } }])
  await until('it is received', () => received.length > 0)
  expect(received).toEqual([{ key: 'lock:b', event: { type: 'changed' } }])
})

test('a wake-up file that another program makes huge is emptied, and messages are received again', async () => {
  const { folder, path, received } = openWakeupFile()
  // Longer than a string can be.
  truncateSync(path, 2 ** 30)
  await until('it is emptied', () => statSync(path).size === 0)
  notify(folder, 'mine', [{ key: 'lock:a', event: { type: 'changed' } }])
  await until('it is received', () => received.length > 0)
  expect(received).toEqual([{ key: 'lock:a', event: { type: 'changed' } }])
})

test('a wake-up file that another program empties is read from its new beginning', async () => {
  const { folder, path, received } = openWakeupFile()
  const long: WakeupMessage = { key: 'lock:a', event: granting('x'.repeat(10_000)) }
  notify(folder, 'mine', [long])
  // And the beginning of one, which is gone with the rest.
  appendFileSync(path, '{"key":"lock:b","event":')
  await until('it is received', () => received.length === 1)
  truncateSync(path, 0)
  for (const key of ['lock:c', 'lock:d']) notify(folder, 'mine', [{ key, event: { type: 'changed' } }])
  await until('both are received', () => received.length === 3)
  expect(received.map(({ key }) => key)).toEqual(['lock:a', 'lock:c', 'lock:d'])
})

test('a line that is longer than any message is not kept until its end arrives', async () => {
  const { folder, path, received } = openWakeupFile()
  const line = JSON.stringify({ key: 'lock:a', event: { type: 'changed' }, more: 'x'.repeat(300_000) })
  appendFileSync(path, `\n${line.slice(0, -10)}`)
  await until('it is read', () => statSync(path).size === 0)
  appendFileSync(path, `${line.slice(-10)}\n`)
  notify(folder, 'mine', [{ key: 'lock:b', event: { type: 'changed' } }])
  await until('the next one is received', () => received.some(({ key }) => key === 'lock:b'))
  expect(received.map(({ key }) => key)).toEqual(['lock:b'])
})

test('an error while a wake-up file is read means that the file is broken, and does not end the process', async () => {
  const home = directory()
  writeFileSync(join(home, 'db'), '')
  let broken = 0
  const fail = (): never => {
    throw new Error('a bug')
  }
  const file = new WakeupFile(join(home, 'db-wakeups'), 'mine', fail, () => broken++)
  onTestFinished(() => file.close())
  notify(join(home, 'db-wakeups'), 'mine', [{ key: 'lock:a', event: { type: 'changed' } }])
  await until('it is told', () => broken > 0)
})

test('users who may write to the database may write to wake-up files, and no others', () => {
  const home = directory()
  writeFileSync(join(home, 'db'), '')
  chmodSync(join(home, 'db'), 0o660)
  const { folder } = openWakeupFile(home)
  expect(statSync(folder).mode & 0o777).toBe(0o770)
  expect(statSync(join(folder, 'mine')).mode & 0o777).toBe(0o660)
})

test('notifying a process whose file is gone throws nothing', () => {
  notify(join(directory(), 'nowhere'), 'nobody', [{ key: 'lock:a', event: { type: 'changed' } }])
})

test('a subscriber whose id is a path neither has a file outside of the directory written to nor removed', async () => {
  const home = directory()
  const path = join(home, 'locks.db')
  for (const name of ['written', 'removed']) writeFileSync(join(home, name), 'of the user')
  const store = open(path)
  await granted(store, claim('lock:a', 'one'))
  const db = raw(path)
  db.exec("INSERT INTO subscribers VALUES ('../written', 1e15), ('../removed', 1)")
  db.exec("INSERT INTO subscriptions VALUES ('', '../written'), ('lock:a', '../written')")
  db.close()
  await (store.revoke as NonNullable<Store['revoke']>)('lock:a')
  // Expired subscribers are swept with the first transaction of a process.
  await granted(open(path), claim('lock:a', 'two', { announce: true }))
  expect(count(path, 'subscribers')).toBe(1)
  expect(readFileSync(join(home, 'written'), 'utf8')).toBe('of the user')
  expect(existsSync(join(home, 'removed'))).toBe(true)
})

test('a link in place of a wake-up file is not followed', () => {
  const { folder } = openWakeupFile()
  const target = join(folder, '..', 'target')
  writeFileSync(target, 'of the user')
  symlinkSync(target, join(folder, 'theirs'))
  notify(folder, 'theirs', [{ key: 'lock:a', event: { type: 'changed' } }])
  expect(readFileSync(target, 'utf8')).toBe('of the user')
})

test('a named pipe in place of a wake-up file holds nobody up', () => {
  const { folder } = openWakeupFile()
  const pipe = join(folder, 'theirs')
  execFileSync('mkfifo', [pipe])
  // A reader that comes late: without one, a process that waits for it would wait for ever.
  const reader = spawn('sh', ['-c', 'sleep 5; exec cat "$0"', pipe], { stdio: 'ignore' })
  onTestFinished(() => void reader.kill())
  const began = performance.now()
  notify(folder, 'theirs', [{ key: 'lock:a', event: { type: 'changed' } }])
  expect(performance.now() - began).toBeLessThan(3_000)
})

function subscribe(
  store: Store,
  key: string,
): { events: StoreEvent[]; watch: ReturnType<NonNullable<Store['watch']>> } {
  const events: StoreEvent[] = []
  const watch = (store.watch as NonNullable<Store['watch']>)(key, (event) => events.push(event))
  return { events, watch }
}

test('keys that begin to be watched together share one wake-up file, and closing the store removes it', async () => {
  const path = join(directory(), 'locks.db')
  const store = open(path)
  const watches = Array.from({ length: 50 }, (_, i) => subscribe(store, `lock:${i}`).watch)
  for (const { ready } of watches) expect(await ready).toBe(true)
  expect(readdirSync(`${path}-wakeups`)).toHaveLength(1)
  expect([count(path, 'subscribers'), count(path, 'subscriptions')]).toEqual([1, 50])
  await store.close()
  expect(watches.some((watch) => watch.live())).toBe(false)
  expect(readdirSync(`${path}-wakeups`)).toEqual([])
  expect([count(path, 'subscribers'), count(path, 'subscriptions')]).toEqual([0, 0])
})

test('a key that is watched again soon after is live at once', async () => {
  const path = join(directory(), 'locks.db')
  const [store, other] = [open(path), open(path)]
  const first = subscribe(store, 'lock:a')
  expect(await first.watch.ready).toBe(true)
  first.watch.close()
  const again = subscribe(store, 'lock:a')
  expect(again.watch.ready).toBe(true)
  await granted(other, claim('lock:a', 'me', { announce: true }))
  await until('it is received', () => again.events.length > 0)
  expect(first.events).toEqual([])
})

test('a wake-up file that was removed is replaced by a new one', async () => {
  const path = join(directory(), 'locks.db')
  const [store, other] = [open(path), open(path)]
  const { events, watch } = subscribe(store, 'lock:a')
  expect(await watch.ready).toBe(true)
  const [old] = readdirSync(`${path}-wakeups`)
  rmSync(`${path}-wakeups`, { recursive: true })
  await until('there is a new one', () => {
    const [now] = existsSync(`${path}-wakeups`) ? readdirSync(`${path}-wakeups`) : []
    return watch.live() && now !== undefined && now !== old
  })
  await granted(other, claim('lock:a', 'me', { announce: true }))
  await until('it is received', () => events.length > 0)
})

test('a folder that another program puts in place of a wake-up file ends no process, and the file is replaced by a new one', async () => {
  const path = join(directory(), 'locks.db')
  const [store, other] = [open(path), open(path)]
  const { events, watch } = subscribe(store, 'lock:a')
  expect(await watch.ready).toBe(true)
  const [old = ''] = readdirSync(`${path}-wakeups`)
  rmSync(join(`${path}-wakeups`, old))
  mkdirSync(join(`${path}-wakeups`, old))
  await until('there is a new one', () => watch.live() && readdirSync(`${path}-wakeups`).some((name) => name !== old))
  await granted(other, claim('lock:a', 'me', { announce: true }))
  await until('it is received', () => events.length > 0)
})

test('a process that was frozen for longer than its subscriber lives subscribes anew, with a new file', async () => {
  const path = join(directory(), 'locks.db')
  let refresh: (() => void) | undefined
  const after: World['after'] = (ms, run, keepAlive) => {
    if (ms === SUBSCRIBER_TTL_MS / 3) refresh = run
    return realWorld.after(ms, run, keepAlive)
  }
  const store = open(path, { world: { ...realWorld, after } })
  const { events, watch } = subscribe(store, 'lock:a')
  expect(await watch.ready).toBe(true)
  const files = (): string[] => readdirSync(`${path}-wakeups`)
  const old = files()
  const db = raw(path)
  db.exec('DELETE FROM subscribers; DELETE FROM subscriptions')
  db.close()
  refresh?.()
  await until('there is a new one', () => watch.live() && files().length === 1 && files()[0] !== old[0])
  await granted(open(path), claim('lock:a', 'me', { announce: true }))
  await until('it is received', () => events.length > 0)
})

test('a watch is not live where no wake-up file can be created, and everything else works', async () => {
  const path = join(directory(), 'locks.db')
  writeFileSync(`${path}-wakeups`, 'in the way')
  const [store, other] = [open(path), open(path)]
  const { events, watch } = subscribe(store, 'lock:a')
  expect(await watch.ready).toBe(false)
  expect(watch.live()).toBe(false)
  await granted(other, claim('lock:a', 'other'))
  expect(await ask(store, claim('lock:a', 'me', { queueMs: 5_000 }))).toMatchObject({ granted: false })
  await other.release([{ key: 'lock:a', owner: 'other' }])
  await granted(store, claim('lock:a', 'me'))
  // Events of the same store need no file.
  await ask(store, claim('lock:a', 'next', { queueMs: 5_000 }))
  await store.release([{ key: 'lock:a', owner: 'me' }])
  expect(events).toMatchObject([{ type: 'granted', owner: 'next' }])
})

test('old wake-up files without a subscriber in the database are removed', async () => {
  const path = join(directory(), 'locks.db')
  mkdirSync(`${path}-wakeups`)
  for (const name of ['old-1', 'old-2', 'young']) writeFileSync(join(`${path}-wakeups`, name), '')
  // What somebody put there beside them does not keep the others from being removed.
  for (const name of ['folder-1', 'old-folder', 'z-folder']) mkdirSync(join(`${path}-wakeups`, name))
  const longAgo = new Date(Date.now() - 120_000)
  for (const name of readdirSync(`${path}-wakeups`)) {
    if (name !== 'young') utimesSync(join(`${path}-wakeups`, name), longAgo, longAgo)
  }
  expect(await subscribe(open(path), 'lock:a').watch.ready).toBe(true)
  const left = readdirSync(`${path}-wakeups`).filter((name) => !name.includes('folder'))
  expect(left).toHaveLength(2)
  expect(left).toContain('young')
})

test('an error of a listener does not make the call that notified it fail', async () => {
  const store = open(join(directory(), 'locks.db'))
  store.watch?.('lock:a', () => {
    throw new Error('a bug in a listener')
  })
  expect(await store.acquire([claim('lock:a', 'me', { announce: true })])).toMatchObject([{ granted: true }])
})
