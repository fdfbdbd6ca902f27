// A process that takes part in the tests of the dashboard: does what it is told, one line of JSON each.
import { createInterface } from 'node:readline'
import { type Lock, openLocks } from '../../src/index.js'

const [, , url, publish] = process.argv as [string, string, string, string?]
const locks = await openLocks(url, { ttl: '4s', wait: '60s', ...(publish ? { publish: publish as '1s' } : {}) })
const say = (line: object): boolean => process.stdout.write(`${JSON.stringify(line)}\n`)
const held = new Map<string, Lock>()

interface Order {
  do: 'acquire' | 'release' | 'lead' | 'schedule' | 'take' | 'permit'
  name: string
  metadata?: unknown
  ttl?: '6s'
}

locks.on('lost', ({ name }) => say({ lost: name }))
locks.on('atRisk', ({ name }) => say({ atRisk: name }))

async function obey(order: Order): Promise<void> {
  const { name, metadata, ttl } = order
  if (order.do === 'acquire') {
    const lock = await locks.acquire(name, { metadata, ttl })
    held.set(name, lock)
    say({ holds: name, holder: lock.holder })
  } else if (order.do === 'release') say({ released: await held.get(name)?.release() })
  else if (order.do === 'lead') {
    void locks.election(name, { value: { region: 'eu' } }).run(async ({ term, signal }) => {
      say({ leads: name, term: String(term) })
      await new Promise((resolve) => signal.addEventListener('abort', resolve))
    })
  } else if (order.do === 'permit') {
    held.set(name, await locks.semaphore(name, 5).acquire({ weight: 2 }))
    say({ holds: name })
  } else if (order.do === 'schedule') {
    locks.schedule(name, '* * * * * *', () => {}, { timezone: 'UTC' }).on('finished', () => say({ ran: name }))
  } else {
    const limiter = locks.limiter(name, { limit: 3, per: '1m' })
    for (let i = 0; i < 5; i++) await limiter.take('ada')
    say({ took: name })
  }
}

createInterface({ input: process.stdin }).on('line', (text) => {
  obey(JSON.parse(text) as Order).catch((error: Error) => say({ error: error.message }))
})
say({ ready: true, instance: locks.clientId })
