// The least that handing a lock from one waiter to the next can cost on Redis.
import type { Redis } from 'ioredis'
import type { Context } from '../harness/types.js'
import { KeyedFifo } from './keyed-fifo.js'
import type { Locker, OpenLocker } from './locker.js'
import { bare, type ClientName, connect } from './redis.js'

/** A list with one element: the process that pops it has the lock. The process that opens first puts it there. */
async function putBall(redis: Redis, name: string): Promise<void> {
  if (await redis.setnx(`${name}:ball`, '1')) await redis.rpush(name, '1')
}

/** BLPOP and RPUSH, with a connection for each waiter: a blocked one can do nothing else. */
export const blpop =
  (client: ClientName = 'ioredis', connections = 1): OpenLocker =>
  async (context): Promise<Locker> => {
    const clients = await Promise.all(Array.from({ length: connections }, () => connect(context, client)))
    const pusher = await connect(context, client)
    await putBall(pusher, context.name(0))
    return {
      async acquire(name) {
        const redis = clients.pop()
        if (!redis) throw new Error('there are more waiters than connections')
        await redis.blpop(name, 0)
        clients.push(redis)
        return () => pusher.rpush(name, '1')
      },
    }
  }

/** One BLPOP for so many locks of a process: its waiters pass the lock on among themselves. */
const COHORT = 25

export const cohort: OpenLocker = async (context) => {
  const [popper, pusher] = await Promise.all([connect(context), connect(context)])
  await putBall(pusher, context.name(0))
  const fifo = new KeyedFifo()
  let left = 0
  let waiting = 0
  return {
    async acquire(name) {
      waiting++
      const pass = await fifo.acquire(name)
      waiting--
      if (left === 0) {
        await popper.blpop(name, 0)
        left = COHORT
      }
      left--
      return async () => {
        if (waiting === 0) left = 0
        if (left === 0) await pusher.rpush(name, '1')
        pass()
      }
    },
  }
}

/** One Redis lock for so many tasks of one process. */
const SHARED_BY = 64

export const sharedLock: OpenLocker = async (context: Context) => {
  const locker = await bare()(context)
  const fifo = new KeyedFifo()
  let left = 0
  let waiting = 0
  let release: () => unknown = () => {}
  return {
    async acquire(name) {
      waiting++
      const pass = await fifo.acquire(name)
      waiting--
      if (left === 0) {
        release = await locker.acquire(name)
        left = SHARED_BY
      }
      left--
      return async () => {
        if (waiting === 0) left = 0
        if (left === 0) await release()
        pass()
      }
    },
  }
}
