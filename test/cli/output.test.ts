import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Locks, type Store, createLocks, openStore } from '../../src/index.js'
import { CliFixture } from './harness.js'

const fixture = new CliFixture()
const leasehold = fixture.program.join(' ')
/** So many with this much metadata are several times what a pipe holds (64 KiB). */
const HELD = 300
let store: Store
let locks: Locks

beforeAll(async () => {
  store = await openStore(fixture.store)
  locks = createLocks(store)
  const metadata = { why: 'x'.repeat(500) }
  await Promise.all(Array.from({ length: HELD }, (_, i) => locks.acquire(`held:${i}`, { metadata, ttl: '5m' })))
})

afterAll(async () => {
  await locks.close({ grace: 0 })
  await store.close()
})

test('ls --json prints everything to a slow reader', async () => {
  const { code, stdout } = await inShell(`${leasehold} ls --json | (sleep 1; cat)`)
  expect(JSON.parse(stdout)).toHaveLength(HELD)
  expect(code).toBe(0)
})

test('a reader that closes the pipe ends ls quietly, with its usual status', async () => {
  const { code, stdout, stderr } = await inShell(`${leasehold} ls --older-than 1ms | head -1; exit \${PIPESTATUS[0]}`)
  expect(stdout).toMatch(/^NAME/)
  expect(stderr).toBe('')
  expect(code).toBe(1)
})

test('ls exits with 74 on a full disk', async () => {
  const { code, stderr } = await inShell(`${leasehold} ls >/dev/full`)
  expect(stderr).toContain('ENOSPC')
  expect(code).toBe(74)
})

function inShell(script: string) {
  return fixture.start(['bash', '-c', `set -o pipefail; ${script}`]).ended
}
