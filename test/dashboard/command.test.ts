/** `leasehold dashboard` as a process. */
import { readFileSync, writeFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { openLocks } from '../../src/index.js'
import { CliFixture } from '../cli/harness.js'

const fixture = new CliFixture()

async function addressOf(process: ReturnType<CliFixture['leasehold']>): Promise<string> {
  await process.says('/\n')
  return process.stdout.trim()
}

test('the command prints where it listens, on this machine only, and ends with Ctrl-C', async () => {
  const process = fixture.leasehold('dashboard', '--port', '0')
  const address = await addressOf(process)
  expect(address).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/$/)
  expect(await (await fetch(address)).text()).toContain('<title>leasehold</title>')
  const second = await fixture.leasehold('dashboard', '--port', new URL(address).port).ended
  expect([second.code, second.stderr]).toEqual([64, expect.stringContaining('choose another with --port')])
  // A page that is open must not keep it from ending.
  const stream = fetch(`${address}events`).then(({ body }) => body?.getReader().read())
  await stream
  process.signal('SIGINT')
  expect((await process.ended).code).toBe(0)
})

test('an address for other machines is refused without a token, and one without a good one', async () => {
  for (const host of ['0.0.0.0', '::', '192.0.2.1', 'example.org']) {
    const { code, stderr } = await fixture.leasehold('dashboard', '--host', host, '--port', '0').ended
    expect([host, code]).toEqual([host, 64])
    expect(stderr).toContain('give a token with --token-file')
  }
  writeFileSync(fixture.path('open-token'), `${'t'.repeat(32)}\n`, { mode: 0o644 })
  const open = await fixture.leasehold('dashboard', '--host', '0.0.0.0', '--token-file', fixture.path('open-token'))
    .ended
  expect([open.code, open.stderr]).toEqual([64, expect.stringContaining('chmod 600')])
  const env = { LEASEHOLD_DASHBOARD_TOKEN: 'hunter2' }
  const short = await fixture.start([...fixture.program, 'dashboard', '--host', '0.0.0.0'], env).ended
  expect([short.code, short.stderr]).toEqual([64, expect.stringContaining('at least 16 characters')])
  expect(short.stderr).not.toContain('hunter2')
})

test('with a token other machines may look, and only with it', async () => {
  const token = 'f'.repeat(32)
  writeFileSync(fixture.path('token'), `${token}\n`, { mode: 0o600 })
  const process = fixture.leasehold(
    'dashboard',
    '--host',
    '0.0.0.0',
    '--port',
    '0',
    '--token-file',
    fixture.path('token'),
  )
  const address = (await addressOf(process)).replace('0.0.0.0', '127.0.0.1')
  expect((await fetch(`${address}metrics`)).status).toBe(401)
  const metrics = await fetch(`${address}metrics`, { headers: { authorization: `Bearer ${token}` } })
  expect([metrics.status, await metrics.text()]).toEqual([200, expect.stringContaining('leasehold_store_up 1')])
  expect(process.stdout + process.stderr).not.toContain(token)
})

test('--allow-release logs who was cut off in a file', async () => {
  const locks = await openLocks(fixture.store)
  const lock = await locks.acquire('deploy')
  const log = fixture.path('actions.jsonl')
  const process = fixture.leasehold('dashboard', '--port', '0', '--allow-release', '--action-log', log)
  const address = await addressOf(process)
  const headers = { 'content-type': 'application/json', 'x-leasehold-dashboard': '1' }
  const body = JSON.stringify({ kind: 'lock', name: 'deploy', holders: [lock.holder] })
  expect((await fetch(`${address}api/release`, { method: 'POST', headers, body })).status).toBe(200)
  expect(JSON.parse(readFileSync(log, 'utf8'))).toMatchObject({
    name: 'deploy',
    by: '127.0.0.1',
    holders: [lock.holder],
  })
  process.signal('SIGTERM')
  expect((await process.ended).stderr).toContain(`release of lock "deploy" by 127.0.0.1: taken from ${lock.holder}`)
  await locks.close({ grace: 0 })
})
