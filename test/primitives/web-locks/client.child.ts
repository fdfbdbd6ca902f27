// A process that requests what it is told to, holds it until told otherwise, and reports what happens.
import { createInterface } from 'node:readline'
import { openStore } from '../../../src/open-store.js'
import { createLocks, type WebLockOptions } from '../../../src/index.js'

export type ClientOrder =
  | { request: string; as: string; options?: WebLockOptions; abortable?: boolean }
  | { finish: string }
  | { abort: string }
  | { query: true }

export type ClientReport =
  | { ready: string }
  | { granted: string | null; as: string }
  | { done: string; result?: unknown; error?: string }
  | { snapshot: { held: unknown[]; pending: unknown[] } }

const [, , url] = process.argv as [string, string, string]
const locks = createLocks(await openStore(url), { ttl: 3_000 })
const ends = new Map<string, () => void>()
const cancels = new Map<string, AbortController>()

function say(line: ClientReport): void {
  process.stdout.write(`${JSON.stringify(line)}\n`)
}

async function request({
  request: name,
  as,
  options = {},
  abortable,
}: Extract<ClientOrder, { request: string }>): Promise<void> {
  const cancel = new AbortController()
  cancels.set(as, cancel)
  try {
    const result = await locks.request(name, abortable ? { ...options, signal: cancel.signal } : options, (lock) => {
      say({ granted: lock && `${lock.name} ${lock.mode}`, as })
      return new Promise<string>((resolve) => ends.set(as, () => resolve(`${as} is done`)))
    })
    say({ done: as, result })
  } catch (error) {
    say({ done: as, error: (error as Error).name })
  }
}

createInterface({ input: process.stdin }).on('line', (text) => {
  const order = JSON.parse(text) as ClientOrder
  if ('request' in order) void request(order)
  else if ('finish' in order) ends.get(order.finish)?.()
  else if ('abort' in order) cancels.get(order.abort)?.abort()
  else void locks.query().then((snapshot) => say({ snapshot }))
})
say({ ready: locks.clientId })
