// Locks on one Redis, beside the least that a lock there can cost, and beside the libraries that do the same. Same server,
// same client library, taken in turns, so that a noisy machine is noisy for all: compare the ratios.
//
//   npm run bench -- redis [serial] [handoff] [crowd] [listing] [--rounds 15]
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { type RedisServer, startRedis } from '../scripts/servers/index.js'
import { createLocks, redis, Redis } from './built.js'

const TTL_MS = 30_000
/** Turns of a process before it counts. */
const WARM_UP = 1_500
/** The least that handing over by a message takes: somebody waits and is told, or takes what lies there. No lock. */
const PASS_ON = `local next = redis.call('LPOP', 'waiting')
  if next then return redis.call('PUBLISH', next, ARGV[1]) end
  return redis.call('SET', 'left', ARGV[1])`
const TAKE_OR_WAIT = `local left = redis.call('GETDEL', 'left')
  if not left then redis.call('RPUSH', 'waiting', ARGV[1]) end
  return left`
const DELETE_IF_MINE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
const quantile = (all: readonly number[], q: number): number =>
  [...all].sort((a, b) => a - b)[Math.min(Math.floor(all.length * q), all.length - 1)] as number
export const median = (all: readonly number[]): number => quantile(all, 0.5)

/** Takes one lock and gives it back. */
type Cycle = () => Promise<unknown>

/** The libraries to compare with, if they are installed beside this file, with a client each. */
function peers(clientOf: () => Redis): Record<string, Cycle> {
  if (!existsSync(new URL('node_modules', import.meta.url))) return {}
  const peer = createRequire(import.meta.url)
  const { default: Redlock5 } = peer('redlock5') as {
    default: new (
      clients: unknown[],
    ) => { acquire(names: string[], ttl: number): Promise<{ release(): Promise<unknown> }> }
  }
  const { Mutex } = peer('redis-semaphore') as {
    Mutex: new (
      client: unknown,
      name: string,
      options: object,
    ) => { acquire(): Promise<void>; release(): Promise<void> }
  }
  const redlock5 = new Redlock5([clientOf()])
  const client = clientOf()
  return {
    'redlock@5, one node': async () => (await redlock5.acquire(['r5'], TTL_MS)).release(),
    'redis-semaphore Mutex': async () => {
      const mutex = new Mutex(client, 'rs', { lockTimeout: TTL_MS })
      await mutex.acquire()
      await mutex.release()
    },
  }
}

/** Microseconds for one acquire and one release, by name: medians of single cycles taken in turns, 500 to a round. */
export async function serial(url: string, rounds: number): Promise<Record<string, number>> {
  const clients: Redis[] = []
  const clientOf = (): Redis => {
    const client = new Redis(url)
    clients.push(client)
    return client
  }
  const client = clientOf()
  const sha = String(await client.script('LOAD', DELETE_IF_MINE))
  const store = redis(client)
  const locks = createLocks(store)
  const owner = 'host:1234:0190a0b0-1111-7222-8333-444455556666/12'
  const claim = { key: 'lock:bench:store', owner, weight: 2 ** 31 - 1, capacity: 2 ** 31 - 1, ttlMs: TTL_MS }
  const cycles: Record<string, Cycle> = {
    'bare SET NX PX + script': async () => {
      await client.set('bare', owner, 'PX', TTL_MS, 'NX')
      await client.evalsha(sha, 1, 'bare', owner)
    },
    'the store alone': async () => {
      await store.acquire([claim])
      await store.release([claim])
    },
    leasehold: async () => (await locks.acquire('bench')).release(),
    ...peers(clientOf),
  }
  const times: Record<string, number[]> = Object.fromEntries(Object.keys(cycles).map((name) => [name, []]))
  for (let i = -1_000; i < rounds * 500; i++) {
    for (const [name, cycle] of Object.entries(cycles)) {
      const began = performance.now()
      await cycle()
      // The first ones warm up.
      if (i >= 0) times[name]?.push((performance.now() - began) * 1_000)
    }
  }
  await locks.close()
  for (const each of clients) each.disconnect()
  return Object.fromEntries(Object.entries(times).map(([name, all]) => [name, median(all)]))
}

/** One turn of one process. Times of all processes of a machine by one clock, in milliseconds. */
interface Turn {
  order: string
  gotAt: number
  letGoAt: number
  pid: number
  nth: number
}

const machineNow = (): number => Number(process.hrtime.bigint()) / 1e6

/** Ours, a bare BLPOP, and the least that can be done with a script and a message, as ours has to. */
type Handoffs = Record<'ours' | 'blpop' | 'message', number[]>

/** Milliseconds from letting go in one process to having it in the other. */
export async function handoff(url: string, turns: number): Promise<Handoffs> {
  const latencies = (all: Turn[]): number[] =>
    all
      .sort((a, b) => (BigInt(a.order) < BigInt(b.order) ? -1 : 1))
      .flatMap((turn, i) => {
        const before = all[i - 1]
        return before && before.pid !== turn.pid ? [turn.gotAt - before.letGoAt] : []
      })
  const result: Handoffs = { ours: [], blpop: [], message: [] }
  const hows = Object.keys(result) as (keyof Handoffs)[]
  const client = new Redis(url)
  const children = [0, 1].map(() => start('handoff', url))
  await Promise.all(children.map((child) => once(child, 'message')))
  const play = async (how: keyof Handoffs, count: number, holdMs: number): Promise<Turn[]> => {
    // One ball, whatever was left over: with two of them nobody waits for the other.
    await client.multi().del('ball', 'waiting').rpush('ball', '1').set('left', '1').exec()
    for (const child of children) child.send({ how, count, holdMs })
    return (await Promise.all(children.map(turnsOf))).flat()
  }
  // As in a service that has been up for a while: what is compiled while it runs is compiled by now.
  for (const how of hows) await play(how, WARM_UP, 0)
  // By turns and a few at a time: a machine that is slow for a while is slow for both.
  for (let done = 0; done < turns; done += 20)
    for (const how of hows) result[how].push(...latencies(await play(how, 10, 8)))
  for (const child of children) child.send('done')
  client.disconnect()
  return result
}

export interface Crowd {
  acquisitions: number
  commands: Record<string, number>
  perAcquisition: number
  seconds: number
  /** Acquisitions of one process that came before one that it had asked for earlier. */
  outOfOrder: number
  /** How often the lock went from one process to another. */
  changes: number
}

/** 100 who wait for one name in 4 processes, let in one after the other: what the server received for it. */
export async function crowd(server: RedisServer): Promise<Crowd> {
  const client = new Redis(server.url)
  const locks = createLocks(redis(client))
  const first = await locks.acquire('crowd')
  await server.command('CONFIG', 'RESETSTAT')
  const children = [0, 1, 2, 3].map(() => start('crowd', server.url, '25'))
  await Promise.all(children.map((child) => once(child, 'message')))
  await sleep(500)
  const began = performance.now()
  await first.release()
  const turns = (await Promise.all(children.map(turnsOf))).flat()
  const seconds = (performance.now() - began) / 1_000
  const stats = String(await server.command('INFO', 'commandstats'))
  await locks.close()
  client.disconnect()
  turns.sort((a, b) => (BigInt(a.order) < BigInt(b.order) ? -1 : 1))
  const commands: Record<string, number> = {}
  // Only what clients send: what scripts call inside the server is counted there too.
  for (const name of ['evalsha', 'eval', 'blmpop', 'subscribe', 'unsubscribe', 'scan'])
    commands[name] = Number(new RegExp(`cmdstat_${name}:calls=(\\d+)`).exec(stats)?.[1] ?? 0)
  const received = Object.values(commands).reduce((sum, count) => sum + count, 0)
  const highest = new Map<number, number>()
  let outOfOrder = 0
  for (const { pid, nth } of turns) {
    if (nth < (highest.get(pid) ?? -1)) outOfOrder++
    highest.set(pid, Math.max(nth, highest.get(pid) ?? -1))
  }
  return {
    acquisitions: turns.length,
    commands,
    perAcquisition: received / turns.length,
    seconds,
    outOfOrder,
    changes: turns.filter((turn, i) => i > 0 && turns[i - 1]?.pid !== turn.pid).length,
  }
}

export interface ListingFigures {
  keys: number
  indexMs: number
  firstWithForeignMs: number
  laterWithForeignMs: number
  found: number
  foreign: number
}

/** 200 locks of ours and one foreign among so many other keys. */
export async function listing(server: RedisServer, keys: number): Promise<ListingFigures> {
  const client = new Redis(server.url)
  for (let done = 0; done < keys; done += 100_000)
    await client.call('DEBUG', 'POPULATE', '100000', `other${done}`, '10')
  const [plain, whole] = [redis(client, { listForeign: false }), redis(client, { timeout: '30s' })]
  const locks = createLocks(plain)
  await Promise.all(Array.from({ length: 200 }, (_, i) => locks.acquire(`shop:${i}`)))
  await client.set('lock:shop:foreign', 'somebody', 'PX', 600_000)
  const timed = async (
    store: typeof plain,
  ): Promise<[number, Awaited<ReturnType<NonNullable<typeof plain.holders>>>]> => {
    const began = performance.now()
    const views = (await store.holders?.('lock:shop:')) ?? []
    return [performance.now() - began, views]
  }
  await timed(plain)
  const times = []
  for (let i = 0; i < 9; i++) times.push((await timed(plain))[0])
  const [firstWithForeignMs, views] = await timed(whole)
  const [laterWithForeignMs] = await timed(whole)
  const figures = {
    keys,
    indexMs: median(times),
    firstWithForeignMs,
    laterWithForeignMs,
    found: views.length,
    foreign: views.filter(({ foreign }) => foreign).length,
  }
  await locks.releaseAll()
  await locks.close()
  client.disconnect()
  return figures
}

const self = fileURLToPath(import.meta.url)

function start(...args: string[]): ChildProcess {
  return fork(self, ['--worker', ...args], {
    execArgv: ['--import', 'tsx'],
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
}

async function turnsOf(child: ChildProcess): Promise<Turn[]> {
  for (;;) {
    const [message] = (await once(child, 'message')) as [{ turns?: Turn[] }]
    if (message.turns) return message.turns
  }
}

/** What is held, and how to let go of it. */
interface Hold {
  order: bigint | string
  letGo: () => Promise<unknown>
}

async function ballTurn(client: Redis): Promise<Hold> {
  const order = (await client.blpop('ball', 0))?.[1] ?? '0'
  return { order, letGo: () => client.rpush('ball', String(Number(order) + 1)) }
}

/** Takes turns by a script and a message. */
async function messenger(url: string, client: Redis): Promise<() => Promise<Hold>> {
  const ear = new Redis(url)
  const [passOn, take] = (await Promise.all(
    [PASS_ON, TAKE_OR_WAIT].map((script) => client.script('LOAD', script)),
  )) as [string, string]
  const me = `ear:${process.pid}`
  let hear: ((order: string) => void) | undefined
  ear.on('message', (_channel, order) => hear?.(order))
  await ear.subscribe(me)
  return async () => {
    const told = new Promise<string>((resolve) => (hear = resolve))
    const order = ((await client.evalsha(take, 0, me)) as string | null) ?? (await told)
    return { order, letGo: () => client.evalsha(passOn, 0, String(Number(order) + 1)) }
  }
}

async function lockTurn(locks: ReturnType<typeof createLocks>, name: string): Promise<Hold> {
  const lock = await locks.acquire(name)
  return { order: lock.fencingToken, letGo: () => lock.release() }
}

async function takeTurn(turns: Turn[], nth: number, holdMs: number, take: () => Promise<Hold>): Promise<void> {
  const { order, letGo } = await take()
  const gotAt = machineNow()
  if (holdMs > 0) await sleep(holdMs)
  turns.push({ order: String(order), gotAt, letGoAt: machineNow(), pid: process.pid, nth })
  await letGo()
}

/** What the processes do. */
async function work(task: string, url: string, count: number): Promise<void> {
  // Whoever started it was interrupted.
  process.on('disconnect', () => process.exit())
  const client = new Redis(url)
  const locks = createLocks(redis(client), { wait: '60s' })
  if (task === 'crowd') {
    const turns: Turn[] = []
    const all = Array.from({ length: count }, (_, i) => takeTurn(turns, i, 1, () => lockTurn(locks, task)))
    await sleep(200)
    process.send?.({ asked: true })
    await Promise.all(all)
    await locks.close()
    process.send?.({ turns }, () => process.exit())
    return
  }
  const takes = {
    blpop: () => ballTurn(client),
    ours: () => lockTurn(locks, task),
    message: await messenger(url, client),
  }
  process.on('message', async (order: 'done' | { how: keyof typeof takes; count: number; holdMs: number }) => {
    if (order === 'done') return process.exit()
    const { how, count, holdMs } = order
    const turns: Turn[] = []
    for (let i = 0; i < count; i++) {
      await takeTurn(turns, i, holdMs, takes[how])
      if (holdMs > 0) await sleep(2)
    }
    process.send?.({ turns })
  })
  await client.ping()
  process.send?.({ ready: true })
}

async function main(args: string[]): Promise<void> {
  const at = args.indexOf('--rounds')
  const rounds = at < 0 ? 15 : Number(args[at + 1])
  const wanted = args.filter((arg) => /^[a-z]+$/.test(arg))
  const wants = (topic: string): boolean => wanted.length === 0 || wanted.includes(topic)
  await using server = await startRedis({ args: ['--enable-debug-command', 'yes'] })
  if (wants('serial')) {
    const figures = await serial(server.url, rounds)
    const bare = figures['bare SET NX PX + script'] as number
    console.log('\nacquire + release, one after the other')
    for (const [name, us] of Object.entries(figures))
      console.log(`  ${name.padEnd(26)} ${us.toFixed(0).padStart(6)} µs   ${(us / bare).toFixed(2)}x`)
  }
  if (wants('handoff')) {
    const { ours, blpop, message } = await handoff(server.url, 1_000)
    console.log('\nhand-off between two processes, from letting go to having it')
    for (const [name, all] of Object.entries({
      leasehold: ours,
      'bare BLPOP': blpop,
      'script, message': message,
    })) {
      const shown = [0.5, 0.95, 1].map((q) => quantile(all, q).toFixed(2).padStart(7)).join(' ')
      const ratio = (median(all) / median(blpop)).toFixed(2)
      console.log(`  ${name.padEnd(15)} ${shown} ms ${ratio.padStart(6)}x   (median, 95 %, worst of ${all.length})`)
    }
  }
  if (wants('crowd')) {
    const found = await crowd(server)
    console.log('\n100 waiters in 4 processes')
    console.log(
      `  ${found.perAcquisition.toFixed(2)} commands per acquisition ${JSON.stringify(found.commands)}, ${found.seconds.toFixed(2)} s, ` +
        `${found.outOfOrder} out of order within a process, ${found.changes} changes between processes`,
    )
  }
  if (wants('listing')) {
    const found = await listing(server, 1_000_000)
    console.log(`\n200 locks and one foreign among ${found.keys.toLocaleString('en')} other keys`)
    console.log(`  from the index ${found.indexMs.toFixed(1)} ms`)
    console.log(
      `  with foreign ones ${found.firstWithForeignMs.toFixed(0)} ms, and then ${found.laterWithForeignMs.toFixed(1)} ms; ` +
        `${found.found} found, ${found.foreign} foreign`,
    )
  }
}

const [, file, mode, task = '', url = '', count = ''] = process.argv
if (file === self && mode === '--worker') await work(task, url, Number(count))
else if (file === self) {
  await main(process.argv.slice(2))
  process.exit()
}
