/** Acquisitions whose owner is given: it may hold already, by an attempt before. */
import { expect, test } from 'vitest'
import { Engine } from '../../src/core/engine.js'
import { Defaults } from '../../src/core/options.js'
import type { AcquireRequest } from '../../src/core/request.js'
import { StoreUnavailableError } from '../../src/errors.js'
import { RemoteMemory } from './remote-memory.js'

test('the late answer to an attempt that failed does not release what its owner was granted again by the next attempt', async () => {
  const remote = new RemoteMemory()
  const engine = new Engine(remote.store, remote.world)
  const request = {
    ...new Defaults(remote.store, {}).buildRequest('lock', 'x', { wait: '1s' }),
    owner: engine.identity.next(),
  }
  // Granted at once, and answered when the second attempt has been granted the same lease.
  remote.fate = (method, n) => (method === 'acquire' && n === 1 ? { replyMs: 5_000 } : undefined)
  const first = engine.acquire(request).catch((error: unknown) => error)
  await remote.pass(3_000)
  expect(await first).toBeInstanceOf(StoreUnavailableError)
  const second = engine.tryAcquire(request)
  await remote.pass(10)
  const lock = await second
  expect(lock?.isHeld).toBe(true)
  await remote.pass(5_000)
  expect(remote.real.holders('lock:x').map(({ owner }) => owner)).toEqual([lock?.holder])
  expect(lock?.isHeld).toBe(true)
})

/** The first request is carried out when its ttl is over, and releases are slow. */
function granting1sLate(): { remote: RemoteMemory; engine: Engine; request: AcquireRequest } {
  const remote = new RemoteMemory()
  const engine = new Engine(remote.store, remote.world)
  const owner = engine.identity.next()
  const request = { ...new Defaults(remote.store, {}).buildRequest('lock', 'x', { ttl: '1s', wait: '10s' }), owner }
  remote.fate = (method, n) => {
    if (method === 'acquire' && n === 1) return { requestMs: 1_200 }
    return method === 'release' ? { requestMs: 500 } : undefined
  }
  return { remote, engine, request }
}

test('tryAcquire() does not release the stale grant of a given owner, which the next attempt is granted again', async () => {
  const { remote, engine, request } = granting1sLate()
  const first = engine.tryAcquire(request).catch((error: unknown) => error)
  await remote.pass(1_250)
  expect(await first).toBeInstanceOf(StoreUnavailableError)
  const second = engine.tryAcquire(request)
  await remote.pass(10)
  const lock = await second
  await remote.pass(800)
  expect(remote.real.holders('lock:x').map(({ owner }) => owner)).toEqual([lock?.holder])
})

test('acquire() does not release the stale grant of a given owner, which its next request is granted again', async () => {
  const { remote, engine, request } = granting1sLate()
  const acquired = engine.acquire(request)
  await remote.pass(1_250)
  const lock = await acquired
  await remote.pass(800)
  expect(remote.real.holders('lock:x').map(({ owner }) => owner)).toEqual([lock.holder])
})
