/**
 * The client libraries, if they are installed.
 *
 * @module
 */
import { unlessMissing } from '../../util/optional-import.js'

export async function loadIoRedis(): Promise<Pick<typeof import('ioredis'), 'Redis' | 'Cluster'> | undefined> {
  try {
    return await import('ioredis')
  } catch (error) {
    return unlessMissing(error, 'ioredis')
  }
}

export async function loadNodeRedis(): Promise<typeof import('redis') | undefined> {
  try {
    return await import('redis')
  } catch (error) {
    return unlessMissing(error, 'redis')
  }
}
