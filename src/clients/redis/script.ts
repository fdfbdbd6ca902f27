import { createHash } from 'node:crypto'
import type { Adapter, RedisReply } from './adapter.js'

export interface Script {
  readonly source: string
  /** What EVALSHA knows it by. */
  readonly sha: string
}

/** Parts that run one behind the other as one script. */
export function scriptOf(...parts: string[]): Script {
  const source = parts.join('\n')
  return { source, sha: createHash('sha1').update(source).digest('hex') }
}

export function isNoScript(error: unknown): boolean {
  return error instanceof Error && error.message.startsWith('NOSCRIPT')
}

/**
 * By its hash, and with its text where the server does not know it: one that restarted, took over or was told SCRIPT FLUSH;
 * EVAL also makes it known there. What is made of the reply comes with it: every further promise shows in the price of a
 * lock. A client that throws at once is a client that failed.
 */
export function runScript<T>(
  adapter: Adapter,
  { sha, source }: Script,
  keys: string[],
  args: string[],
  on: { reply: (reply: RedisReply) => T | Promise<T>; failure: (error: unknown) => T | Promise<T> },
): Promise<T> {
  const withText = (): T | Promise<T> => {
    try {
      return adapter.eval(source, keys, args).then(on.reply, on.failure)
    } catch (error) {
      return on.failure(error)
    }
  }
  try {
    return adapter
      .evalsha(sha, keys, args)
      .then(on.reply, (error: unknown) => (isNoScript(error) ? withText() : on.failure(error)))
  } catch (error) {
    return new Promise((resolve) => resolve(on.failure(error)))
  }
}
