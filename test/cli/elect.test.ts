import { once } from 'node:events'
import { expect, test } from 'vitest'
import { openLocks } from '../../src/index.js'
import { startProxy, startRedis } from '../../testbed/servers/index.js'
import { CliFixture, isAlive, until } from './harness.js'

const fixture = new CliFixture()

/** Says its term and ends when stdin does. */
const LEAD = 'echo "term $LEASEHOLD_TERM"; cat >/dev/null; exit 4'

/** Says whether that process is dead. A zombie is: its parent, killed or frozen, has not collected it. */
const aloneWithout = (pid: number): string =>
  `case "$(cut -d' ' -f3 /proc/${pid}/stat 2>/dev/null)" in ''|Z) echo alone ;; *) echo beside it ;; esac`

const termsOf = (output: string): bigint[] =>
  [...output.matchAll(/term (\d+)/g)].map(([, term]) => BigInt(term as string))

test('elect runs its command while it leads, exits with its status, and the next candidate leads a later term', async () => {
  const first = fixture.leasehold('elect', 'shift', '--', 'sh', '-c', LEAD)
  await first.says('term ')
  const second = fixture.leasehold('elect', 'shift', '--', 'sh', '-c', `${LEAD.replace('exit 4', 'exit 0')}`)
  const leaders = await fixture.leasehold('ls', '--kind', 'election', '--json').ended
  expect(JSON.parse(leaders.stdout)).toMatchObject([{ name: 'shift', kind: 'election', metadata: { command: 'sh' } }])
  expect(second.stdout).toBe('')
  first.closeStdin()
  expect(await first.ended).toMatchObject({
    code: 4,
    stderr: expect.stringMatching(/^leasehold: leading "shift", term \d+\n$/),
  })
  await second.says('term ')
  second.closeStdin()
  const { code, stdout } = await second.ended
  expect(code).toBe(0)
  const [[earlier = 0n], [later = 0n]] = [termsOf(first.stdout), termsOf(stdout)]
  expect(later).toBeGreaterThan(earlier)
})

test('elect kills its command when the leadership is taken away, and leads again with a later term', async () => {
  const script = 'echo "term $LEASEHOLD_TERM token $LEASEHOLD_FENCING_TOKEN pid $$"; exec sleep 60'
  const leader = fixture.leasehold('elect', 'cut-off', '--', 'sh', '-c', script)
  await leader.says('pid ')
  const cut = await fixture.leasehold('release', 'cut-off', '--kind', 'election', '--force').ended
  expect(cut.code).toBe(0)
  await until('it leads again', () => leader.stdout.trim().split('\n').length === 2)
  const [first = '', second = ''] = leader.stdout.split('\n')
  const pids = [first, second].map((line) => Number(/pid (\d+)/.exec(line)?.[1]))
  expect(pids.map(isAlive)).toEqual([false, true])
  const [earlier = 0n, later = 0n] = termsOf(leader.stdout)
  expect(later).toBeGreaterThan(earlier)
  expect(second).toContain(`term ${later} token ${later}`)
  expect(leader.stderr).toMatch(/; the command was killed; campaigning again\n/)
  leader.signal('SIGTERM')
  expect((await leader.ended).code, 'the signal is passed on to the command of the second term').toBe(143)
  expect(isAlive(pids[1] as number)).toBe(false)
})

test('kill -9 of a leader: its command is dead before that of the next leader starts', async () => {
  const script = 'echo "pid $$"; trap "" TERM; while :; do sleep 1; done'
  const leader = fixture.leasehold('elect', 'killed', '--ttl', '2s', '--', 'sh', '-c', script)
  await leader.says('pid ')
  const pid = Number(/pid (\d+)/.exec(leader.stdout)?.[1])
  const next = fixture.leasehold('elect', 'killed', '--ttl', '2s', '--', 'sh', '-c', aloneWithout(pid))
  leader.signal('SIGKILL')
  expect(await next.ended).toMatchObject({ code: 0, stdout: 'alone\n' })
})

test('the leadership is renewed while the command runs; a leader that freezes is stopped before the next one starts', async () => {
  const script = 'echo "pid $$"; trap "" TERM; while :; do sleep 1; done'
  const ttlMs = 3_000
  const leader = fixture.leasehold('elect', 'frozen', '--ttl', `${ttlMs}ms`, '--', 'sh', '-c', script)
  await leader.says('pid ')
  const pid = Number(/pid (\d+)/.exec(leader.stdout)?.[1])
  const next = fixture.leasehold('elect', 'frozen', '--', 'sh', '-c', aloneWithout(pid))
  const locks = await openLocks(fixture.store)
  const endsAt = async (): Promise<number> => {
    const { holders } = await locks.inspect('frozen', { kind: 'election' })
    return holders[0]?.expiresAt?.getTime() ?? 0
  }
  const first = await endsAt()
  await until('it has been renewed for longer than its ttl', async () => (await endsAt()) > first + ttlMs)
  await locks.close()
  expect({ alive: isAlive(pid), next: next.stdout }).toEqual({ alive: true, next: '' })
  leader.signal('SIGSTOP')
  expect(await next.ended).toMatchObject({ code: 0, stdout: 'alone\n' })
  leader.signal('SIGCONT')
  await until('it leads again', () => leader.stdout.trim().split('\n').length === 2)
  expect(leader.stderr).toContain('; campaigning again\n')
})

test('a leader that is told to end while its term is lost does not campaign again', async () => {
  const leader = fixture.leasehold('elect', 'told', '--ttl', '3s', '--', 'sh', '-c', 'echo "pid $$"; exec sleep 60')
  await leader.says('pid ')
  const pid = Number(/pid (\d+)/.exec(leader.stdout)?.[1])
  leader.signal('SIGSTOP')
  await until('the watchdog has stopped the command', () => !isAlive(pid))
  leader.signal('SIGTERM')
  leader.signal('SIGCONT')
  const { code, stdout } = await leader.ended
  expect([70, 143]).toContain(code)
  expect(stdout).toBe(`pid ${pid}\n`)
})

test('a signal ends a candidate that waits, and leaves no queue entry behind', async () => {
  const leader = fixture.leasehold('elect', 'taken', '--', 'sh', '-c', LEAD)
  await leader.says('term ')
  const waiting = fixture.leasehold('elect', 'taken', '--', 'echo', 'never')
  const queue = async (): Promise<unknown[]> => {
    const { stdout } = await fixture.leasehold('show', 'taken', '--kind', 'election', '--json').ended
    return JSON.parse(stdout).waiters
  }
  await until('it waits', async () => (await queue()).length === 1)
  waiting.signal('SIGTERM')
  expect(await waiting.ended).toMatchObject({ code: 143, stdout: '' })
  expect(await queue()).toEqual([])
  leader.closeStdin()
  expect((await leader.ended).code).toBe(4)
})

test('a signal that comes while the store is opened ends a candidate, too', async () => {
  await using redis = await startRedis()
  await using proxy = await startProxy(redis.port)
  const locks = await openLocks(redis.url)
  const leads = new AbortController()
  const leader = locks.election('slow').run(({ signal }) => once(signal, 'abort'), { signal: leads.signal })
  await until('it leads', async () => (await locks.inspect('slow', { kind: 'election' })).holders.length === 1)
  proxy.stall('replies')
  const waiting = fixture.leasehold(
    'elect',
    'slow',
    '--store',
    `redis://127.0.0.1:${proxy.port}`,
    '--',
    'echo',
    'never',
  )
  await until('it asks the store', () => proxy.connections > 0)
  waiting.signal('SIGTERM')
  await proxy.heal()
  expect(await waiting.ended).toMatchObject({ code: 143, stdout: '' })
  leads.abort()
  await leader
  await locks.close()
})

test('elect exits with 127 without its command, 69 without its store, and 64 without a name', async () => {
  const missing = fixture.leasehold('elect', 'x', '--', 'no-such-command').ended
  const dead = fixture.leasehold('elect', 'x', '--store', 'redis://127.0.0.1:1', '--', 'true').ended
  const nameless = fixture.leasehold('elect', '--', 'true').ended
  expect(await missing).toMatchObject({ code: 127, stderr: expect.stringContaining('there is no command') })
  expect(await dead).toMatchObject({ code: 69, stdout: '' })
  expect(await nameless).toMatchObject({ code: 64, stderr: expect.stringContaining('name is missing') })
})
