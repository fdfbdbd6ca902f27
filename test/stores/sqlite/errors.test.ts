import { chmodSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { InvalidOptionError, StoreUnavailableError, MissingPackageError } from '../../../src/errors.js'
import { loadDriver } from '../../../src/stores/sqlite/driver.js'
import { sqlite } from '../../../src/stores/sqlite/index.js'
import { ask, claim, directory, granted, open, raw, start } from './fixture.js'

test.each([
  ['', /the path of a file/],
  ['a\0b', /the path of a file/],
  [undefined, /the path of a file/],
  [':memory:', /use memory\(\)/],
  ['sqlite:./locks.db', /use openStore\(\)/],
  ['file:locks.db', /use openStore\(\)/],
])('%j as a path is refused at once', (path, message) => {
  expect(() => sqlite(path as string)).toThrow(InvalidOptionError)
  expect(() => sqlite(path as string)).toThrow(message)
})

test('a missing SQLite package is an error that says what to install', () => {
  const missing = (): undefined => {
    throw new Error("Cannot find module '@photostructure/sqlite'")
  }
  expect(() => loadDriver([() => undefined, missing])).toThrow(MissingPackageError)
  expect(() => loadDriver([() => undefined, missing])).toThrow(/npm install @photostructure\/sqlite/)
})

test('a missing directory is created for this user alone', async () => {
  const home = join(directory(), 'state', 'leasehold')
  await granted(open(join(home, 'locks.db')), claim('lock:a', 'me'))
  expect(statSync(home).mode & 0o777).toBe(0o700)
})

test('a relative path is resolved against the directory in which the store was made', async () => {
  const [here, there] = [process.cwd(), directory()]
  let store
  try {
    process.chdir(there)
    store = open('locks.db')
  } finally {
    process.chdir(here)
  }
  await granted(store, claim('lock:a', 'me'))
  expect(statSync(join(there, 'locks.db')).size).toBeGreaterThan(0)
})

test('a symbolic link to the file gives the same locks', async () => {
  const home = directory()
  const store = open(join(home, 'locks.db'))
  await granted(store, claim('lock:a', 'me'))
  symlinkSync(join(home, 'locks.db'), join(home, 'link.db'))
  const other = open(join(home, 'link.db'))
  expect(await ask(other, claim('lock:a', 'you'))).toMatchObject({ granted: false, blocker: { owner: 'me' } })
})

async function unavailable(path: string, message: RegExp): Promise<void> {
  const refused = expect(open(path).acquire([claim('lock:a', 'me')])).rejects
  await refused.toThrow(StoreUnavailableError)
  const again = expect(open(path).acquire([claim('lock:a', 'me')])).rejects
  await again.toThrow(message)
}

test('a file that is not a database is named, and left as it is', async () => {
  const path = join(directory(), 'notes.txt')
  writeFileSync(path, 'not a database at all. '.repeat(500))
  await unavailable(path, /notes\.txt is not a SQLite database; nothing was changed/)
  expect(readFileSync(path, 'utf8')).toBe('not a database at all. '.repeat(500))
})

test('a database of something else is named, and left as it is', async () => {
  const path = join(directory(), 'shop.db')
  const db = raw(path)
  db.exec('CREATE TABLE orders (id INTEGER PRIMARY KEY)')
  db.close()
  const before = readFileSync(path)
  await unavailable(path, /shop\.db is a SQLite database of something else; nothing was changed/)
  expect(readFileSync(path).equals(before)).toBe(true)
})

test('an error names the version of a file with another schema, and the file is left as it is', async () => {
  const path = join(directory(), 'locks.db')
  const store = sqlite(path)
  await store.acquire([claim('lock:a', 'me')])
  await store.close()
  const db = raw(path)
  db.exec('PRAGMA user_version = 99')
  await unavailable(path, /written by another version of leasehold \(schema 99, this one knows 2\)/)
  db.exec('PRAGMA user_version = 2')
  db.close()
  expect(await ask(open(path), claim('lock:a', 'you'))).toMatchObject({ granted: false })
})

test('an error names a damaged file, and the file is left as it is', async () => {
  const path = join(directory(), 'locks.db')
  const db = raw(path)
  db.exec('PRAGMA page_size = 2048; PRAGMA journal_mode = DELETE')
  db.close()
  const store = sqlite(path)
  await store.acquire(Array.from({ length: 500 }, (_, i) => claim(`lock:${i}`, 'me')))
  await store.close()
  const sealed = raw(path)
  sealed.exec('PRAGMA wal_checkpoint(TRUNCATE)')
  sealed.close()
  const damaged = readFileSync(path)
  damaged.fill(0xa5, 2048)
  const copy = join(directory(), 'locks.db')
  writeFileSync(copy, damaged)
  await unavailable(copy, /locks\.db is damaged; nothing was changed/)
  expect(readFileSync(copy).equals(damaged)).toBe(true)
})

test('an error names a directory in the place of the file', async () => {
  await unavailable(directory(), /cannot be opened: it must be a file/)
})

test('an error names a file in the place of the directory', async () => {
  const path = join(directory(), 'file')
  writeFileSync(path, '')
  await unavailable(join(path, 'locks.db'), /locks\.db cannot be used \(E/)
})

/** Root may write everywhere, so the test runs as the user nobody for a while. */
async function asNobody(run: () => Promise<void>): Promise<void> {
  const root = process.geteuid?.() === 0
  if (root) process.seteuid?.(65_534)
  try {
    await run()
  } finally {
    if (root) process.seteuid?.(0)
  }
}

test('an error names a read-only file, which works again once it may be written', async () => {
  const home = directory()
  const path = join(home, 'locks.db')
  const first = sqlite(path)
  const { token } = await granted(first, claim('lock:a', 'me'))
  await first.close()
  chmodSync(home, 0o555)
  chmodSync(path, 0o444)
  await asNobody(() => unavailable(path, /locks\.db is read-only for this process|cannot be opened/))
  chmodSync(home, 0o755)
  chmodSync(path, 0o644)
  expect(await ask(open(path), claim('lock:a', 'you'))).toMatchObject({
    granted: false,
    blocker: { owner: 'me', token },
  })
})

test('an error names a directory that may not be written to', async () => {
  const home = directory()
  chmodSync(home, 0o555)
  await asNobody(() => unavailable(join(home, 'locks.db'), /locks\.db cannot be opened/))
  chmodSync(home, 0o755)
})

test('a store that could not be opened works as soon as it can', async () => {
  const home = directory()
  mkdirSync(join(home, 'locks.db'))
  const store = open(join(home, 'locks.db'))
  await expect(store.acquire([claim('lock:a', 'me')])).rejects.toThrow(StoreUnavailableError)
  rmSync(join(home, 'locks.db'), { recursive: true })
  await granted(store, claim('lock:a', 'me'))
})

test('a process frozen in its transaction makes the store unavailable, without blocking the event loop of others', async () => {
  const path = join(directory(), 'locks.db')
  const store = open(path)
  await granted(store, claim('lock:a', 'me'))
  const other = await start(path)
  await other.call('stayInTransaction')
  other.signal('SIGSTOP')

  let turns = 0
  const counting = setInterval(() => turns++, 5)
  const refused = expect(store.acquire([claim('lock:b', 'me')])).rejects
  await refused.toThrow(StoreUnavailableError)
  clearInterval(counting)
  expect(turns, 'a blocked event loop does not turn').toBeGreaterThan(5)
  await expect(store.release([{ key: 'lock:a', owner: 'me' }])).rejects.toThrow(/locked by another process, for \d+ ms/)
  // Reading works meanwhile, also for a store that opens the file only now.
  for (const looker of [store, open(path)]) {
    expect(await looker.inspect?.('lock:a')).toMatchObject({ holders: [{ owner: 'me' }] })
  }

  other.signal('SIGCONT')
  await other.kill()
  await granted(store, claim('lock:b', 'me'))
})

test('a call that had to wait for the file is not overtaken by a later one', async () => {
  const path = join(directory(), 'locks.db')
  const store = open(path)
  await granted(store, claim('lock:a', 'somebody'))
  const inTheWay = raw(path)
  inTheWay.exec('BEGIN IMMEDIATE')
  const asked = store.acquire([claim('lock:b', 'me')])
  inTheWay.exec('COMMIT')
  inTheWay.close()
  // A release that cleans up after an acquire must not run before it.
  const released = store.release([{ key: 'lock:b', owner: 'me' }])
  expect(await asked).toMatchObject([{ granted: true }])
  expect(await released).toEqual([{ outcome: 'released' }])
})

test('a process that is killed (-9) in the middle of a transaction leaves nothing behind', async () => {
  const path = join(directory(), 'locks.db')
  const store = open(path)
  const { token } = await granted(store, claim('lock:a', 'me'))
  const other = await start(path)
  await other.call('stayInTransaction')
  await other.kill()
  expect((await granted(store, claim('lock:b', 'me'))).token).toBeGreaterThan(token)
  const db = raw(path)
  expect(db.prepare('SELECT swept_to FROM state').get()).toEqual({ swept_to: '' })
  expect(db.prepare('PRAGMA integrity_check').get()).toEqual({ integrity_check: 'ok' })
  db.close()
})

test('a file that is deleted while in use is noticed: its leases are gone, and no store goes on using it', async () => {
  const path = join(directory(), 'locks.db')
  const store = open(path)
  const { token } = await granted(store, claim('lock:a', 'me'))
  const possiblyLost = new Promise<void>((resolve) => store.onPossibleLoss?.(() => resolve()))
  for (const suffix of ['', '-wal', '-shm']) rmSync(path + suffix)
  const newcomer = open(path)
  const taken = await granted(newcomer, claim('lock:a', 'you'))
  expect(taken.token).toBeGreaterThan(token)
  const outcome = async (): Promise<string | undefined> =>
    (await store.renew([{ key: 'lock:a', owner: 'me', ttlMs: 30_000 }]))[0]?.outcome
  await expect.poll(outcome).toBe('gone')
  await possiblyLost
  expect(await ask(store, claim('lock:a', 'me'))).toMatchObject({ granted: false, blocker: { owner: 'you' } })
})

test('a closed store rejects calls, can be closed again, and leaves other stores of the file alone', async () => {
  const path = join(directory(), 'locks.db')
  const store = open(path)
  const other = open(path)
  await granted(store, claim('lock:a', 'me'))
  await store.close()
  await store.close()
  await expect(store.acquire([claim('lock:b', 'me')])).rejects.toMatchObject({ code: 'CLOSED' })
  await expect(store.release([{ key: 'lock:a', owner: 'me' }])).rejects.toThrow(/has been closed/)
  expect(await store.watch?.('lock:a', () => {}).ready).toBe(false)
  expect(await ask(other, claim('lock:a', 'you'))).toMatchObject({ granted: false, blocker: { owner: 'me' } })
})

test('a store that was never used closes without creating a file', async () => {
  const path = join(directory(), 'locks.db')
  await sqlite(path).close()
  expect(statSync(path, { throwIfNoEntry: false })).toBeUndefined()
})

test('outage() names the locked file while a call waits for it, and nothing afterwards', async () => {
  const path = join(directory(), 'locks.db')
  const store = open(path)
  await granted(store, claim('lock:a', 'me'))
  expect(store.outage?.()).toBeUndefined()
  const other = raw(path)
  other.exec('BEGIN IMMEDIATE')
  const waiting = store.acquire([claim('lock:b', 'me')])
  expect(String(store.outage?.())).toMatch(/locks\.db is locked by another process/)
  other.exec('COMMIT')
  other.close()
  expect(await waiting).toMatchObject([{ granted: true }])
  expect(store.outage?.()).toBeUndefined()
})
