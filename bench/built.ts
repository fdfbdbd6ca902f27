// What is measured is the built library, as it would be installed: what compiles TypeScript on the fly slows down every closure.
import { createRequire } from 'node:module'
import type * as ioredis from 'ioredis'
import type * as library from '../src/index.js'
import type * as redisStore from '../src/stores/redis/index.js'
import type * as redlockStore from '../src/stores/redlock/index.js'

const load = (file: string): Promise<unknown> => import(new URL(`../dist/${file}`, import.meta.url).href)

export const createLocks: typeof library.createLocks = ((await load('index.js')) as typeof library).createLocks
export const redis: typeof redisStore.redis = ((await load('stores/redis/index.js')) as typeof redisStore).redis
export const redlock: typeof redlockStore.redlock = ((await load('stores/redlock/index.js')) as typeof redlockStore)
  .redlock

/** The client that the project itself is tested with: beside the peers lies an older one, for those who need that. */
const project = createRequire(new URL('../package.json', import.meta.url))
export const Redis: typeof ioredis.Redis = (project('ioredis') as typeof ioredis).Redis
export type Redis = ioredis.Redis
