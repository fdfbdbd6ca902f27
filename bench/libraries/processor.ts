// Processor time of this process and of a Redis server.
import type { Redis } from 'ioredis'

/** Seconds of processor time this process has used. */
export function ownSeconds(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1e6
}

/** Seconds of processor time out of the text of INFO cpu. */
export function secondsIn(info: string): number {
  const read = (field: string): number => Number(new RegExp(`${field}:([\\d.]+)`).exec(info)?.[1] ?? Number.NaN)
  return read('used_cpu_user') + read('used_cpu_sys')
}

export const serverSeconds = async (redis: Redis): Promise<number> => secondsIn(String(await redis.info('cpu')))
