// Several processes that want the same name: hand-offs between two, and herds.
import { setTimeout as sleep } from 'node:timers/promises'
import { mean, median } from '../harness/statistics.js'
import type { Calls, Context, Figures, Member, Server, Slice } from '../harness/types.js'
import type { OpenLocker, Release } from './locker.js'

/** The holder keeps the lock at least this long, so that the waiter waits for certain. */
const HOLD_MS = 8
/** Random addition to it: a library that polls must not be met in the same phase every time. */
const HOLD_SPREAD_MS = 40
const MIN_HANDOFFS = 3

/** Milliseconds by the clock that all processes of a machine share. */
const machineNow = (): number => Number(process.hrtime.bigint()) / 1e6

export const takingTurns =
  (open: OpenLocker) =>
  async (context: Context): Promise<Calls> => {
    const locker = await open(context)
    let held: Release | undefined
    return {
      async take() {
        held = await locker.acquire(context.name(0))
        return machineNow()
      },
      async release() {
        const at = machineNow()
        await held?.()
        return at
      },
    }
  }

/** From the call that releases in one process to the lock in the other one's hands, median of a slice. */
export const driveHandoffs =
  (metric: string) =>
  async (members: readonly Member[], { ms }: Slice): Promise<Figures> => {
    let [holder, waiter] = members as [Member, Member]
    const times: number[] = []
    await holder.call('take')
    const until = performance.now() + ms
    while (performance.now() < until || times.length < MIN_HANDOFFS) {
      const taking = waiter.call<number>('take')
      await sleep(HOLD_MS + Math.random() * HOLD_SPREAD_MS)
      const [releasedAt, takenAt] = await Promise.all([holder.call<number>('release'), taking])
      times.push(takenAt - releasedAt)
      ;[holder, waiter] = [waiter, holder]
    }
    await holder.call('release')
    return { [metric]: median(times) }
  }

export interface HerdSize {
  /** Waiters in each process. */
  tasks: number
  /** Locks that each of them takes, one after the other. */
  times: number
  /** 0: released as soon as it is held. */
  holdMs: number
}

interface HerdPart {
  startedAt: number
  endedAt: number
  waits: number[]
}

export const herding =
  (open: OpenLocker, { tasks, times, holdMs }: HerdSize) =>
  async (context: Context): Promise<Calls> => {
    const locker = await open(context)
    return {
      async run(): Promise<HerdPart> {
        const waits: number[] = []
        const task = async (): Promise<void> => {
          for (let i = 0; i < times; i++) {
            const askedAt = performance.now()
            const release = await locker.acquire(context.name(0))
            waits.push(performance.now() - askedAt)
            if (holdMs > 0) await sleep(holdMs)
            await release()
          }
        }
        const startedAt = machineNow()
        await Promise.all(Array.from({ length: tasks }, task))
        return { startedAt, endedAt: machineNow(), waits }
      },
    }
  }

/** Calls of all commands, those inside of scripts included. */
async function commandsOf(server: Server): Promise<number> {
  const text = String(await server.command('INFO', 'commandstats'))
  let calls = 0
  for (const [, name, count] of text.matchAll(/cmdstat_([^:]+):calls=(\d+)/g))
    if (!/^(info|config)/.test(name as string)) calls += Number(count)
  return calls
}

export const HERD_METRICS = {
  time: 'time per lock',
  commands: 'commands per lock',
  fairness: 'longest / mean wait',
} as const

export async function driveHerd(members: readonly Member[], { servers }: Slice): Promise<Figures> {
  const [server] = servers
  await server?.command('CONFIG', 'RESETSTAT')
  const parts = await Promise.all(members.map((member) => member.call<HerdPart>('run')))
  const waits = parts.flatMap((part) => part.waits)
  const tookMs = Math.max(...parts.map((part) => part.endedAt)) - Math.min(...parts.map((part) => part.startedAt))
  return {
    [HERD_METRICS.time]: tookMs / waits.length,
    [HERD_METRICS.commands]: server ? (await commandsOf(server)) / waits.length : 0,
    [HERD_METRICS.fairness]: Math.max(...waits) / mean(waits),
  }
}
