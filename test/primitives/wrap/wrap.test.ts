import { describe, expect, expectTypeOf, test } from 'vitest'
import {
  createLocks,
  InvalidOptionError,
  LockLostError,
  LockTimeoutError,
  memory,
  SelfDeadlockError,
} from '../../../src/index.js'
import { kinds } from '../../../testbed/fixtures.js'

const names = async (locks: ReturnType<typeof createLocks>): Promise<string[]> =>
  (await locks.holders()).map(({ name }) => name)

describe('locks.wrap', () => {
  test('a wrapped function runs under the lock of that name, and releases it', async () => {
    const locks = createLocks(memory())
    const wrapped = locks.wrap('report', async () => names(locks))
    expect(await wrapped()).toEqual(['report'])
    expect(await names(locks)).toEqual([])
  })

  test('the name may depend on the arguments: equal names exclude each other, others do not', async () => {
    const locks = createLocks(memory())
    const seen: string[] = []
    const refresh = locks.wrap(
      (user: string, _part: number) => `refresh:${user}`,
      async (user, part) => {
        seen.push(`${user} ${part} begins`)
        await new Promise((resolve) => setTimeout(resolve, 5))
        seen.push(`${user} ${part} ends`)
        return names(locks)
      },
    )
    const held = await Promise.all([refresh('ada', 1), refresh('bob', 1), refresh('ada', 2)])
    expect(held[0]).toEqual(['refresh:ada', 'refresh:bob'])
    const ada = seen.filter((line) => line.startsWith('ada'))
    expect(ada).toEqual(['ada 1 begins', 'ada 1 ends', 'ada 2 begins', 'ada 2 ends'])
    expect(seen.slice(0, 2)).toEqual(['ada 1 begins', 'bob 1 begins'])
  })

  test('arguments and results are passed unchanged, promised or not', async () => {
    const locks = createLocks(memory())
    const thing = {}
    expect(await locks.wrap('name', (...args: unknown[]) => args)(1, thing, undefined)).toEqual([1, thing, undefined])
    expect(await locks.wrap('name', () => thing)()).toBe(thing)
    expect(await locks.wrap('name', async () => thing)()).toBe(thing)
    expect(await locks.wrap('name', () => {})()).toBeUndefined()
  })

  test('a call rejects with the error of the function, never throws, and the lock is free again', async () => {
    const locks = createLocks(memory())
    const own = new Error('mine')
    const throws = locks.wrap('name', () => {
      throw own
    })
    const rejects = locks.wrap('name', () => Promise.reject(own))
    for (const failing of [throws, rejects]) await expect(failing()).rejects.toBe(own)
    expect(await locks.tryAcquire('name')).not.toBeNull()
  })

  test('a name function that throws and an invalid name of a call reject as well', async () => {
    const locks = createLocks(memory())
    const own = new Error('mine')
    const nameless = locks.wrap(
      () => {
        throw own
      },
      () => 1,
    )
    await expect(nameless()).rejects.toBe(own)
    for (const bad of [undefined, 7, '', 'x'.repeat(256)]) {
      const call = locks.wrap((() => bad) as () => string, () => 1)()
      await expect(call).rejects.toMatchObject({ code: 'INVALID_OPTION', option: 'name' })
    }
  })

  test('an invalid name and bad options are refused when the function is wrapped', () => {
    const locks = createLocks(memory())
    expect(() => locks.wrap('name', () => 1, { ttl: 'soon' as never })).toThrow(InvalidOptionError)
    expect(() => locks.wrap('name', () => 1, { waitt: 1 } as never)).toThrow(/did you mean "wait"/)
    expect(() => locks.wrap('', () => 1)).toThrow(InvalidOptionError)
  })

  test('`this` is passed to the function and to the name function', async () => {
    const locks = createLocks(memory())
    const account = {
      id: 7,
      close: locks.wrap(
        function (this: unknown) {
          return `account:${(this as { id: number }).id}`
        },
        async function (this: unknown) {
          return [(this as { id: number }).id, await names(locks)]
        },
      ),
    }
    expect(await account.close()).toEqual([7, ['account:7']])
  })

  test('a wrapped function keeps the name of the function', () => {
    const locks = createLocks(memory())
    expect(locks.wrap('x', async function refresh() {}).name).toBe('refresh')
  })

  test('the options of withLock apply: mode, wait, signal, ttl', async () => {
    const locks = createLocks(memory())
    let inside = 0
    let most = 0
    const reader = locks.wrap(
      'page',
      async () => {
        most = Math.max(most, ++inside)
        await new Promise((resolve) => setTimeout(resolve, 5))
        inside--
      },
      { mode: 'shared' },
    )
    await Promise.all([reader(), reader(), reader()])
    expect(most).toBe(3)
    await using held = await locks.acquire('page')
    expect(held.isHeld).toBe(true)
    await expect(locks.wrap('page', () => 1, { wait: 0 })()).rejects.toBeInstanceOf(LockTimeoutError)
    const reason = new Error('enough')
    await expect(locks.wrap('page', () => 1, { signal: AbortSignal.abort(reason) })()).rejects.toBe(reason)
  })

  test('a recursive call is rejected at once instead of waiting for itself, and detached work may wait', async () => {
    const locks = createLocks(memory())
    const again = locks.wrap('name', (depth: number): Promise<number> | number => (depth === 0 ? 0 : again(depth - 1)))
    expect(await again(0)).toBe(0)
    await expect(again(1)).rejects.toBeInstanceOf(SelfDeadlockError)
    let later: Promise<string> | undefined
    const detached = locks.wrap('name', () => 'later', { nested: 'wait' })
    await locks.withLock('name', () => void (later = detached()))
    expect(await later).toBe('later')
  })

  test('a lock that is lost meanwhile rejects the call, although the function returned', async () => {
    const locks = createLocks(memory())
    const stolen = locks.wrap('name', async () => {
      await locks.forceRelease('name')
      return 'done'
    })
    await expect(stolen()).rejects.toBeInstanceOf(LockLostError)
  })

  test('bad arguments are reported when wrapping, before anything runs', () => {
    const locks = createLocks(memory())
    const option = (name: string): object => expect.objectContaining({ code: 'INVALID_OPTION', option: name })
    for (const fn of [undefined, null, 'text', {}]) {
      expect(() => locks.wrap('name', fn as never)).toThrow(option('fn'))
    }
    for (const name of [undefined, null, 7, {}, Symbol('name')]) {
      expect(() => locks.wrap(name as never, () => 1)).toThrow(option('name'))
    }
  })

  test('a wrapped function has the types of the function, in a promise', () => {
    const locks = createLocks(memory())
    const wrapped = locks.wrap(
      (user: string) => user,
      async (user: string, times: number) => ({ user, times }),
    )
    expectTypeOf(wrapped).toEqualTypeOf<(user: string, times: number) => Promise<{ user: string; times: number }>>()
    const plain = locks.wrap('name', (flag: boolean) => (flag ? 1 : 2))
    expectTypeOf(plain).toEqualTypeOf<(flag: boolean) => Promise<1 | 2>>()
    const inferred = locks.wrap(
      (user: string) => user,
      async (user) => user.length,
    )
    expectTypeOf(inferred).toEqualTypeOf<(user: string) => Promise<number>>()
    const ofNumbers = (user: number): string => `${user}`
    // @ts-expect-error the name is made of the arguments of the function
    locks.wrap(ofNumbers, (user: string) => user)
  })

  test('two instances on one SQLite file exclude each other', async () => {
    const fixture = await kinds.sqlite.open()
    const stores = [await fixture.store(), await fixture.store()]
    let inside = 0
    let most = 0
    const work = stores.map((store) =>
      createLocks(store).wrap('name', async () => {
        most = Math.max(most, ++inside)
        await new Promise((resolve) => setTimeout(resolve, 2))
        inside--
      }),
    )
    await Promise.all(Array.from({ length: 10 }, (_, i) => work[i % 2]?.()))
    expect(most).toBe(1)
    for (const store of stores) await store.close()
    await fixture.close()
  })
})
