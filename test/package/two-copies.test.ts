/** The ESM and the CommonJS build in one program, as happens when a test runner or a dependency loads the other one. */
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { fileURLToPath } from 'node:url'
import { beforeAll, expect, test } from 'vitest'
import { ensureBuilt } from '../../scripts/build.mjs'

type Package = typeof import('../../src/index.js')
const DIST = fileURLToPath(new URL('../../dist/', import.meta.url))
let esm: Package
let cjs: Package

beforeAll(async () => {
  ensureBuilt()
  esm = (await import(/* @vite-ignore */ pathToFileURL(`${DIST}index.js`).href)) as Package
  cjs = createRequire(import.meta.url)(`${DIST}index.cjs`) as Package
})

test('an error of one copy is an instance of the same class, and of its base, in the other', async () => {
  expect(esm.LockTimeoutError).not.toBe(cjs.LockTimeoutError)
  const store = cjs.memory()
  const [one, two] = [cjs.createLocks(store), cjs.createLocks(store)]
  await one.acquire('a')
  const error = await two.acquire('a', { wait: 0 }).catch((reason: unknown) => reason)
  expect(error).toBeInstanceOf(esm.LockTimeoutError)
  expect(error).toBeInstanceOf(esm.LeaseholdError)
  expect(error).toBeInstanceOf(cjs.LockTimeoutError)
  expect(error).not.toBeInstanceOf(esm.LockLostError)
  expect(error).not.toBeInstanceOf(cjs.LockLostError)
  expect(new Error('LockTimeoutError')).not.toBeInstanceOf(esm.LeaseholdError)
})

test('a class derived from one of our errors matches only its own instances', () => {
  class Busy extends esm.LockTimeoutError {}
  expect(new Busy('a', { waitedMs: 0 })).toBeInstanceOf(Busy)
  expect(new Busy('a', { waitedMs: 0 })).toBeInstanceOf(cjs.LockTimeoutError)
  expect(new cjs.LockTimeoutError('a', { waitedMs: 0 })).not.toBeInstanceOf(Busy)
})

test('a store of one copy serves the locks of the other', async () => {
  const store = esm.memory()
  const [one, two] = [esm.createLocks(store), cjs.createLocks(store)]
  const held = await one.acquire('a')
  expect(await two.tryAcquire('a')).toBeNull()
  await held.release()
  expect(await two.withLock('a', () => 'free')).toBe('free')
})

test('instances of DistributedLock without a store exclude each other across copies', async () => {
  const [one, two] = [new esm.DistributedLock(), new cjs.DistributedLock()]
  expect((await one.acquire('across')).acquired).toBe(true)
  expect((await two.acquire('across')).acquired).toBe(false)
  await one.release('across')
})
