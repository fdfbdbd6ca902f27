import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { CliFixture } from './harness.js'

const fixture = new CliFixture()
const SECRET = 'correct-horse'

test('--store-file reads the URL from a file that only its owner can read', async () => {
  const file = fileWith('url', `sqlite:${fixture.path('elsewhere.db')}\n`)
  const { code, stdout } = await fixture.leasehold('run', 'x', '--store-file', file, '--', 'echo', 'ran').ended
  expect({ code, stdout }).toEqual({ code: 0, stdout: 'ran\n' })
  expect(fixture.exists('elsewhere.db')).toBe(true)
  expect(fixture.exists('locks.db')).toBe(false)
})

test('--store-file refuses what others can read, what is missing and what is no URL, and shows none of it', async () => {
  const url = `redis://:${SECRET}@127.0.0.1:1`
  const cases: [args: string[], says: string][] = [
    [[fileWith('group', url, 0o640)], 'others can read or change it; run: chmod 600 '],
    [[fileWith('world', url, 0o604)], 'others can read or change it; run: chmod 600 '],
    [[fixture.path('missing')], 'it cannot be read (ENOENT)'],
    [[folderOfOwner('folder')], 'it is a directory'],
    [[fileWith('password', SECRET)], 'its first line is not the URL of a store'],
    [[fileWith('scheme', `${SECRET}+redis:x`)], 'its first line is not the URL of a store'],
    [[fileWith('unknown', `floppy://:${SECRET}@a`)], 'is not one of a store: store is wrong'],
    [[fileWith('both', url), '--store', 'sqlite:x'], '--store and --store-file exclude each other'],
  ]
  for (const [args, says] of cases) {
    const ended = await fixture.leasehold('ls', '--store-file', ...args).ended
    expect(ended.stderr).toContain(says)
    expect(ended.stderr).not.toContain(SECRET)
    expect(ended.code).toBe(64)
  }
})

function folderOfOwner(name: string): string {
  mkdirSync(fixture.path(name), { mode: 0o700 })
  return fixture.path(name)
}

function fileWith(name: string, text: string, mode = 0o600): string {
  const file = fixture.path(name)
  writeFileSync(file, text)
  chmodSync(file, mode)
  return file
}
