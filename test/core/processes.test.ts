import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, onTestFinished, test } from 'vitest'
import { createLocks } from '../../src/index.js'
import { sqlite } from '../../src/stores/sqlite/index.js'
import { startChild, temporaryFolder } from '../../testbed/children.js'
import { startStopwatch } from '../../testbed/running-time.js'

const HOLDER = new URL('../../testbed/children/holder.child.ts', import.meta.url)

function database(): string {
  return join(temporaryFolder(onTestFinished), 'locks.db')
}

describe('processes', () => {
  test('8 processes lose no increment of an unprotected counter, and every token is larger than the one before', async () => {
    const folder = temporaryFolder(onTestFinished)
    const [counter, tokens] = [join(folder, 'counter'), join(folder, 'tokens')]
    writeFileSync(counter, '0')
    writeFileSync(tokens, '')
    const children = Array.from({ length: 8 }, () =>
      startChild(HOLDER, [join(folder, 'locks.db'), 'count', '5000', counter, tokens, '25'], onTestFinished),
    )
    expect(await Promise.all(children.map((child) => child.ended))).toEqual(Array(8).fill(0))
    expect(readFileSync(counter, 'utf8')).toBe('200')
    const seen = readFileSync(tokens, 'utf8').trim().split('\n').map(BigInt)
    expect(seen).toHaveLength(200)
    expect(seen.filter((token, i) => i > 0 && token <= (seen[i - 1] as bigint))).toEqual([])
  })

  test('after kill -9 of a holder the next waiter holds within ttl + 1 s, with a larger token', async () => {
    const path = database()
    const holder = startChild<{ token: string }>(HOLDER, [path, 'hold', '1000'], onTestFinished)
    const { token } = await holder.next()
    const next = startChild<{ token: string; stalledMs: number }>(HOLDER, [path, 'wait', '1000'], onTestFinished)
    await next.next()
    const watch = startStopwatch()
    holder.kill('SIGKILL')
    const granted = await next.next()
    // Without the times at which the waiter or this process had no processor: nobody can promise anything for those.
    expect(watch.ms() - granted.stalledMs).toBeLessThan(2_000)
    watch.stop()
    expect(BigInt(granted.token)).toBeGreaterThan(BigInt(token))
    expect(await next.ended).toBe(0)
  })

  test('a holder frozen beyond its ttl reports the loss at its first check, in the middle of busy code', async () => {
    const rounds = 4
    const path = database()
    const child = startChild(HOLDER, [path, 'frozen', '300', String(rounds)], onTestFinished)
    for (let i = 0; i < rounds; i++) {
      await child.until((report) => report['holds'] === true)
      child.kill('SIGSTOP')
      await sleep(450)
      child.kill('SIGCONT')
      expect(await child.until((report) => 'isHeld' in report)).toEqual({
        isHeld: false,
        aborted: true,
        earlier: true,
        throws: true,
      })
      expect(await child.next()).toEqual({ outcome: 'lost' })
    }
    expect(await child.ended).toBe(0)
  })

  test('a held lock does not keep a process alive', async () => {
    const child = startChild(HOLDER, [database(), 'leave', '30000'], onTestFinished)
    await child.next()
    const began = performance.now()
    expect(await child.ended).toBe(0)
    // Far less than the ttl, for which a lock that keeps the process alive would do so.
    expect(performance.now() - began).toBeLessThan(20_000)
  })

  test('a pending acquire keeps a process alive until it is answered', async () => {
    const path = database()
    const locks = createLocks(sqlite(path))
    const lock = await locks.acquire('a')
    const child = startChild(HOLDER, [path, 'wait'], onTestFinished)
    await child.next()
    await lock.release()
    expect(await child.next()).toMatchObject({ holds: true })
    expect(await child.ended).toBe(0)
    await locks.close()
  })

  test('a lock that is garbage-collected without release stops renewing and is reported', async () => {
    const path = database()
    // Long enough that the locks that are kept do not end because the machine is busy.
    const child = startChild(HOLDER, [path, 'abandon', '3000'], onTestFinished)
    expect(await child.until((report) => 'abandoned' in report)).toEqual({ abandoned: 'a' })
    const locks = createLocks(sqlite(path))
    const next = await locks.acquire('a', { wait: '30s' })
    expect(next.isHeld).toBe(true)
    // Code that still has the lock, or only its signal, means to hold it.
    expect(await child.until((report) => 'kept' in report)).toEqual({ kept: true, signal: false })
    expect(await child.ended).toBe(0)
    await next.release()
    await locks.close()
  })
})
