// 240 waiters for one name in 4 processes: what the server receives for them, and in which order they are served.
import { once } from 'node:events'
import { type ChildProcess, fork } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { createLocks } from '../../../src/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import type { RedisServer } from '../../../testbed/servers/index.js'
import { program } from '../../../testbed/programs.js'

const PROCESSES = 4
/** More than one grant serves inside a process, so that processes have to take turns. */
export const WAITERS_EACH = 60

/** One lock that a process had; `nth` counts its requests in the order in which it asked. */
export interface Turn {
  token: string
  pid: number
  nth: number
}

export interface Crowd {
  commands: Record<string, number>
  perAcquisition: number
  /** Locks of a process that came after one that it had asked for later. */
  outOfOrder: number
  /** How often in a row one process had the lock at most before it went to another. */
  longestTurn: number
}

/** Commands that clients send: those that scripts call inside of the server are counted there too. */
const SENT = ['evalsha', 'eval', 'blmpop', 'subscribe', 'unsubscribe', 'scan']

async function turnsOf(child: ChildProcess): Promise<Turn[]> {
  for (;;) {
    const [message] = (await once(child, 'message')) as [{ turns?: Turn[] }]
    if (message.turns) return message.turns
  }
}

export async function crowd(server: RedisServer): Promise<Crowd> {
  const client = new Redis(server.url)
  const locks = createLocks(redis(client))
  const first = await locks.acquire('crowd')
  await server.command('CONFIG', 'RESETSTAT')
  const script = program(new URL('./crowd.child.ts', import.meta.url))
  const children = Array.from({ length: PROCESSES }, () => fork(script, [server.url]))
  await Promise.all(children.map((child) => once(child, 'message')))
  await sleep(500)
  const served = Promise.all(children.map(turnsOf))
  await first.release()
  const turns = (await served).flat().sort((a, b) => (BigInt(a.token) < BigInt(b.token) ? -1 : 1))
  const stats = String(await server.command('INFO', 'commandstats'))
  await locks.close()
  client.disconnect()
  const commands = Object.fromEntries(
    SENT.map((name) => [name, Number(new RegExp(`cmdstat_${name}:calls=(\\d+)`).exec(stats)?.[1] ?? 0)]),
  )
  const highest = new Map<number, number>()
  let outOfOrder = 0
  for (const { pid, nth } of turns) {
    if (nth < (highest.get(pid) ?? -1)) outOfOrder++
    highest.set(pid, Math.max(nth, highest.get(pid) ?? -1))
  }
  return {
    commands,
    perAcquisition: Object.values(commands).reduce((sum, count) => sum + count, 0) / turns.length,
    outOfOrder,
    longestTurn: longestTurn(turns),
  }
}

/** Without the last one, during which nobody else waits any more. */
function longestTurn(turns: readonly Turn[]): number {
  let longest = 0
  let from = 0
  for (const [i, { pid }] of turns.entries()) {
    if (pid === turns[from]?.pid) continue
    longest = Math.max(longest, i - from)
    from = i
  }
  return longest
}
