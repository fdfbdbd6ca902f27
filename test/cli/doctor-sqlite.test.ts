/** `doctor` against SQLite files, each with one thing wrong. */
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { diagnose, type DoctorReport } from '../../src/doctor/index.js'
import { judgeFileSystem, judgeOthers, judgeRights } from '../../src/doctor/sqlite.js'
import { loadDriver } from '../../src/stores/sqlite/driver.js'
import { openLocks } from '../../src/index.js'

/** A user who owns nothing here. */
const NOBODY = 65_534
const OTHER = { uid: NOBODY + 1, groups: [NOBODY + 1] }
const folder = mkdtempSync(join(tmpdir(), 'leasehold-doctor-'))
let made = 0

/** A store in a folder of its own. */
async function makeStore(): Promise<{ dir: string; file: string; url: string }> {
  const dir = join(folder, String(++made))
  mkdirSync(dir, { mode: 0o700 })
  const file = join(dir, 'locks.db')
  const locks = await openLocks(`sqlite:${file}`)
  await locks.withLock('first', () => {})
  await locks.close()
  chmodSync(file, 0o600)
  return { dir, file, url: `sqlite:${file}` }
}

beforeAll(() => chmodSync(folder, 0o755))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const shown = ({ findings }: DoctorReport): string[] => findings.map(({ id, severity }) => `${severity} ${id}`)

test('a good file gets no finding', async () => {
  const { url, file } = await makeStore()
  const report = await diagnose(url)
  expect(report.findings.filter(({ severity }) => severity !== 'note')).toEqual([])
  expect(report).toMatchObject({ store: 'sqlite', safe: true, server: `SQLite, ${file}` })
})

test('a file that is not there yet is not made', async () => {
  const path = join(folder, 'nobody-made-this')
  const report = await diagnose(`sqlite:${path}/locks.db`)
  expect(report.safe).toBe(true)
  expect(report.checks.find(({ id }) => id === 'sqlite.trial')?.outcome).toBe('skipped')
  expect(readdirSync(folder)).not.toContain('nobody-made-this')
})

test('a file, or a folder, that everybody may write to is found', async () => {
  const one = await makeStore()
  chmodSync(one.file, 0o666)
  const file = await diagnose(one.url)
  expect(shown(file)).toContain('danger sqlite.others')
  expect(file.findings.find(({ id }) => id === 'sqlite.others')?.fix).toContain(`chmod o-w ${one.file}`)
  const other = await makeStore()
  chmodSync(other.dir, 0o777)
  expect(shown(await diagnose(other.url))).toContain('danger sqlite.others')
  chmodSync(other.dir, 0o1777)
  expect(shown(await diagnose(other.url)), 'as /tmp is').not.toContain('danger sqlite.others')
})

test('a link is judged by the file that it leads to', async () => {
  const { dir, file } = await makeStore()
  chmodSync(dir, 0o777)
  const link = join((await makeStore()).dir, 'link.db')
  symlinkSync(file, link)
  const report = await diagnose(`sqlite:${link}`)
  expect(shown(report)).toContain('danger sqlite.others')
  expect(report.server).toBe(`SQLite, ${file}`)
})

test('a folder that cannot be made is an error, and not a hang', async () => {
  const opening = openLocks('sqlite:/proc/nobody-made-this/x/locks.db').then(async (locks) =>
    locks.acquire('a', { wait: 0 }),
  )
  await expect(opening).rejects.toThrow('/proc/nobody-made-this')
})

test('a file of another user, and a group that may write, are noted', async () => {
  const { file, dir } = await makeStore()
  // Root's own files are in nobody else's hands.
  if (process.geteuid?.() === 0) for (const path of [dir, file]) chownSync(path, NOBODY, NOBODY)
  const { uid, gid } = statSync(file)
  const owner = { uid, groups: [gid] }
  expect(await judgeOthers(file, dir, owner)).toBe(undefined)
  expect(await judgeOthers(file, dir, { ...owner, uid: uid + 1 })).toMatchObject({ severity: 'note' })
  chmodSync(file, 0o660)
  expect(await judgeOthers(file, dir, owner), 'the primary group of a user has no other members').toBe(undefined)
  expect(await judgeOthers(file, dir, { uid, groups: [gid + 1] })).toMatchObject({ severity: 'note' })
})

test('a user without the right to write is told where', async () => {
  const { file, dir } = await makeStore()
  chmodSync(dir, 0o755)
  chmodSync(file, 0o644)
  const found = await judgeRights(file, dir, OTHER)
  expect(found).toMatchObject({ severity: 'danger' })
  expect(found?.evidence).toMatch(new RegExp(`^${dir}: mode 755, user .*; ${file}: mode 644, user `))
  chmodSync(dir, 0o777)
  for (const path of readdirSync(dir)) chmodSync(join(dir, path), 0o777)
  expect(await judgeRights(file, dir, OTHER)).toBe(undefined)
})

test('a database of something else, of another version, and a file that is none are found', async () => {
  const foreign = join(folder, 'foreign.db')
  const { DatabaseSync } = loadDriver()
  const db = new DatabaseSync(foreign)
  db.exec('create table theirs (id integer)')
  db.close()
  const other = await makeStore()
  const older = new DatabaseSync(other.file)
  older.exec('pragma user_version = 1')
  older.close()
  const garbage = join(folder, 'garbage.db')
  writeFileSync(garbage, 'this is no database, '.repeat(100))
  for (const [path, evidence] of [
    [foreign, 'database of something else'],
    [other.file, 'another version of leasehold'],
    [garbage, 'not a database'],
  ] as const) {
    const report = await diagnose(`sqlite:${path}`)
    expect(shown(report)).toContain('danger sqlite.trial')
    expect(report.findings.find(({ id }) => id === 'sqlite.trial')?.evidence).toContain(evidence)
  }
})

test('a path through a file, where no folder can be, is unreachable', async () => {
  const { file } = await makeStore()
  expect(await diagnose(`sqlite:${file}/below/locks.db`)).toMatchObject({ reachable: false, safe: false })
})

test('network file systems are recognised by their number', () => {
  expect(judgeFileSystem(0xef53, '/disk')).toBe(undefined)
  // statfs gives the upper half of the numbers as negative ones on some systems.
  for (const type of [0x6969, 0xff534d42, 0xff534d42 | 0, 0x01021997]) {
    expect(judgeFileSystem(type, '/share')?.severity).toBe('danger')
  }
  expect(judgeFileSystem(0x65735546, '/mnt')).toMatchObject({ severity: 'warning', evidence: '/mnt is on FUSE' })
  expect(judgeFileSystem(0x794c7630, '/data')?.severity).toBe('note')
})
