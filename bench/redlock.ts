// Locks on five independent servers, beside the libraries that do the same without tokens, and beside the least that a
// majority can cost: one round of SET NX and one of compare-and-delete. Same servers, same client library, taken in turns,
// so that a noisy machine is noisy for all: compare the ratios. One after the other, single locks take turns, and each
// begins when the servers have done with the one before: the minority nobody waited for would be felt by the next.
//
//   npm run bench -- redlock [--rounds 7]
import { createRequire } from 'node:module'
import { startRedis } from '../scripts/servers/index.js'
import { createLocks, Redis, redlock } from './built.js'

/** The parts of the peers that are used. Their packages are installed beside this file only. */
const peer = createRequire(import.meta.url)
const { default: Redlock5 } = peer('redlock5') as {
  default: new (clients: Redis[]) => { acquire(names: string[], ttl: number): Promise<{ release(): Promise<unknown> }> }
}
const { RedlockMutex } = peer('redis-semaphore') as {
  RedlockMutex: new (
    clients: Redis[],
    name: string,
    options: object,
  ) => { acquire(): Promise<void>; release(): Promise<void> }
}
const { RedLock, IoredisAdapter } = peer('redlock-universal') as {
  RedLock: new (options: object) => { acquire(): Promise<object>; release(handle: object): Promise<boolean> }
  IoredisAdapter: new (client: Redis) => object
}

const at = process.argv.indexOf('--rounds')
const ROUNDS = at > 0 ? Number(process.argv[at + 1]) : 7
const ROUND_MS = 500
const TTL_MS = 30_000
const NODES = 5
const IN_FLIGHT = 32

/** Takes one lock and gives it back. */
type Cycle = (name: string) => Promise<unknown>

interface Contender {
  cycle: Cycle
  clients: readonly Redis[]
}

const RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

function bareQuorum(clients: readonly Redis[]): Cycle {
  const majority = Math.floor(NODES / 2) + 1
  let owners = 0
  const most = (calls: Promise<unknown>[]): Promise<void> =>
    new Promise((resolve) => {
      let agreed = 0
      for (const call of calls) void call.then(() => ++agreed === majority && resolve())
    })
  return async (name) => {
    const owner = `bare/${owners++}`
    await most(clients.map((client) => client.set(`bare:${name}`, owner, 'PX', TTL_MS, 'NX')))
    await most(clients.map((client) => client.eval(RELEASE, 1, `bare:${name}`, owner)))
  }
}

async function contenders(ports: readonly number[]): Promise<Record<string, Contender>> {
  const connect = async (): Promise<Redis[]> => {
    const clients = ports.map((port) => new Redis(port, '127.0.0.1', { lazyConnect: true }))
    await Promise.all(clients.map((client) => client.connect()))
    return clients
  }
  const made: Record<string, Contender> = {}
  const add = async (name: string, make: (clients: Redis[]) => Cycle): Promise<void> => {
    const clients = await connect()
    made[name] = { cycle: make(clients), clients }
  }
  await add('leasehold', (clients) => {
    const locks = createLocks(redlock(clients, { maxTtl: '1m' }), { ttl: TTL_MS })
    return async (name) => (await locks.acquire(name)).release()
  })
  await add('redlock@5', (clients) => {
    const redlock5 = new Redlock5(clients)
    return async (name) => (await redlock5.acquire([`r5:${name}`], TTL_MS)).release()
  })
  await add('redis-semaphore', (clients) => async (name) => {
    const mutex = new RedlockMutex(clients, name, { lockTimeout: TTL_MS })
    await mutex.acquire()
    await mutex.release()
  })
  await add('redlock-universal', (clients) => {
    const adapters = clients.map((client) => new IoredisAdapter(client))
    return async (name) => {
      const lock = new RedLock({ adapters, key: `ru:${name}`, ttl: TTL_MS })
      await lock.release(await lock.acquire())
    }
  })
  await add('bare quorum, no token', bareQuorum)
  return made
}

const median = (all: readonly number[]): number => [...all].sort((a, b) => a - b)[all.length >> 1] as number

/** Locks a second with so many under way at all times, each of another name; and what one of them took. */
async function measure(cycle: Cycle, inFlight: number): Promise<{ rate: number; ms: number }> {
  const began = performance.now()
  const times: number[] = []
  const worker = async (nth: number): Promise<void> => {
    for (let round = 0; performance.now() - began < ROUND_MS; round++) {
      const startedAt = performance.now()
      await cycle(`bench:${nth}:${round % 50}`)
      times.push(performance.now() - startedAt)
    }
  }
  await Promise.all(Array.from({ length: inFlight }, (_, nth) => worker(nth)))
  return { rate: (times.length / (performance.now() - began)) * 1_000, ms: median(times) }
}

async function together(all: Record<string, Contender>): Promise<void> {
  const rates: Record<string, number[]> = {}
  const times: Record<string, number[]> = {}
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [name, { cycle }] of Object.entries(all)) {
      const { rate, ms } = await measure(cycle, IN_FLIGHT)
      // The first round warms up.
      if (round === 0) continue
      rates[name] = [...(rates[name] ?? []), rate]
      times[name] = [...(times[name] ?? []), ms]
    }
  }
  console.log(`\n${IN_FLIGHT} in flight (medians of ${ROUNDS} rounds)`)
  const ours = median(rates.leasehold as number[])
  for (const name of Object.keys(all)) {
    const rate = median(rates[name] as number[])
    const ratio = name === 'leasehold' ? '' : `  leasehold: ${(ours / rate).toFixed(2)}x the locks`
    const figures = `${rate.toFixed(0).padStart(6)} locks/s  ${median(times[name] as number[])
      .toFixed(2)
      .padStart(6)} ms each`
    console.log(`  ${name.padEnd(22)} ${figures}${ratio}`)
  }
}

/** Each beside leasehold alone: what others leave behind in the caches of the machine should be felt by neither. */
async function oneAfterTheOther(all: Record<string, Contender>): Promise<void> {
  const { leasehold, ...others } = all
  const cycles = ROUNDS * 200
  console.log(`\none after the other, by turns with leasehold (medians of ${cycles})`)
  for (const [name, other] of Object.entries(others)) {
    const times: [number[], number[]] = [[], []]
    for (let i = -500; i < cycles; i++) {
      for (const [at, { cycle, clients }] of [leasehold as Contender, other].entries()) {
        const startedAt = performance.now()
        await cycle(`bench:${i % 50}`)
        // The first ones warm up.
        if (i >= 0) times[at]?.push(performance.now() - startedAt)
        await Promise.all(clients.map((client) => client.ping()))
      }
    }
    const [ours, ms] = times.map(median) as [number, number]
    const ratio = `leasehold: ${ours.toFixed(2)} ms, ${(ours / ms).toFixed(2)}x the time`
    console.log(`  ${name.padEnd(22)} ${ms.toFixed(2).padStart(6)} ms each  ${ratio}`)
  }
}

const servers = await Promise.all(Array.from({ length: NODES }, () => startRedis()))
const all = await contenders(servers.map((server) => server.port))
console.log(`acquire and release on ${NODES} servers, ttl ${TTL_MS / 1_000} s`)
await together(all)
await oneAfterTheOther(all)
await Promise.all(servers.map((server) => server.stop()))
process.exit(0)
