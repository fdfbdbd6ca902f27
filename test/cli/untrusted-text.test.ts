/** Names, holders and metadata of other processes, which may hold whatever a terminal obeys. */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Store, openStore } from '../../src/index.js'
import { CliFixture } from './harness.js'

const fixture = new CliFixture()
/** Sets the title, clears the screen (also with the one-byte form), turns text around and hides it. */
const HOSTILE = '\u001b]0;owned\u0007\u009b2J\u202e\u200b\u061c\ufeff'
const NAME = `job${HOSTILE}`
/** Whatever is left of it. Line breaks are ours. */
// oxlint-disable-next-line no-control-regex -- they are what this looks for
const RAW = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200b\u202e\ufeff]/
let store: Store

beforeAll(async () => {
  store = await openStore(fixture.store)
  const value = JSON.stringify({ text: HOSTILE })
  const claim = { owner: `somebody${HOSTILE}`, weight: 1, capacity: 1, ttlMs: 600_000, value }
  await store.acquire([NAME, `${NAME}2`].map((name) => ({ ...claim, key: `lock:${name}` })))
})
afterAll(() => store.close())

test.each([
  ['ls', 0, []],
  ['ls --json', 0, []],
  ['show', 0, [NAME]],
  ['show --json', 0, [NAME]],
  ['watch --for 10ms', 0, []],
  ['watch --for 10ms --json', 0, []],
  ['run --wait 0', 75, [NAME, '--', 'true']],
  ['release --force', 0, [`${NAME}2`]],
])('%s writes no character of others that a terminal obeys', async (words, status, rest) => {
  const { code, stdout, stderr } = await fixture.leasehold(...words.split(' '), ...rest).ended
  expect(code).toBe(status)
  expect(stdout + stderr).toContain('owned')
  expect(RAW.exec(stdout + stderr)).toBeNull()
  if (words.includes('--json')) expect(JSON.stringify(stdout.split('\n').map(parsed))).toContain('owned')
})

/** A line of `watch`, or one string in a listing, as a program reads it: nothing is lost by the escaping. */
function parsed(line: string): unknown {
  const [, text] = /"name": ?("(?:[^"\\]|\\.)*")/.exec(line) ?? []
  if (text === undefined) return undefined
  const name = JSON.parse(text) as string
  expect(name.startsWith(NAME)).toBe(true)
  return name
}
