import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { createLocks, type Store, UnsupportedError } from '../../../src/index.js'
import { idOfName } from '../../../src/stores/postgres-advisory/keys.js'
import { ask, claim, AdvisoryFixture, reader, until } from '../../../testbed/postgres-advisory/fixture.js'

let server: PostgresServer
let fixture: AdvisoryFixture

beforeAll(async () => {
  server = await startPostgres()
})
afterAll(() => server.stop())

beforeEach(async () => {
  fixture = new AdvisoryFixture(await server.createDatabase())
})
afterEach(() => fixture.close())

describe('fencing tokens', () => {
  test('a token is larger with every grant of a name, whether it was tried, waited for, or batched with others', async () => {
    const stores = Array.from({ length: 4 }, () => fixture.store())
    const names = ['x', 'y', 'z']
    const last = new Map<string, bigint>()
    const over = performance.now() + 1_500
    let grants = 0
    const note = (name: string, token: bigint): void => {
      expect(token).toBeGreaterThan(last.get(name) ?? 0n)
      last.set(name, token)
      grants++
    }
    const wait = async (store: Store, name: string): Promise<void> => {
      const wanted = claim(name, { blockMs: 2_000 })
      const answer = await ask(store, wanted)
      if (answer.granted !== true) return
      note(name, answer.token)
      await store.release([wanted])
    }
    const batch = async (store: Store): Promise<void> => {
      const wanted = names.map((name) => claim(name))
      const answers = await store.acquire(wanted)
      const held = wanted.filter((_, i) => answers[i]?.granted === true)
      for (const [i, answer] of answers.entries()) if (answer.granted === true) note(names[i] as string, answer.token)
      await store.release(held)
    }
    const work = async (store: Store, worker: number): Promise<void> => {
      // On a slow machine until there are enough grants to judge.
      while (performance.now() < over || grants <= 50) {
        if (worker % 2) await batch(store)
        else await wait(store, names[grants % 3] as string)
      }
    }
    await Promise.all([...stores, ...stores].map(work))
  })

  test('a token is drawn when the lock is granted, and not before', async () => {
    const [a, b] = [fixture.store(), fixture.store()]
    const held = claim('drawn')
    await ask(a, held)
    // This wait opens the session on which the next one stands in the queue.
    await ask(b, claim('drawn', { blockMs: 60 }))
    // No session draws while the sequence is being raised: one that drew first would now wait for that, and not for the lock.
    const { bits: raising } = idOfName('\0leasehold advisory raising')
    await fixture.query('SELECT pg_advisory_lock($1)', [raising])
    const together = [claim('drawn'), reader('drawn')]
    for (const answer of [...(await b.acquire(together)), await ask(b, claim('drawn'))])
      expect(answer.granted).toBe(false)
    const waiting = ask(b, claim('drawn', { blockMs: 20_000 }))
    const objid = (bits: string): string => String(BigInt.asUintN(32, BigInt(bits)))
    await until('the session waits for the lock', () =>
      fixture.count(`NOT granted AND objid = ${objid(idOfName('drawn').bits)}`),
    )
    expect(await fixture.count(`NOT granted AND objid = ${objid(raising)}`)).toBe(0)
    await fixture.query('SELECT pg_advisory_unlock($1)', [raising])
    await a.release([held])
    expect((await waiting).granted).toBe(true)
  })

  test('readers and writers of a name draw their tokens from one sequence', async () => {
    const store = fixture.store()
    const tokens: bigint[] = []
    for (const wanted of [claim('mixed'), reader('mixed'), reader('mixed'), claim('mixed')]) {
      const answer = await ask(store, wanted)
      if (answer.granted !== true) throw new Error('it was free')
      tokens.push(answer.token)
      await store.release([wanted])
    }
    expect([...tokens].sort((a, b) => Number(a - b))).toEqual(tokens)
    expect(new Set(tokens).size).toBe(4)
  })

  test('tokens never repeat, although the server is killed again and again and loses what it has not written yet', async () => {
    await using own = await startPostgres()
    const here = new AdvisoryFixture(own.url)
    const locks = createLocks(here.store(), { wait: '20s' })
    let last = 0n
    for (let round = 0; round < 4; round++) {
      for (let i = 0; i < 40; i++) {
        const lock = await locks.acquire('killed')
        expect(lock.fencingToken).toBeGreaterThan(last)
        last = lock.fencingToken
        await lock.release()
      }
      await own.kill()
      await own.restart()
    }
    await locks.close()
    await here.close()
  })

  test('tokens go on growing after the sequence itself was set back', async () => {
    const before = await createLocks(fixture.store()).acquire('set back')
    await before.release()
    await fixture.query("SELECT setval('leasehold_advisory_token', 1)")
    const after = await createLocks(fixture.store()).acquire('set back')
    expect(after.fencingToken).toBeGreaterThan(before.fencingToken)
  })

  test('a raise never sets the sequence back, also while other sessions draw tokens', async () => {
    const store = fixture.store()
    await ask(store, claim('first'))
    // As far ahead as if a clock had been wrong.
    const [row] = await fixture.query("SELECT setval('leasehold_advisory_token', 9000000000000000)::text AS at")
    const stores = Array.from({ length: 5 }, () => fixture.store())
    const answers = await Promise.all(stores.map((each, i) => ask(each, claim(`ahead:${i}`))))
    for (const answer of answers) {
      expect(answer.granted === true && answer.token).toBeGreaterThan(BigInt(row?.['at'] as string))
    }
    const tokens = answers.map((answer) => answer.granted === true && answer.token)
    expect(new Set(tokens).size).toBe(5)
  })
})

describe('the sequence', () => {
  test('the sequence is created once by many stores that start at the same moment', async () => {
    const stores = Array.from({ length: 12 }, () => fixture.store())
    const answers = await Promise.all(stores.map((store, i) => ask(store, claim(`start:${i}`))))
    const tokens = answers.map((answer) => (answer.granted === true ? answer.token : 0n))
    expect(tokens).not.toContain(0n)
    expect(new Set(tokens).size).toBe(12)
  })

  test('the error for a role that may not create the sequence says what to run, and that helps', async () => {
    const role = `limited_${Date.now()}`
    await fixture.query(`CREATE ROLE ${role} LOGIN`)
    await fixture.query('REVOKE CREATE ON SCHEMA public FROM PUBLIC')
    const limited = fixture.store({}, { connectionString: undefined, ...partsOf(fixture.url), user: role })
    const answer = await ask(limited, claim('limited'))
    const { message } = (answer as { error: Error }).error
    expect(message).toContain('CREATE SEQUENCE IF NOT EXISTS "public"."leasehold_advisory_token"')
    const advice = /Let its owner run: (.*)$/s.exec(message)?.[1]?.replace('<role>', role) as string
    await fixture.query(advice)
    expect((await ask(limited, claim('limited'))).granted).toBe(true)
  })

  test('the sequence may live in any schema', async () => {
    await fixture.query('CREATE SCHEMA "odd \'\'name"""')
    const store = fixture.store({ schema: "odd ''name\"" })
    expect((await ask(store, claim('anywhere'))).granted).toBe(true)
    const rows = await fixture.query(
      "SELECT schemaname FROM pg_sequences WHERE sequencename = 'leasehold_advisory_token'",
    )
    expect(rows).toEqual([{ schemaname: "odd ''name\"" }])
  })

  test('a sequence that hands out numbers in advance is refused with what to run', async () => {
    await fixture.query('CREATE SEQUENCE leasehold_advisory_token CACHE 10')
    const store = fixture.store()
    const answer = await ask(store, claim('cached'))
    const { error } = answer as unknown as { error: Error }
    expect(error).toBeInstanceOf(UnsupportedError)
    await fixture.query(/(ALTER SEQUENCE .*)$/.exec(error.message)?.[1] as string)
    expect((await ask(store, claim('cached'))).granted).toBe(true)
  })

  test('a sequence that was dropped meanwhile is created again', async () => {
    const store = fixture.store()
    const wanted = claim('dropped')
    const first = await ask(store, wanted)
    await store.release([wanted])
    await fixture.query('DROP SEQUENCE leasehold_advisory_token')
    const second = await until('the store works again', async () => {
      const answer = await ask(store, wanted)
      return answer.granted === true && answer
    })
    expect(second.token).toBeGreaterThan(first.granted === true ? first.token : 0n)
  })

  test('a lock that came with no token, because the sequence was dropped, is not kept by its session', async () => {
    const [holder, waiter] = [fixture.store(), fixture.store()]
    const [held, wanted] = [claim('dropped'), claim('dropped', { blockMs: 5_000 })]
    await ask(holder, held)
    const answer = ask(waiter, wanted)
    await until('it waits', async () => (await fixture.query('SELECT 1 FROM pg_locks WHERE NOT granted')).length > 0)
    // A session that is still being prepared would make the sequence anew.
    await until('no other statement runs', async () => {
      const others = `SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
        AND state <> 'idle' AND wait_event_type IS DISTINCT FROM 'Lock'`
      return (await fixture.query(others)).length === 0
    })
    await fixture.query('DROP SEQUENCE leasehold_advisory_token')
    await holder.release([held])
    expect((await answer).granted).toBe('unknown')
    await until('nobody has it', async () => {
      const locks = await fixture.query("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted")
      return locks.length === 0
    })
    await until('it is granted again', async () => (await ask(waiter, claim('dropped'))).granted === true)
  })
})

function partsOf(url: string): pg.PoolConfig {
  const { hostname, port, pathname } = new URL(url)
  return { host: hostname, port: Number(port), database: pathname.slice(1) }
}
