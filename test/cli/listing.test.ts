import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Lock, type Locks, type Store, createLocks, openStore } from '../../src/index.js'
import { CliFixture, until } from './harness.js'

const fixture = new CliFixture()
let store: Store
let locks: Locks
let order: Lock

beforeAll(async () => {
  store = await openStore(fixture.store)
  locks = createLocks(store)
  order = await locks.acquire('order:7', { metadata: { job: 'charge' } })
  await locks.acquire('report', { mode: 'shared', metadata: 'a\x1b[31mred\x1b[0m' })
})

afterAll(async () => {
  await locks.close({ grace: 0 })
  await store.close()
})

test('ls shows holders, and shows control characters as codes', async () => {
  const { code, stdout, stderr } = await fixture.leasehold('ls').ended
  expect(code).toBe(0)
  expect(stderr).toBe('')
  const [titles, ...lines] = stdout.trimEnd().split('\n')
  expect(titles).toMatch(/^NAME +HOLDER +MODE +HELD +EXPIRES IN +WAITING +TOKEN +METADATA$/)
  expect(lines).toHaveLength(2)
  expect(lines[0]).toMatch(
    new RegExp(`^order:7 +\\S+:${process.pid} +exclusive .* 0 +${order.fencingToken} +{"job":"charge"}$`),
  )
  expect(lines[1]).toMatch(/^report +\S+ +shared .* a\\u001b\[31mred\\u001b\[0m$/)
})

test('ls --json prints every field, with tokens as strings', async () => {
  const { code, stdout } = await fixture.leasehold('ls', 'order:', '--json').ended
  expect(code).toBe(0)
  const [holder, ...more] = JSON.parse(stdout)
  expect(more).toEqual([])
  expect(holder).toMatchObject({
    name: 'order:7',
    kind: 'lock',
    holder: order.holder,
    mode: 'exclusive',
    fencingToken: String(order.fencingToken),
    metadata: { job: 'charge' },
    foreign: false,
    waiting: 0,
    detail: null,
  })
  expect(holder.heldMs).toBeGreaterThan(0)
  expect(holder.remainingMs).toBeLessThanOrEqual(30_000)
  expect(new Date(holder.expiresAt).getTime() - new Date(holder.acquiredAt).getTime()).toBeGreaterThanOrEqual(30_000)
})

test('ls --older-than exits with 1 if something has been held for longer, and with 0 if not', async () => {
  const old = fixture.leasehold('ls', '--older-than', '1ms').ended
  const young = fixture.leasehold('ls', '--older-than', '1h').ended
  expect(await old).toMatchObject({ code: 1, stdout: expect.stringContaining('order:7') })
  expect(await young).toMatchObject({ code: 0, stdout: '', stderr: 'leasehold: nothing has been held for that long\n' })
})

test('ls prints a sentence for an empty list, and ls --json an empty array', async () => {
  const people = fixture.leasehold('ls', 'nothing-begins-so').ended
  const programs = fixture.leasehold('ls', 'nothing-begins-so', '--json').ended
  expect(await people).toMatchObject({ code: 0, stdout: '', stderr: 'leasehold: nothing is held\n' })
  expect(await programs).toMatchObject({ code: 0, stdout: '[]\n', stderr: '' })
})

test('show prints the holders and the waiters of one lock', async () => {
  const leaving = new AbortController()
  const waiting = locks.acquire('order:7', { wait: 'forever', signal: leaving.signal, metadata: { job: 'refund' } })
  waiting.catch(() => {})
  await until('it is in the queue', async () => (await locks.waiters('order:7')).length === 1)
  const people = fixture.leasehold('show', 'order:7').ended
  const programs = fixture.leasehold('show', 'order:7', '--json').ended
  const { stdout } = await people
  expect(stdout).toContain(order.holder)
  expect(stdout).toMatch(/\n\nQUEUE +WAITER +MODE +WAITED +METADATA\n1 +\S+ +exclusive +\S+ +{"job":"refund"}\n$/)
  const state = JSON.parse((await programs).stdout)
  expect(state).toMatchObject({
    name: 'order:7',
    kind: 'lock',
    holders: [{ waiting: 1 }],
    waiters: [{ metadata: { job: 'refund' } }],
  })
  leaving.abort()
  await expect(waiting).rejects.toThrow()
  expect(await fixture.leasehold('show', 'free').ended).toMatchObject({
    code: 0,
    stdout: '',
    stderr: 'leasehold: nobody holds "free"\n',
  })
})

test('release needs --force, and prints the holders that it cut off', async () => {
  const lock = await locks.acquire('stuck')
  const refused = await fixture.leasehold('release', 'stuck').ended
  expect(refused).toMatchObject({ code: 64, stdout: '' })
  expect(refused.stderr).toContain('--force')
  expect(await locks.inspect('stuck')).toMatchObject({ holders: [{ holder: lock.holder }] })
  const forced = await fixture.leasehold('release', 'stuck', '--force', '--json').ended
  expect(forced.code).toBe(0)
  expect(JSON.parse(forced.stdout)).toMatchObject([{ name: 'stuck', holder: lock.holder }])
  expect(await locks.inspect('stuck')).toMatchObject({ holders: [] })
  expect(await fixture.leasehold('release', 'stuck', '--force').ended).toMatchObject({
    code: 0,
    stdout: '',
    stderr: 'leasehold: nobody held "stuck"\n',
  })
})
