import type { Calls, Context } from '../harness/types.js'

/** May return a promise. */
export type Release = () => unknown

/** One name at a time, the least that all libraries have in common. */
export interface Locker {
  acquire(name: string): Promise<Release>
}

export type OpenLocker = (context: Context) => Promise<Locker>

/** Requests before the clock starts: a process that sat idle since its last slice has cold caches. */
const LEAD_IN = 50

export interface Loop {
  count: number
  ms: number
}

/** Calls `cycle` until the time is over, in so many tasks at once; looks at the clock every `batch` calls. */
export async function loop(
  cycle: (n: number) => Promise<unknown>,
  { ms, tasks = 1, batch = 1 }: { ms: number; tasks?: number; batch?: number },
): Promise<Loop> {
  let next = 0
  const leadIn = async (times: number): Promise<void> => {
    for (let i = 0; i < times; i++) await cycle(next++)
  }
  await Promise.all(Array.from({ length: tasks }, () => leadIn(Math.ceil(LEAD_IN / tasks))))
  let count = 0
  const beganAt = performance.now()
  const until = beganAt + ms
  const task = async (): Promise<void> => {
    do {
      for (let i = 0; i < batch; i++) await cycle(next++)
      count += batch
    } while (performance.now() < until)
  }
  await Promise.all(Array.from({ length: tasks }, task))
  return { count, ms: performance.now() - beganAt }
}

/** Acquire and release, one after the other, over all names. */
export const serially =
  (open: OpenLocker) =>
  async (context: Context): Promise<Calls> => {
    const locker = await open(context)
    const cycle = async (n: number): Promise<void> => {
      const release = await locker.acquire(context.name(n))
      await release()
    }
    return { run: ({ ms }: { ms: number }) => loop(cycle, { ms }) }
  }

/** So many tasks at once; consecutive names, so that no task waits for another one. */
export const inFlight =
  (open: OpenLocker, tasks: number) =>
  async (context: Context): Promise<Calls> => {
    const locker = await open(context)
    const cycle = async (n: number): Promise<void> => {
      const release = await locker.acquire(context.name(n))
      await release()
    }
    return { run: ({ ms }: { ms: number }) => loop(cycle, { ms, tasks }) }
  }

/** Tasks of one process that all want the same name. */
export const contending =
  (open: OpenLocker, tasks: number) =>
  async (context: Context): Promise<Calls> => {
    const locker = await open(context)
    const cycle = async (): Promise<void> => {
      const release = await locker.acquire(context.name(0))
      await release()
    }
    return { run: ({ ms }: { ms: number }) => loop(cycle, { ms, tasks }) }
  }
