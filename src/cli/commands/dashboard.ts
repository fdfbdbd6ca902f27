import { appendFileSync } from 'node:fs'
import { type Server, createServer } from 'node:http'
import { dirname, join } from 'node:path'
import type { AddressInfo } from 'node:net'
import type { DashboardHandler, ReleaseAction } from '../../dashboard/index.js'
import { isLoopback, tokenFrom } from '../../dashboard/access.js'
import { redact } from '../../util/redact.js'
import { type Command, type Input, UsageError } from '../command.js'
import { exitCode } from '../exit-codes.js'
import { print, say } from '../output.js'
import { currentAccount, defaultFile } from '../state-folder.js'
import { secretLineIn, storeOption, storeUrl, withStore } from '../stores.js'

const DEFAULT_PORT = 7433
const TOKEN_VARIABLE = 'LEASEHOLD_DASHBOARD_TOKEN'

export const dashboard: Command = {
  usage: '[options]',
  summary: 'a web page that shows who holds what, live',
  about: `
It reads the store only while a page is open. Other machines cannot reach it unless --host says so, and then everybody
who looks has to know a token. Processes with createLocks(store, { publish: '5s' }) add waits, losses and schedules.
Prometheus reads /metrics.`,
  options: {
    port: { value: 'N', help: `where to listen (default ${DEFAULT_PORT}; 0: any free port)` },
    host: { value: 'ADDRESS', help: 'the address to listen at (default 127.0.0.1); any other needs a token' },
    'token-file': {
      value: 'FILE',
      help: `read the token from a file that only its owner can read (or give it in $${TOKEN_VARIABLE})`,
    },
    'allow-release': { help: 'show a button that takes a lock away from its holders, and keep a log of its use' },
    'action-log': { value: 'FILE', help: 'where that log is kept (default: a file in your state directory)' },
    ...storeOption,
  },
  examples: [
    ['leasehold dashboard', 'then open the address that it prints'],
    ['leasehold dashboard --store redis://localhost --port 9000', 'another store, another port'],
    [
      'leasehold dashboard --host 0.0.0.0 --token-file ~/.leasehold-token',
      'for other machines, behind a proxy with TLS',
    ],
    ['leasehold dashboard --allow-release', 'with the button to break glass'],
  ],
  run: serve,
}

async function serve(input: Input): Promise<number> {
  input.none('dashboard')
  const port = input.count('port', { least: 0, most: 65_535 }) ?? DEFAULT_PORT
  const host = input.value('host') ?? '127.0.0.1'
  const token = tokenOf(input)
  if (!isLoopback(host) && token === undefined) {
    throw new UsageError(
      `--host ${host} lets other machines in: give a token with --token-file or $${TOKEN_VARIABLE}, such as the output of: openssl rand -hex 16`,
    )
  }
  const allowRelease = input.has('allow-release')
  if (input.has('action-log') && !allowRelease) throw new UsageError('--action-log needs --allow-release')
  const log = allowRelease ? actionLog(input) : undefined
  await withStore(input, async (locks) => {
    const { dashboard: handlerOf } = await import('../../dashboard/index.js')
    const title = titleOf(input)
    const handler = handlerOf(locks, {
      ...(title === undefined ? {} : { title }),
      ...(token === undefined ? {} : { token }),
      ...(log ? { allowRelease, onAction: log } : {}),
      loopbackOnly: isLoopback(host),
    })
    await listenUntilStopped(handler, host, port)
  })
  return exitCode.ok
}

function tokenOf(input: Input): string | undefined {
  const file = input.value('token-file')
  const token = file === undefined ? process.env[TOKEN_VARIABLE] || undefined : secretLineIn('--token-file', file)
  return token === undefined ? undefined : tokenFrom(token)
}

/** The content of a store file is a secret, and the default store needs no name. */
function titleOf(input: Input): string | undefined {
  if (input.has('store-file')) return undefined
  const url = storeUrl(input)
  return url === undefined ? 'this user, this machine' : redact(url).replace(/\?.*$/s, '')
}

/** Appends each release to a file, and says it. */
function actionLog(input: Input): (action: ReleaseAction) => void {
  const file = input.value('action-log') ?? join(dirname(defaultFile(currentAccount())), 'dashboard-actions.jsonl')
  try {
    appendFileSync(file, '', { mode: 0o600 })
  } catch (error) {
    throw new UsageError(`--action-log ${file}: ${(error as Error).message}`)
  }
  say(`releases are logged in ${file}`)
  return (action) => {
    const { kind, name, by, holders, error } = action
    const outcome = error === undefined ? `taken from ${holders.join(', ') || 'nobody'}` : `not known: ${error}`
    say(`release of ${kind} ${JSON.stringify(name)} by ${by}: ${outcome}`)
    try {
      appendFileSync(file, `${JSON.stringify({ ...action, at: new Date(action.at).toISOString() })}\n`)
    } catch (failure) {
      say(`the action log could not be written: ${(failure as Error).message}`)
    }
  }
}

async function listenUntilStopped(handler: DashboardHandler, host: string, port: number): Promise<void> {
  const server = createServer((request, response) => handler(request, response))
  await listening(server, host, port)
  const { port: bound } = server.address() as AddressInfo
  print(`http://${host.includes(':') ? `[${host}]` : host}:${bound}/`)
  say('the dashboard runs until you stop it with Ctrl-C')
  await new Promise<void>((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => resolve())
  })
  handler.close()
  server.close()
  server.closeAllConnections()
}

function listening(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      const why =
        error.code === 'EADDRINUSE' ? 'something else listens there; choose another with --port' : error.message
      reject(new UsageError(`cannot listen at ${host}:${port}: ${why}`))
    })
    server.listen(port, host, resolve)
  })
}
