/** Passwords on the command line, in the environment and in files: nothing that is printed shows them. */
import { chmodSync, writeFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { diagnose } from '../../src/doctor/index.js'
import { CliFixture } from './harness.js'

const fixture = new CliFixture()
const SECRET = 'hunter2'
/** Also with characters that end a URL's credentials too early. */
const TRICKY = `${SECRET}@${SECRET}`

const REFUSED = [
  `redis://admin:${TRICKY}@127.0.0.1:1`,
  `rediss://:${SECRET}@127.0.0.1:1/0`,
  `redis+cluster://:${TRICKY}@127.0.0.1:1`,
  `redis+sentinel://:${SECRET}@127.0.0.1:1/main`,
  `redlock://:${TRICKY}@127.0.0.1:1,localhost:1,127.0.0.2:1`,
  `postgres://admin:${TRICKY}@127.0.0.1:1/app`,
  `postgres://127.0.0.1:1/app?user=admin&password=${SECRET}`,
  `postgres+advisory://admin:${SECRET}@127.0.0.1:1/app`,
]
const [URL = ''] = REFUSED

const TYPED: [what: string, args: string[], env?: Record<string, string>][] = [
  ...REFUSED.map((url): (typeof TYPED)[number] => [
    `run --store ${url.split(':')[0]}: refused`,
    ['run', 'x', '--wait', '0', '--store', url, '--', 'true'],
  ]),
  ['ls --store: refused', ['ls', '--store', URL]],
  ['ls --json: refused', ['ls', '--json', '--store', REFUSED[5] as string]],
  ['doctor: refused', ['doctor', '--store', URL]],
  ['elect: refused', ['elect', 'x', '--store', URL, '--', 'true']],
  ['watch: refused', ['watch', '--store', REFUSED[5] as string]],
  ['bench: refused', ['bench', '--store', URL]],
  ['a URL as an ID of doctor', ['doctor', '--ignore', URL]],
  ['a URL as a shell', ['completion', URL]],
  ['show: refused', ['show', 'x', '--store', URL]],
  ['release: refused', ['release', 'x', '--force', '--store', URL]],
  ['migrate: refused', ['migrate', '--store', REFUSED[5] as string]],
  ['migrate of a store that has no schema', ['migrate', '--store', URL]],
  ['a typing mistake in the scheme', ['ls', '--store', URL.replace('redis', 'rediss1')]],
  ['a slash too few', ['ls', '--store', URL.replace('://', ':/')]],
  ['no scheme', ['ls', '--store', `admin:${SECRET}@db:6379`]],
  ['an unknown parameter', ['ls', '--store', `${URL}?prefx=a`]],
  ['a bad escape', ['ls', '--store', `redis://admin:${SECRET}%zz@db`]],
  ['a bad port', ['ls', '--store', `redis://admin:${SECRET}@db:port`]],
  ['a typing mistake in --store', ['ls', '--stroe', URL]],
  ['a typing mistake in --store=', ['ls', `--stroe=${URL}`]],
  ['a URL instead of a command', [URL]],
  ['a URL as a second name', ['show', 'x', URL]],
  ['a URL as a name', ['run', URL, '--wait', '0', '--store', URL, '--', 'true']],
  ['a URL as a duration', ['run', 'x', '--ttl', URL, '--', 'true']],
  ['a URL as a kind', ['ls', '--kind', URL]],
  ['a URL as a file', ['ls', '--store-file', URL]],
  ['two stores', ['ls', '--store', URL, '--store-file', URL]],
  ['help for a URL', ['help', URL]],
  ['a URL as the value of a switch', ['ls', `--json=${URL}`]],
  ['LEASEHOLD_STORE: refused', ['ls'], { LEASEHOLD_STORE: URL }],
  ['LEASEHOLD_STORE with a typing mistake', ['ls'], { LEASEHOLD_STORE: URL.replace('redis', 'redsi') }],
]

test('no message of the command line shows a password', async () => {
  const waiting = [...TYPED]
  const shown: string[] = []
  const accepted: string[] = []
  const worker = async (): Promise<void> => {
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      const [what, args, env] = next
      const { code, stdout, stderr } = await fixture.start([...fixture.program, ...args], env).ended
      if ((stdout + stderr).includes(SECRET)) shown.push(`${what}: ${stdout}${stderr}`)
      if (code === 0 || code === 70 || code === null) accepted.push(`${what}: ${code} ${stdout}${stderr}`)
    }
  }
  await Promise.all([worker(), worker(), worker()])
  expect(shown).toEqual([])
  expect(accepted).toEqual([])
})

test.each(REFUSED)('no report of doctor shows a password: %s', async (url) => {
  const report = await diagnose(url)
  expect(report).toMatchObject({ reachable: false, safe: false })
  expect(JSON.stringify(report)).not.toContain(SECRET)
})

test('what a URL looks like is told whole', async () => {
  const { stderr } = await fixture.leasehold('ls', '--store', `redis://admin:${SECRET}%zz@db`).ended
  expect(stderr).toContain('redis://[user:password@]host[:port]')
})

test.each([
  ['is refused by its server', URL],
  ['has a typing mistake', URL.replace('redis', 'redsi')],
  ['has an unknown parameter', `${URL}?prefx=a`],
])('a URL in a file that %s stays in the file', async (what, url) => {
  const file = fixture.path(`url-${what.replaceAll(' ', '-')}`)
  writeFileSync(file, `${url}\n`)
  chmodSync(file, 0o600)
  const { code, stdout, stderr } = await fixture.leasehold('ls', '--store-file', file).ended
  expect([64, 69]).toContain(code)
  expect(stdout + stderr).not.toContain(SECRET)
})
