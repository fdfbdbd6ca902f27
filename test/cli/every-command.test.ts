/** Every command as a process, on four stores, with and without a terminal. */
import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Lock, type Locks, openLocks } from '../../src/index.js'
import { type Server, startEtcd, startPostgres, startRedis } from '../../testbed/servers/index.js'
import { CliFixture, type ProcessEnd } from './harness.js'

const fixture = new CliFixture()
const servers: Server[] = []

afterAll(() => Promise.all(servers.map((server) => server.stop())))

async function started(server: Promise<Server>): Promise<string> {
  servers.push(await server)
  return (await server).url
}

const STORES: [name: string, open: () => Promise<string>][] = [
  ['SQLite', async () => fixture.store],
  // Without persistence, so that doctor has something to say.
  ['Redis', () => started(startRedis())],
  ['PostgreSQL', () => started(startPostgres())],
  ['etcd', () => started(startEtcd())],
]

/** The fields of each kind of JSON, as the guide lists them. */
function documentedFields(title: string): string[] {
  const guide = readFileSync(new URL('../../docs/guide/command-line.md', import.meta.url), 'utf8')
  const row = guide.split('\n').find((line) => line.startsWith(`| ${title} |`)) ?? ''
  const [, , fields = ''] = row.split('|')
  return [...fields.replaceAll(/\([^)]*\)/g, '').matchAll(/`(\w+)`/g)].map(([, field]) => field as string).sort()
}

describe.each(STORES)('on %s', (store, open) => {
  let url: string
  let locks: Locks
  let held: Lock
  const leasehold = (...args: string[]): Promise<ProcessEnd> =>
    fixture.start([...fixture.program, ...args], { LEASEHOLD_STORE: url }).ended

  beforeAll(async () => {
    url = await open()
    if (url.startsWith('postgres')) expect((await leasehold('migrate')).code).toBe(0)
    locks = await openLocks(url)
    held = await locks.acquire('held', { ttl: '1m', metadata: { job: 'test' } })
  })
  afterAll(() => locks.close({ grace: 0 }))

  test('every command works without a terminal, and its JSON has the documented fields', async () => {
    const waiting = locks.acquire('held', { wait: '1m' })
    const ends = await Promise.all([
      leasehold('ls', '--json'),
      leasehold('show', 'held', '--json'),
      leasehold('watch', '--for', '200ms', '--json'),
      leasehold('doctor', '--json'),
      leasehold('bench', '--for', '300ms', '--json'),
      leasehold('run', 'job', '--', 'sh', '-c', 'echo $LEASEHOLD_NAME'),
      leasehold('elect', 'boss', '--', 'sh', '-c', 'echo $LEASEHOLD_TERM'),
    ])
    expect(ends.map(({ code, stderr }) => (code === 0 ? 0 : stderr))).toEqual(ends.map(() => 0))
    const [ls, show, watch, doctor, bench, run, elect] = ends as [ProcessEnd, ...ProcessEnd[]]
    const parsed = (end: ProcessEnd | undefined) => JSON.parse(end?.stdout ?? '')
    const fields = (value: object): string[] => Object.keys(value).sort()
    const one = parsed(ls).find(({ name }: { name: string }) => name === 'held')
    expect(one).toMatchObject({ holder: held.holder, metadata: { job: 'test' } })
    expect(fields(one)).toEqual(documentedFields('a holder'))
    const state = parsed(show)
    expect(fields(state)).toEqual(documentedFields('`show`'))
    expect(fields(state.holders[0])).toEqual(documentedFields('a holder'))
    expect(fields(state.waiters[0])).toEqual(documentedFields('a waiter'))
    const change = JSON.parse(watch?.stdout.split('\n')[0] as string)
    expect(fields(change)).toEqual(documentedFields('a line of `watch`'))
    expect(fields(change.holder)).toEqual(documentedFields('a holder'))
    const report = parsed(doctor)
    expect(report).toMatchObject({ reachable: true, safe: true })
    expect(fields(report)).toEqual(documentedFields('`doctor`'))
    expect(fields(report.checks[0])).toEqual(documentedFields('a check'))
    // The disk and the version of etcd are those of this machine.
    const findings = report.findings.filter(({ id }: { id: string }) => !['etcd.disk', 'etcd.version'].includes(id))
    expect(findings.length).toBe(store === 'Redis' ? 1 : 0)
    for (const finding of report.findings) expect(fields(finding)).toEqual(documentedFields('a finding'))
    const figures = parsed(bench)
    expect(fields(figures)).toEqual(documentedFields('`bench`'))
    expect(figures.measurements.map(({ measure }: { measure: string }) => measure)).toEqual([
      'acquire-release',
      'concurrent',
      'handoff',
    ])
    for (const figure of figures.measurements) {
      expect(fields(figure)).toEqual(documentedFields('a measurement'))
      expect(figure.count).toBeGreaterThan(0)
    }
    expect(run?.stdout).toBe('job\n')
    expect(elect?.stdout).toMatch(/^\d+\n$/)
    const forced = await leasehold('release', 'held', '--force', '--json')
    expect(fields(parsed(forced)[0])).toEqual(documentedFields('a holder'))
    held = await waiting
  })

  test('every command works in a terminal', async () => {
    const script = [
      'ls',
      'show held',
      'watch --for 200ms',
      'doctor',
      'bench --for 300ms',
      'run job -- sh -c "test -t 0 && echo has-a-terminal"',
      'elect boss -- sh -c "test -t 0 && echo leads-in-a-terminal"',
      'release held --force',
    ]
    const line = script
      .map((words) => `${fixture.program.join(' ')} ${words}; echo "status of ${words.split(' ')[0]}: $?"`)
      .join('; ')
    // What says that nobody looks at the colours comes from where the tests run.
    const plain = 'unset CI NO_COLOR; export TERM=xterm-256color; '
    const { stdout } = await fixture.inTerminal(plain + line, { LEASEHOLD_STORE: url }).ended
    for (const words of script) expect(stdout).toContain(`status of ${words.split(' ')[0]}: 0`)
    expect(stdout).toContain('has-a-terminal')
    expect(stdout).toContain('leads-in-a-terminal')
    // The titles of tables, and a frame of watch.
    expect(stdout).toContain('\x1b[2mNAME')
    expect(stdout).toContain('\x1b[1;1H')
  })
})
