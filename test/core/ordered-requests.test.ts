/** Requests of Web Locks travel one call after the other: how long one that does not wait may be held up by those before it. */
import { expect, test } from 'vitest'
import { StoreUnavailableError } from '../../src/errors.js'
import type { Locks } from '../../src/locks.js'
import { RemoteMemory } from './remote-memory.js'

interface Request {
  /** After how long it has settled, and how. */
  afterMs?: number
  outcome?: unknown
}

function request(
  remote: RemoteMemory,
  locks: Locks,
  name: string,
  options: { ifAvailable?: true; steal?: true } = {},
): Request {
  const seen: Request = {}
  const since = remote.world.now()
  const settled = (outcome: unknown): void => void Object.assign(seen, { afterMs: remote.world.now() - since, outcome })
  void locks.request(name, options, (lock) => (lock ? 'held' : 'busy')).then(settled, settled)
  return seen
}

for (const option of ['ifAvailable', 'steal'] as const) {
  test(`a request with ${option} behind others of its instance ends within two time limits of a silent store`, async () => {
    const remote = new RemoteMemory({ maxBatch: 2 })
    remote.fate = () => 'lose'
    const locks = remote.locks()
    for (let i = 0; i < 20; i++) request(remote, locks, `before ${i}`)
    await remote.pass(100)
    const impatient = request(remote, locks, 'x', { [option]: true })
    await remote.pass(3_950)
    expect(impatient.outcome).toBeInstanceOf(StoreUnavailableError)
    expect((impatient.outcome as Error).message).toContain('did not answer within 2s')
    // It never left, so nothing of it can be in the store.
    expect(remote.calls.flatMap(({ items }) => items).filter(({ key }) => key === 'lock:x')).toEqual([])
    void locks.close({ grace: 0 })
    await remote.pass(10_000)
  })
}

test('a request with ifAvailable waits for as long as the store answers those before it, however slowly', async () => {
  const remote = new RemoteMemory({ maxBatch: 2 })
  remote.fate = (method) => (method === 'acquire' ? { replyMs: 1_500 } : undefined)
  const locks = remote.locks({ ttl: '1m' })
  for (let i = 0; i < 8; i++) request(remote, locks, `before ${i}`)
  const impatient = request(remote, locks, 'x', { ifAvailable: true })
  await remote.pass(20_000)
  expect(impatient).toEqual({ afterMs: 7_500, outcome: 'held' })
})

test('a request with ifAvailable is sent although a call before it failed a moment ago', async () => {
  const remote = new RemoteMemory({ maxBatch: 2 })
  remote.fate = (method, n) => (method === 'acquire' && n === 1 ? 'break' : undefined)
  const locks = remote.locks()
  for (let i = 0; i < 2; i++) request(remote, locks, `before ${i}`)
  const impatient = request(remote, locks, 'x', { ifAvailable: true })
  await remote.pass(100)
  expect(impatient.outcome).toBe('held')
})

test('query() ends within two time limits of a silent store, however many requests were made before it', async () => {
  const remote = new RemoteMemory({ maxBatch: 2 })
  remote.fate = () => 'lose'
  const locks = remote.locks()
  for (let i = 0; i < 20; i++) request(remote, locks, `before ${i}`)
  await remote.pass(100)
  let pending: number | undefined
  void locks.query().then((snapshot) => (pending = snapshot.pending.length))
  await remote.pass(3_950)
  // Listings are answered: what is not in the store yet is known here.
  expect(pending).toBe(20)
  void locks.close({ grace: 0 })
  await remote.pass(10_000)
})

test('query() shows what was requested before it, and does not wait for requests that are made later', async () => {
  const remote = new RemoteMemory({ maxBatch: 2 })
  remote.fate = (method) => (method === 'acquire' ? { replyMs: 500 } : undefined)
  const locks = remote.locks()
  const hold = (name: string): void => void locks.request(name, () => new Promise(() => {})).catch(() => {})
  for (let i = 0; i < 4; i++) hold(`before ${i}`)
  await remote.pass(100)
  let held: string[] | undefined
  void locks.query().then((snapshot) => (held = snapshot.held.map(({ name }) => name).sort()))
  for (let round = 0; round < 10; round++) {
    for (let i = 0; i < 2; i++) hold(`later ${round} ${i}`)
    await remote.pass(200)
  }
  expect(held?.filter((name) => name.startsWith('before'))).toEqual(['before 0', 'before 1', 'before 2', 'before 3'])
  void locks.close({ grace: 0 })
  await remote.pass(60_000)
})
