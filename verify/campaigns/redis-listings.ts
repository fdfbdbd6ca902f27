// Redis and Redlock: 100,000 held locks are listed while another process takes locks. No command may hold a server up.
import { spawn } from 'node:child_process'
import { setPriority } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createLocks } from '../../src/index.js'
import type { Store } from '../../src/store.js'
import { redis } from '../../src/stores/redis/index.js'
import { redlock } from '../../src/stores/redlock/index.js'
import { type RedisServer, startRedis } from '../../testbed/servers/index.js'
import { program } from '../../testbed/programs.js'
import type { Proving } from './proving.js'

const HELD = 100_000
const ROUNDS = 3
/** SLOWEST_US: the longest that one command may take, in microseconds. */
const SLOWEST_US = 5_000

interface Kind {
  name: 'redis' | 'redlock'
  servers: number
  open: (clients: Redis[]) => Store
  /** What the scripts keep of a lock besides its plain key: the hash, the field and the value. */
  entry: (key: string, owner: string) => [hash: string, field: string, value: string]
}

const KINDS: Kind[] = [
  {
    name: 'redis',
    servers: 1,
    open: ([client]) => redis(client as Redis),
    entry: (key, owner) => ['leasehold:1:held:lock', key, `${Date.now()}000:${owner}`],
  },
  {
    name: 'redlock',
    servers: 3,
    open: (clients) => redlock(clients, { maxTtl: '20m' }),
    entry: (key, owner) => ['leasehold:redlock', `:${key}`, `${Date.now()}000:${Date.now()}:1:0:0:${owner}`],
  },
]

export default async function prove(p: Proving): Promise<void> {
  for (const kind of KINDS) await listing(p, kind)
}

/** By turns with rest, so that a noisy machine is noisy for both. */
async function listing(p: Proving, kind: Kind): Promise<void> {
  const servers = await Promise.all(Array.from({ length: kind.servers }, () => startRedis()))
  p.say(`${kind.name}: ${preferred(servers)}`)
  const clients = servers.map((server) => new Redis(server.url))
  const store = kind.open(clients)
  const locks = createLocks(store)
  await (await locks.acquire('before')).release()
  await Promise.all(clients.map((client) => holdMany(client, kind)))
  const contender = startContender(kind, servers)
  while (contender.times.length < 200) await sleep(50)
  const [usual, meanwhile, slowest]: [string[], string[], Slow[]] = [[], [], []]
  let found = 0
  let listedMs = 0
  for (let round = 0; round < ROUNDS; round++) {
    contender.times = usual
    await sleep(2_000)
    await Promise.all(clients.map((client) => client.slowlog('RESET')))
    contender.times = meanwhile
    const began = performance.now()
    found = (await locks.holders('many:')).length
    listedMs = performance.now() - began
    slowest.push(...(await Promise.all(clients.map(slowCommands))).flat())
  }
  contender.stop()
  const { name } = kind
  slowest.sort((a, b) => a.us - b.us)
  const at = (share: number): string =>
    `${((slowest[Math.floor((slowest.length - 1) * share)]?.us ?? 0) / 1_000).toFixed(1)} ms`
  const worst = slowest.at(-1) ?? { us: Number.POSITIVE_INFINITY, what: 'nothing was logged' }
  p.check(`${name}: ${HELD} held locks are listed`, found === HELD, `${found} in ${(listedMs / 1_000).toFixed(1)} s`)
  p.check(
    `${name}: no command of a listing takes longer than 5 ms (SLOWLOG)`,
    worst.us <= SLOWEST_US,
    `${slowest.length} above 0.1 ms: median ${at(0.5)}, 99 % below ${at(0.99)}, worst ${at(1)} (${worst.what})`,
  )
  const numbers = (all: readonly string[]): number[] => all.filter((text) => text !== 'failed').map(Number)
  const [before, during] = [median(numbers(usual)), median(numbers(meanwhile))]
  const failed = [...usual, ...meanwhile].filter((text) => text === 'failed').length
  p.check(
    `${name}: another process's acquire stays below 3x its usual median meanwhile`,
    during < 3 * before && failed === 0,
    `${before.toFixed(2)} ms, meanwhile ${during.toFixed(2)} ms (${(during / before).toFixed(2)}x), ${failed} failed`,
  )
  await locks.close()
  await store.close()
  for (const client of clients) client.disconnect()
  await Promise.all(servers.map((server) => server.stop()))
}

/**
 * SLOWLOG counts the time in which the system ran something else on the server's core, and this campaign alone has more busy
 * processes than a small machine has cores. So the servers go first, where that is permitted.
 */
function preferred(servers: readonly RedisServer[]): string {
  try {
    for (const { pid } of servers) setPriority(pid, -19)
    return 'the servers go before all other processes'
  } catch {
    return 'no right to let the servers go first: SLOWLOG also counts the time of other processes'
  }
}

const median = (all: readonly number[]): number => all.toSorted((a, b) => a - b)[all.length >> 1] as number

function startContender({ name }: Kind, servers: readonly RedisServer[]): { times: string[]; stop: () => void } {
  const file = program(new URL('./redis/contender.ts', import.meta.url))
  const child = spawn(process.execPath, [file, name, servers.map(({ port }) => port).join()], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const contender = { times: [] as string[], stop: () => void child.kill('SIGKILL') }
  child.stdout.on('data', (text: Buffer) => contender.times.push(...text.toString().trim().split('\n')))
  return contender
}

/** As the scripts write it, and in a fraction of the time. */
async function holdMany(client: Redis, { entry }: Kind): Promise<void> {
  await client.config('SET', 'slowlog-log-slower-than', '100')
  await client.config('SET', 'slowlog-max-len', '50000')
  for (let from = 0; from < HELD; from += 2_000) {
    const pipeline = client.pipeline()
    const fields: string[] = []
    let hash = ''
    for (let i = from; i < from + 2_000; i++) {
      const [key, owner] = [`lock:many:${i}`, `owner-${i}#abcdefgh1`]
      const [where, ...pair] = entry(key, owner)
      pipeline.set(key, owner, 'PX', 1_000_000)
      fields.push(...pair)
      hash = where
    }
    pipeline.hset(hash, ...fields)
    await pipeline.exec()
  }
}

interface Slow {
  us: number
  what: string
}

/** What took long since the last reset, by the server's own account. */
async function slowCommands(client: Redis): Promise<Slow[]> {
  const log = (await client.slowlog('GET', 50_000)) as [number, number, number, string[]][]
  return log
    .filter(([, , , [command = '']]) => !/^slowlog$/i.test(command))
    .map(([, , us, args]) => ({ us, what: args.slice(0, 4).join(' ').slice(0, 80) }))
}
