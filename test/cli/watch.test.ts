import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createLocks, type Locks, openLocks } from '../../src/index.js'
import type { HolderInfo } from '../../src/primitives/inspect.js'
import { changesBetween, frameOf, type Snapshot, type ViewState } from '../../src/cli/live-view.js'
import { fitted, textWidth } from '../../src/cli/text-width.js'
import { redis } from '../../src/stores/redis/index.js'
import { startProxy, startRedis } from '../../testbed/servers/index.js'
import { CliFixture, until } from './harness.js'

const fixture = new CliFixture()
let locks: Locks

beforeAll(async () => {
  locks = await openLocks(fixture.store)
})
afterAll(() => locks.close({ grace: 0 }))

/** Of the terminals in these tests. */
const COLUMNS = 80

/** What a terminal of this size shows after this output. */
function screenOf(output: string, rows = 24): string[] {
  const lines = Array.from({ length: rows }, () => '')
  let row = 0
  // oxlint-disable-next-line no-control-regex -- escape sequences are what this reads
  const parts = /\x1b\[(\d+);1H|\x1b\[(2J|J|2K|K)|\x1b\[[?\d;]*[A-Za-z]|([^\x1b]+)/g
  for (const [, position, clear, text] of output.matchAll(parts)) {
    if (position !== undefined) {
      row = Number(position) - 1
      lines[row] = ''
    } else if (clear?.includes('J')) lines.fill('')
    // The cursor stays on the last column of a full line, and is part of what is erased.
    else if (clear === 'K' && textWidth(lines[row] as string) >= COLUMNS) lines[row] = lines[row]?.slice(0, -1) ?? ''
    else if (text !== undefined) lines[row] += text
  }
  return lines
}

const holder = (name: string, more: Partial<HolderInfo> = {}): HolderInfo => ({
  name,
  kind: 'lock',
  holder: `web-1:4711:01a1e9d1-d5eb-7915-80c7-3d428641a13f/${name.length}`,
  mode: 'exclusive',
  weight: undefined,
  capacity: undefined,
  fencingToken: 7n,
  acquiredAt: new Date(Date.now() - 240_000),
  expiresAt: new Date(Date.now() + 1_500_000),
  metadata: undefined,
  foreign: false,
  waiting: 0,
  detail: undefined,
  ...more,
})
const snapshot = (...holders: HolderInfo[]): Snapshot => ({ holders, more: false })
const state = (more: Partial<ViewState>): ViewState => ({
  title: 'redis://db:6379',
  snapshot: undefined,
  outage: undefined,
  intervalMs: 1_000,
  ...more,
})

test('a frame fits 80 columns and 24 rows, whatever the names are made of', () => {
  const names = [
    'order:7',
    'x'.repeat(255),
    '注文'.repeat(60),
    'é'.repeat(99),
    '🔒'.repeat(50),
    'a\x1b[2Jb',
    ...Array.from({ length: 50 }, (_, i) => `name-${i}`),
  ]
  const full = state({
    title: `redis://${'h'.repeat(90)}:6379`,
    snapshot: snapshot(...names.map((name) => holder(name))),
  })
  for (const columns of [80, 132, 40]) {
    const lines = frameOf(full, { columns, rows: 24 }, Date.now())
    expect(lines).toHaveLength(24)
    for (const line of lines) expect(textWidth(line), line).toBeLessThanOrEqual(columns)
    expect(lines.join('')).not.toContain('\x1b')
    expect(lines.at(-1)).toBe(`… ${names.length - 19} more`)
  }
  const [first, counts, , titles, row] = frameOf(full, { columns: 80, rows: 24 }, Date.now())
  expect(first).toMatch(/^leasehold watch {2}redis:.*… {2}\d\d:\d\d:\d\d$/)
  expect(counts).toBe(`${names.length} held, 0 waiting; every 1s, q quits`)
  expect(titles).toMatch(/^NAME +HOLDER +HELD +EXPIRES +WAIT$/)
  expect(row).toMatch(/^order:7 +web-1:4711 +4(\.0)?m +25m +0$/)
})

test('texts are cut and filled to columns, also between characters of two', () => {
  expect(fitted('abc', 5)).toBe('abc  ')
  expect(fitted('abcdef', 5)).toBe('abcd…')
  expect(fitted('注文書', 5)).toBe('注文…')
  expect(fitted('注文書', 4)).toBe('注… ')
})

test('waiters of a name that several hold count once, and an outage stands above what was last seen', () => {
  const shared = snapshot(
    holder('a', { waiting: 2 }),
    holder('a', { waiting: 2, holder: 'other' }),
    holder('b', { waiting: 1 }),
  )
  const now = Date.now()
  expect(frameOf(state({ snapshot: shared }), { columns: 80, rows: 24 }, now)[1]).toContain('3 held, 3 waiting')
  const down = frameOf(
    state({ snapshot: shared, outage: { since: now - 12_000, reason: 'gone' } }),
    { columns: 80, rows: 24 },
    now,
  )
  expect(down[1]).toBe('the store has been unavailable for 12s: gone')
  expect(down).toHaveLength(7)
})

test('changes between two looks: what came, went, and is waited for', () => {
  const [a, b, c] = [holder('a'), holder('bb'), holder('ccc')]
  const names = (before: Snapshot | undefined, after: Snapshot): string[] =>
    changesBetween(before, after).map(({ event, holder: { name } }) => `${event} ${name}`)
  expect(names(undefined, snapshot(a))).toEqual(['held a'])
  expect(names(snapshot(a, b), snapshot({ ...b, waiting: 1 }, c))).toEqual(['ended a', 'waiting bb', 'acquired ccc'])
  expect(names(snapshot(a), snapshot({ ...a, holder: 'another' }))).toEqual(['ended a', 'acquired a'])
  expect(names(snapshot(a), { ...snapshot(b), more: true }), 'it may still be held').toEqual(['acquired bb'])
})

test('on a terminal it redraws in place, and q gives the terminal back', async () => {
  const terminal = fixture.inTerminal(
    `stty cols 80 rows 24; ${fixture.program.join(' ')} watch seen: --interval 100ms; echo "status $?"`,
  )
  const shows = (what: string, there: boolean): Promise<void> =>
    until(
      `${what} is ${there ? 'shown' : 'gone'}`,
      () => screenOf(terminal.stdout).some((line) => line.includes(what)) === there,
    )
  await shows('0 held', true)
  const lock = await locks.acquire('seen:by-terminal')
  await shows('seen:by-terminal', true)
  const [first = '', , , titles = ''] = screenOf(terminal.stdout)
  expect(first).toMatch(/^leasehold watch .*\d\d:\d\d:\d\d$/)
  expect([textWidth(first), textWidth(titles)]).toEqual([COLUMNS, COLUMNS])
  await lock.release()
  await shows('seen:by-terminal', false)
  terminal.type('q')
  await terminal.says('status 0')
  const { stdout } = terminal
  expect(stdout).toContain('\x1b[?1049h\x1b[?25l')
  expect(stdout.indexOf('\x1b[?25h\x1b[?1049l')).toBeGreaterThan(stdout.indexOf('\x1b[?1049h'))
})

test('a signal gives the terminal back, too', async () => {
  const terminal = fixture.inTerminal(
    `${fixture.program.join(' ')} watch & echo $! >$FIXTURE/watch; wait; echo "status $?"; read end`,
  )
  const pid = Number(await fixture.waitForFile('watch'))
  await terminal.says('\x1b[?1049h')
  process.kill(pid, 'SIGTERM')
  await terminal.says('\x1b[?1049l')
  await terminal.says('status')
})

test('without a terminal it prints a line for each change, and ends with --for or a signal', async () => {
  const first = await locks.acquire('told:first')
  const lines = fixture.leasehold('watch', 'told:', '--interval', '100ms')
  const json = fixture.leasehold('watch', 'told:', '--interval', '100ms', '--json')
  await Promise.all([lines.says('told:first'), json.says('told:first')])
  await first.release()
  await Promise.all([lines.says('ended'), json.says('"ended"')])
  lines.signal('SIGTERM')
  json.signal('SIGINT')
  const [text, programs] = [await lines.ended, await json.ended]
  expect(text).toMatchObject({ code: 143, stderr: '' })
  const pattern = (event: string): string => `\\S+Z  ${event} +  told:first  \\S+/\\d+  waiting 0\n`
  expect(text.stdout).toMatch(new RegExp(`^${pattern('held')}${pattern('ended')}$`))
  expect(programs.code).toBe(130)
  const events = programs.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  expect(events.map(({ event }) => event)).toEqual(['held', 'ended'])
  expect(events[0]).toMatchObject({ error: null, holder: { name: 'told:first', holder: first.holder, waiting: 0 } })
})

test('an outage is told and waited out; at the start it is status 69', async () => {
  const server = await startRedis()
  const proxy = await startProxy(server.port)
  const url = proxy.through(server.url)
  const client = new Redis(server.url)
  await createLocks(redis(client), { ttl: '1m' }).acquire('survives')
  const json = fixture.leasehold('watch', '--interval', '100ms', '--json', '--store', url)
  await json.says('survives')
  await proxy.refuse()
  await json.says('"unavailable"')
  await proxy.heal()
  await json.says('"available"')
  await proxy.refuse()
  const refused = fixture.leasehold('watch', '--store', url)
  expect((await refused.ended).code).toBe(69)
  client.disconnect()
  await Promise.all([proxy.stop(), server.stop()])
})
