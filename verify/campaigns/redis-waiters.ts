// Redis: thousands wait for one name: what waiting costs the server, what a hand-off takes, and in which order.
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createLocks } from '../../src/locks.js'
import { redis } from '../../src/stores/redis/index.js'
import { type RedisServer, startRedis } from '../../testbed/servers/index.js'
import { program } from '../../testbed/programs.js'
import type { Proving } from './proving.js'
import type { Served } from './redis/waiter.js'

const CHILD = new URL('./redis/waiter.ts', import.meta.url)

/** ROUNDS: how often few waiters are drained. One drain of ten takes about ten milliseconds, too short to measure once. */
const ROUNDS = 40

interface Crowd {
  children: ChildProcess[]
  waiters: number
  errors: string[]
}

interface Drained {
  handoffMs: number
  served: number
  outOfOrder: number
}

async function gather(server: RedisServer, processes: number, instances: number): Promise<Crowd> {
  const errors: string[] = []
  const children = await Promise.all(
    Array.from({ length: processes }, async () => {
      const child = fork(program(CHILD), [server.url, String(instances)])
      child.on('message', (message: { error?: string }) => {
        if (message.error) errors.push(message.error)
      })
      await once(child, 'message')
      return child
    }),
  )
  return { children, waiters: processes * instances, errors }
}

/** Processor time of the server, in milliseconds. */
async function cpuMs(server: RedisServer): Promise<number> {
  const info = String(await server.command('INFO', 'cpu'))
  const of = (name: string): number => 1_000 * Number(new RegExp(`${name}:([\\d.]+)`).exec(info)?.[1])
  return of('used_cpu_user') + of('used_cpu_sys')
}

/** The share of one core that the server uses, in per cent. */
async function cpuPercent(server: RedisServer, seconds: number): Promise<number> {
  const [before, began] = [await cpuMs(server), performance.now()]
  await sleep(seconds * 1_000)
  return (100 * ((await cpuMs(server)) - before)) / (performance.now() - began)
}

const queueOf = async (server: RedisServer, name: string): Promise<string[]> =>
  (await server.command('ZRANGE', `leasehold:1:{lock:${name}}:queue`, '0', '-1')) as string[]

/** All wait for one name; then it is released, and goes through all hands. */
async function drain(
  server: RedisServer,
  crowd: Crowd,
  name: string,
  whileAllWait?: () => Promise<void>,
): Promise<Drained> {
  const client = new Redis(server.url)
  const store = redis(client)
  const locks = createLocks(store, { ttl: '1m' })
  const held = await locks.acquire(name)
  const answers = crowd.children.map(async (child): Promise<Served[]> => {
    for (;;) {
      const [message] = (await once(child, 'message')) as [{ served?: Served[] }]
      if (message.served) return message.served
    }
  })
  for (const child of crowd.children) child.send(name)
  let queue: string[] = []
  while (queue.length < crowd.waiters) {
    await sleep(crowd.waiters > 100 ? 200 : 10)
    queue = await queueOf(server, name)
  }
  // The listening connections of all processes are open, and the first renewals of queue entries are over.
  await sleep(crowd.waiters > 100 ? 5_000 : 50)
  await whileAllWait?.()
  const began = performance.timeOrigin + performance.now()
  await held.release()
  const late = sleep(120_000).then((): Served[][] => [])
  const served = (await Promise.race([Promise.all(answers), late])).flat()
  await locks.close()
  await store.close()
  client.disconnect()
  const inOrder = served.toSorted((a, b) => (BigInt(a.token) < BigInt(b.token) ? -1 : 1))
  const last = Math.max(...served.map(({ at }) => at))
  return {
    handoffMs: (last - began) / served.length,
    served: served.length,
    outOfOrder: queue.filter((owner, i) => inOrder[i]?.holder !== owner).length,
  }
}

function dismiss({ children }: Crowd): void {
  for (const child of children) child.kill('SIGKILL')
}

const median = (all: readonly number[]): number => all.toSorted((a, b) => a - b)[all.length >> 1] as number

export default async function prove(p: Proving): Promise<void> {
  await using server = await startRedis()
  const few = await gather(server, 10, 1)
  const times: number[] = []
  for (let round = 0; round < ROUNDS; round++) times.push((await drain(server, few, `few${round}`)).handoffMs)
  dismiss(few)
  const usual = median(times.slice(ROUNDS / 4))
  p.say(`10 waiters in 10 processes: ${usual.toFixed(2)} ms per hand-off, median of ${ROUNDS} rounds`)

  const idle = await cpuPercent(server, 3)
  const many = await gather(server, 20, 100)
  let waiting = 0
  let queued = 0
  const drained = await drain(server, many, 'many', async () => {
    waiting = await cpuPercent(server, Math.min(p.seconds, 20))
    queued = (await queueOf(server, 'many')).length
  })
  const again = await drain(server, many, 'again')
  dismiss(many)
  p.check(
    '2,000 waiters in 20 processes: below 3 % of a core while they wait, and none is forgotten',
    waiting < 3 && queued === 2_000,
    `${waiting.toFixed(2)} % (${idle.toFixed(2)} % without any), ${queued} in the queue`,
  )
  p.check(
    '2,000 waiters in 20 processes: all are served, in the order of the queue',
    drained.served === 2_000 && drained.outOfOrder === 0 && many.errors.length === 0,
    `${drained.served} served, ${drained.outOfOrder} out of order, ${many.errors.length} errors ${many.errors[0] ?? ''}`,
  )
  p.check(
    'a hand-off at 2,000 waiters takes at most twice as long as at 10',
    drained.handoffMs <= 2 * usual,
    `${drained.handoffMs.toFixed(2)} against ${usual.toFixed(2)} ms (${(drained.handoffMs / usual).toFixed(2)}x), a second time ${again.handoffMs.toFixed(2)} ms`,
  )
}
