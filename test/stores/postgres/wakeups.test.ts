/** Which store is notified of what, and which notifications it accepts. */
import { Client, Pool } from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { type PostgresServer, startPostgres } from '../../../testbed/servers/index.js'
import { createLocks, type Locks } from '../../../src/locks.js'
import { ALL, type Claim, type LeaseId, type Store, type StoreEvent } from '../../../src/store.js'
import { guardedWrite, migrate, type PostgresOptions } from '../../../src/stores/postgres/index.js'
import { mustBeBefore, unhurried } from '../../../src/testing/unhurried.js'
import { driverOf } from '../../../src/clients/postgres/open.js'
import { schemaNames } from '../../../src/stores/postgres/schema.js'
import { PostgresWakeups } from '../../../src/stores/postgres/wakeups.js'
import { type Library, storeAt } from '../../../testbed/postgres/fixture.js'

let server: PostgresServer
let pool: Pool

beforeAll(async () => {
  server = await startPostgres()
  pool = new Pool({ connectionString: server.url })
  await migrate(pool)
})

afterAll(async () => {
  await pool.end()
  await server.stop()
})

const closing: (() => Promise<unknown>)[] = []
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close()
})

function open(options: PostgresOptions = {}, library: Library = 'pg'): { store: Store; locks: Locks } {
  const store = storeAt(library, server.url, options)
  const locks = createLocks(store, { ttl: '30s', wait: '20s' })
  closing.push(
    () => store.close(),
    () => locks.close({ grace: 0 }),
  )
  return { store, locks }
}

async function listener(...channels: string[]): Promise<string[]> {
  const client = new Client(server.url)
  await client.connect()
  closing.push(() => client.end())
  const heard: string[] = []
  client.on('notification', ({ payload }) => heard.push(payload ?? ''))
  for (const channel of channels) await client.query(`listen "${channel}"`)
  return heard
}

let counter = 0
const newName = () => `wakeups-${++counter}`
const claimOf = (name: string, owner: string): Claim => ({
  key: `lock:${name}`,
  owner,
  weight: ALL,
  capacity: ALL,
  ttlMs: 60_000,
})
const waiting = (locks: Locks, name: string) =>
  expect.poll(async () => (await locks.waiters(name)).length, { interval: 5 }).toBe(1)

describe('a forged grant', () => {
  test('is not accepted from a role that may read the tables and connect', async () => {
    await server.psql(
      `create role looker login; grant select on leasehold_leases, leasehold_queue, distributed_locks to looker`,
    )
    const [a, b] = [open(), open()]
    const name = newName()
    const held = await a.locks.acquire(name)
    const next = b.locks.acquire(name)
    await waiting(a.locks, name)
    const looker = new Pool({ connectionString: server.url.replace('postgres@', 'looker@'), max: 1 })
    closing.push(() => looker.end())
    const { rows } = await looker.query('select * from leasehold_queue where key = $1', [`lock:${name}`])
    const { rows: channels } = await pool.query(`select pg_listening_channels()`)
    expect(channels).toEqual([])
    await expect(looker.query('select leasehold_channel($1)', [rows[0].subscriber])).rejects.toThrow(
      /permission denied/,
    )
    const found = await pool.query('select leasehold_channel($1) as channel', [rows[0].subscriber])
    expect(Object.values(rows[0]), 'no column that it can read is the channel').not.toContain(found.rows[0].channel)
    const { rows: activity } = await pool.query('select query from pg_stat_activity where query ~ $1', [
      `^listen.*${found.rows[0].channel}`,
    ])
    expect(activity, 'nor what the server shows of our connections').toEqual([])
    const forged = ['granted', rows[0].key, rows[0].owner, String(BigInt(Date.now()) * 1_000n + 1_000_000n), 30_000]
    for (const channel of [rows[0].subscriber, `leasehold_${rows[0].subscriber}`, (await commonChannel()) as string])
      await looker.query('select pg_notify($1, $2)', [channel, JSON.stringify(forged)])
    let granted = false
    void next.then(() => {
      granted = true
    })
    await new Promise((resolve) => setTimeout(resolve, 300))
    expect(granted).toBe(false)
    await held.release()
    expect((await next).fencingToken).toBeGreaterThan(held.fencingToken)
  })

  test('is not accepted if its token is more than a day ahead, and no resource is locked out by such a token', async () => {
    const { store } = open()
    const events: StoreEvent[] = []
    const name = newName()
    const watch = store.watch?.(`lock:${name}`, (event) => events.push(event))
    expect(await watch?.ready).toBe(true)
    await store.acquire([claimOf(name, 'holder')])
    await store.acquire([{ ...claimOf(name, 'waiter'), queueMs: 60_000 }])
    const [row] = (
      await pool.query('select leasehold_channel(subscriber) as c from leasehold_queue where key = $1', [
        `lock:${name}`,
      ])
    ).rows
    const soon = BigInt(Date.now()) * 1_000n
    for (const token of [2n ** 63n - 1n, soon + 2n * 86_400_000_000n, soon])
      await pool.query('select pg_notify($1, $2)', [
        row.c,
        JSON.stringify(['granted', `lock:${name}`, 'waiter', String(token), 1]),
      ])
    await expect.poll(() => events).toEqual([{ type: 'granted', owner: 'waiter', token: soon, ttlMs: 1, tokens: 32 }])
    const far = guardedWrite(pool, { resource: name, token: 2n ** 63n - 1n }, async () => {})
    await expect(far).rejects.toThrow(/more than a day ahead/)
    await guardedWrite(pool, { resource: name, token: soon }, async () => {})
  })

  async function commonChannel(): Promise<unknown> {
    const { rows } = await pool.query(
      `select substring(prosrc from 'leasehold_[0-9a-f]{16}') as c from pg_proc where proname = 'leasehold_notify'`,
    )
    return rows[0].c
  }

  test('a hand-off between stores that do not listen sends no notification', async () => {
    const heard = await listener((await commonChannel()) as string)
    const [a, b] = [open({ listen: false }), open({ listen: false })]
    const name = newName()
    for (let i = 0; i < 2; i++) {
      const held = await a.locks.acquire(name)
      const next = b.locks.acquire(name)
      await waiting(a.locks, name)
      await held.release()
      await (await next).release()
    }
    await pool.query('select pg_notify($1, $2)', [await commonChannel(), 'the end'])
    await expect.poll(() => heard).toEqual(['the end'])
  })
})

describe.each(['pg', 'postgres.js'] as Library[])('with %s', (library) => {
  test('a release sends its NOTIFY in a transaction after its own, and a waiter that receives nothing finds out by its heartbeat', async () => {
    const [a, b] = [open({}, library), open({}, library)]
    const name = newName()
    const held = await a.locks.acquire(name)
    const next = b.locks.acquire(name)
    await waiting(a.locks, name)
    const [row] = (
      await pool.query('select leasehold_channel(subscriber) as c from leasehold_queue where key = $1', [
        `lock:${name}`,
      ])
    ).rows
    const heard = await listener(row.c)
    const client = await pool.connect()
    await client.query('select leasehold_release_one($1, $2, null, true)', [`lock:${name}`, held.holder])
    expect((await next).fencingToken).toBeGreaterThan(held.fencingToken)
    expect(heard.filter((message) => message.startsWith('['))).toEqual([])
    // Old by now, and about a lease that was found without it.
    await new Promise((resolve) => setTimeout(resolve, 1_100))
    await client.query('select leasehold_flush()')
    await client.query(`select pg_notify($1, 'the end')`, [row.c])
    await expect.poll(() => heard).toContain('the end')
    expect(heard.filter((message) => message.startsWith('['))).toEqual([])
    // Without the notification, each takes until the heartbeat of the queue, a second after the waiter has entered it. On
    // a slow machine some do in any case.
    let [{ holder }, quickest] = [await next, Number.POSITIVE_INFINITY]
    for (let i = 0; i < 8 && quickest > 500; i++) {
      const then = a.locks.acquire(name)
      await waiting(a.locks, name)
      await client.query('select leasehold_release_one($1, $2, null, true)', [`lock:${name}`, holder])
      await client.query('select leasehold_flush()')
      const began = performance.now()
      ;({ holder } = await then)
      quickest = Math.min(quickest, performance.now() - began)
    }
    expect(quickest, 'it was notified').toBeLessThan(500)
    client.release()
  })

  test('a store is notified of each of its leases that another ends, and not of its own releases', async () => {
    const { store } = open({}, library)
    const other = open({}, library)
    const revoked: LeaseId[] = []
    const watch = store.watchRevoked?.((lease) => revoked.push(lease))
    expect(await watch?.ready).toBe(true)
    const ways: Record<string, (name: string, owner: string) => Promise<unknown>> = {
      revoke: async (name) => other.store.revoke?.(`lock:${name}`),
      steal: async (name) => other.store.acquire([{ ...claimOf(name, 'stealing'), steal: true }]),
      release_lock: (name, owner) => pool.query('select release_lock($1, $2)', [name, owner]),
      'delete from the view': (name) => pool.query('delete from distributed_locks where lock_name = $1', [name]),
      'delete from the table': (name) => pool.query('delete from leasehold_leases where key = $1', [`lock:${name}`]),
    }
    for (const [way, act] of Object.entries(ways)) {
      const name = `${newName()} ${way}`
      const [grant] = await store.acquire([claimOf(name, `owner ${way}`)])
      if (grant?.granted !== true) throw new Error('it was free')
      await act(name, `owner ${way}`)
      await expect
        .poll(() => revoked, { message: way })
        .toEqual([{ key: `lock:${name}`, owner: `owner ${way}`, token: grant.token }])
      revoked.length = 0
    }
    const name = newName()
    const [grant] = await store.acquire([claimOf(name, 'own')])
    await store.acquire([{ ...claimOf(name, 'second'), queueMs: 60_000 }])
    await store.release([{ ...claimOf(name, 'own'), token: grant?.granted ? (grant as { token: bigint }).token : 0n }])
    await store.release([claimOf(name, 'second')])
    await store.acquire([claimOf(name, 'last')])
    await other.store.revoke?.(`lock:${name}`)
    await expect.poll(() => revoked.map(({ owner }) => owner)).toEqual(['last'])
    watch?.close()
  })

  test('a holder whose lease is deleted in SQL knows at once, and the head of the queue holds it', async () => {
    const [a, b] = [open({}, library), open({}, library)]
    for (const sql of [
      'delete from distributed_locks where lock_name = $1',
      `delete from leasehold_leases where key = 'lock:' || $1`,
    ]) {
      const name = newName()
      const lock = await a.locks.acquire(name)
      const next = b.locks.acquire(name)
      await waiting(a.locks, name)
      const lost = new Promise((resolve) => lock.signal.addEventListener('abort', resolve, { once: true }))
      const began = performance.now()
      await pool.query(sql, [name])
      await lost
      // By its heartbeat the holder would find out after a third of the ttl, ten seconds.
      expect(performance.now() - began).toBeLessThan(8_000)
      expect((await next).fencingToken).toBeGreaterThan(lock.fencingToken)
    }
  })
})

describe('a batch', () => {
  test('answers each item by itself, also those that cannot be sent', async () => {
    const { store } = open()
    const [a, b] = [newName(), newName()]
    const bad = claimOf('nul \0', 'o')
    expect(
      await store.acquire([
        claimOf(a, 'o'),
        bad,
        claimOf(a, 'p'),
        { ...claimOf(b, 'o'), weight: 1, capacity: 3 },
        claimOf(a, 'o'),
      ]),
    ).toMatchObject([
      { granted: true },
      { granted: 'unknown', error: { code: 'INVALID_OPTION' } },
      { granted: false },
      { granted: true },
      { granted: true },
    ])
    expect(await store.renew([bad, claimOf(a, 'o'), claimOf(a, 'o')])).toMatchObject([
      { outcome: 'unknown' },
      { outcome: 'ours' },
      { outcome: 'ours' },
    ])
    expect(await store.release([claimOf(a, 'o'), bad, claimOf(a, 'o'), claimOf(b, 'o')])).toMatchObject([
      { outcome: 'released' },
      { outcome: 'unknown' },
      { outcome: 'gone' },
      { outcome: 'released' },
    ])
  })

  test('with an item that the server cannot read loses only that', async () => {
    const { store } = open()
    const name = newName()
    const huge = { ...claimOf(newName(), 'o'), weight: 2 ** 40 }
    expect(await store.acquire([claimOf(name, 'o'), huge])).toMatchObject([{ granted: true }, { granted: 'unknown' }])
  })

  test('may hold a steal beside its victim', async () => {
    const { store } = open()
    const name = newName()
    const [victim, stolen] = await store.acquire([
      claimOf(name, 'victim'),
      { ...claimOf(name, 'stealing'), steal: true },
    ])
    if (victim?.granted !== true || stolen?.granted !== true) throw new Error('both are granted')
    expect(stolen.token).toBeGreaterThan(victim.token)
    expect(await store.renew([claimOf(name, 'victim'), claimOf(name, 'stealing')])).toMatchObject([
      { outcome: 'gone' },
      { outcome: 'ours' },
    ])
  })
})

describe('queue entries', () => {
  test('are answered waiting, granted or gone by a renewal', async () => {
    const { store } = open()
    const name = newName()
    const entry = (owner: string) => ({ key: `lock:${name}`, owner, ttlMs: 60_000, queued: true })
    const [held] = await store.acquire([claimOf(name, 'holder')])
    if (held?.granted !== true) throw new Error('it was free')
    const [refused] = await store.acquire([{ ...claimOf(name, 'first'), queueMs: 60_000 }])
    expect(refused).toMatchObject({ granted: false, ahead: 0, newest: held.token })
    await store.acquire([{ ...claimOf(name, 'second'), queueMs: 60_000 }])
    const answers = await store.renew([entry('second'), entry('first'), entry('nobody'), entry('first')])
    expect(answers).toMatchObject([
      { outcome: 'waiting', ahead: 1 },
      { outcome: 'waiting', ahead: 0, newest: held.token, blockedMs: expect.closeTo(60_000, -4) },
      { outcome: 'gone' },
      { outcome: 'waiting', ahead: 0 },
    ])
    await store.release([{ ...claimOf(name, 'holder'), token: held.token }])
    const [granted, still] = await store.renew([entry('first'), entry('second')])
    expect(granted).toMatchObject({
      outcome: 'granted',
      token: expect.any(BigInt),
      ttlMs: expect.closeTo(60_000, -4),
    })
    expect(still).toMatchObject({ outcome: 'waiting', ahead: 0 })
    await pool.query(`update leasehold_leases set expires_at = clock_timestamp() where key = $1`, [`lock:${name}`])
    expect(await store.renew([entry('second')])).toMatchObject([{ outcome: 'waiting', ahead: 0, blockedMs: 0 }])
  })

  test('live by renewal only', async () => {
    const { store } = open()
    await unhurried(600, async (queueMs) => {
      const name = newName()
      await store.acquire([claimOf(name, 'holder')])
      for (const owner of ['renewed', 'silent']) await store.acquire([{ ...claimOf(name, owner), queueMs }])
      const until = performance.now() + 2 * queueMs
      let sentAt = performance.now()
      while (performance.now() < until) {
        await new Promise((resolve) => setTimeout(resolve, queueMs / 6))
        const lastAt = sentAt
        sentAt = performance.now()
        await store.renew([{ key: `lock:${name}`, owner: 'renewed', ttlMs: queueMs, queued: true }])
        mustBeBefore(lastAt + queueMs)
      }
      const seen = await store.inspect?.(`lock:${name}`)
      mustBeBefore(sentAt + queueMs)
      expect(seen?.waiters.map(({ owner }) => owner)).toEqual(['renewed'])
    })
  })

  test('of one owner under several keys are renewed each for its own time, and no other of that owner', async () => {
    const { store } = open()
    const names = [newName(), newName(), newName(), newName()]
    for (const name of names) {
      await store.acquire([claimOf(name, 'holder')])
      await store.acquire([{ ...claimOf(name, 'waiter'), queueMs: 20_000 }])
      await store.acquire([{ ...claimOf(name, `behind in ${name}`), queueMs: 20_000 }])
    }
    const entry = (n: number, owner: string, ttlMs: number) => ({ key: `lock:${names[n]}`, owner, ttlMs, queued: true })
    const answers = await store.renew([
      entry(0, 'waiter', 60_000),
      entry(1, `behind in ${names[0]}`, 60_000),
      entry(1, 'waiter', 60_000),
      entry(2, 'waiter', 90_000),
      entry(2, `behind in ${names[2]}`, 60_000),
    ])
    expect(answers).toMatchObject([
      { outcome: 'waiting', ahead: 0 },
      { outcome: 'gone' },
      { outcome: 'waiting', ahead: 0 },
      { outcome: 'waiting', ahead: 0 },
      { outcome: 'waiting', ahead: 1 },
    ])
    const { rows } = await pool.query(
      `select owner, round(date_part('epoch', expires_at - clock_timestamp()) / 10) * 10 as s from leasehold_queue
       where key = any ($1) order by key, arrival`,
      [names.map((name) => `lock:${name}`)],
    )
    expect(rows.map(({ s }) => s)).toEqual([60, 20, 60, 20, 90, 60, 20, 20])
  })

  test('are renewed beside one that another transaction is writing to, which is answered and left as it is', async () => {
    const { store } = open()
    const name = newName()
    const entry = (owner: string) => ({ key: `lock:${name}`, owner, ttlMs: 60_000, queued: true })
    await store.acquire([claimOf(name, 'holder')])
    for (const owner of ['first', 'second']) await store.acquire([{ ...claimOf(name, owner), queueMs: 20_000 }])
    const client = await pool.connect()
    await client.query('begin')
    await client.query(`select from leasehold_queue where key = $1 and owner = 'first' for update`, [`lock:${name}`])
    const answers = await store.renew([entry('first'), entry('second'), entry('nobody')])
    await client.query('rollback')
    client.release()
    expect(answers).toMatchObject([
      { outcome: 'waiting', ahead: 0 },
      { outcome: 'waiting', ahead: 1 },
      { outcome: 'gone' },
    ])
    const { rows } = await pool.query(
      `select owner, expires_at - clock_timestamp() > interval '30 s' as renewed from leasehold_queue where key = $1 order by owner`,
      [`lock:${name}`],
    )
    expect(rows).toEqual([
      { owner: 'first', renewed: false },
      { owner: 'second', renewed: true },
    ])
  })

  test('are renewed while an open transaction decides about their key', async () => {
    const { store } = open()
    const name = newName()
    await store.acquire([claimOf(name, 'holder')])
    await store.acquire([{ ...claimOf(name, 'first'), queueMs: 60_000 }])
    const client = await pool.connect()
    await client.query('begin')
    await client.query(`select acquire_lock($1, 'python')`, [name])
    // A renewal that waited for the transaction would not be answered before the timeout of the store.
    expect(await store.renew([{ key: `lock:${name}`, owner: 'first', ttlMs: 60_000, queued: true }])).toMatchObject([
      { outcome: 'waiting', ahead: 0 },
    ])
    await client.query('rollback')
    client.release()
  })
})

describe('probes', () => {
  /** Wake-ups with a connection of their own. `before`: what each probe waits for. */
  function wakeupsOf(probeEveryMs: number, before: () => Promise<unknown> = async () => {}): PostgresWakeups {
    const own = new Pool({ connectionString: server.url, max: 1 })
    const host = {
      channelOf: async (subscriber: string) =>
        (await pool.query('select leasehold_channel($1) as c', [subscriber])).rows[0].c,
      probe: async (subscriber: string | undefined, n: number) => {
        await before()
        await pool.query('select leasehold_probe($1, $2)', [subscriber, n])
      },
      onBack: () => {},
    }
    const wakeups = new PostgresWakeups(driverOf(own), schemaNames('public').channel, 3_000, host, probeEveryMs)
    closing.push(
      () => own.end(),
      () => wakeups.close(),
    )
    return wakeups
  }

  test('that a busy server takes late do not make a store give up its listening connection', async () => {
    const wakeups = wakeupsOf(10_000, () => pool.query('select pg_sleep(1.5)'))
    const listeners = async (): Promise<number[]> =>
      (
        await pool.query(`select pid from pg_stat_activity where query = 'SELECT 1' and state = 'idle' order by pid`)
      ).rows.map(({ pid }) => pid)
    const before = new Set(await listeners())
    const { ready } = wakeups.watch('lock:late', () => {})
    await expect.poll(async () => (await listeners()).filter((pid) => !before.has(pid))).toHaveLength(1)
    const opened = (await listeners()).filter((pid) => !before.has(pid))
    expect(await ready).toBe(true)
    expect(await listeners()).toEqual(expect.arrayContaining(opened))
  })

  test('that fail are sent again, and events arrive as soon as one does', async () => {
    let failures = 2
    const wakeups = wakeupsOf(10_000, async () => {
      if (failures-- > 0) throw new Error('no connection')
    })
    const watch = wakeups.watch('lock:failing', () => {})
    await expect.poll(() => watch.live(), { timeout: 8_000 }).toBe(true)
    expect(failures).toBe(-1)
  })

  test('of one store serve all that listen', async () => {
    const channel = schemaNames('public').channel
    const all = Array.from({ length: 8 }, () => wakeupsOf(500))
    const watches = all.map((wakeups) => wakeups.watch('lock:probed', () => {}))
    for (const { ready } of watches) expect(await ready).toBe(true)
    const heard = await listener(channel)
    const began = performance.now()
    await expect.poll(() => heard.length, { timeout: 20_000 }).toBeGreaterThanOrEqual(10)
    // Each by itself, 8 stores send 10 probes in two pauses.
    expect(performance.now() - began).toBeGreaterThan(4 * 400)
    expect(watches.map(({ live }) => live())).toEqual(watches.map(() => true))
  })

  test('to all stores prove nothing to one whose own has not arrived', async () => {
    const channel = schemaNames('public').channel
    const own = new Pool({ connectionString: server.url, max: 1 })
    const host = { channelOf: async () => 'leasehold_of_nobody', probe: async () => {}, onBack: () => {} }
    const wakeups = new PostgresWakeups(driverOf(own), channel, 500, host)
    closing.push(
      () => own.end(),
      () => wakeups.close(),
    )
    const changes: StoreEvent[] = []
    const watch = wakeups.watch('lock:unproven', (event) => changes.push(event))
    await expect
      .poll(async () => {
        await pool.query('select leasehold_probe(null, 1)')
        await pool.query('select pg_notify($1, $2)', [channel, JSON.stringify(['changed', 'lock:unproven'])])
        return changes.length
      })
      .toBeGreaterThan(0)
    expect(watch.live()).toBe(false)
  })
})

describe('a token', () => {
  test('names one grant of an owner: releases and renewals of another touch nothing', async () => {
    const { store } = open()
    const name = newName()
    const [grant] = await store.acquire([{ ...claimOf(name, 'o'), value: '"first"' }])
    if (grant?.granted !== true) throw new Error('it was free')
    const other = { ...claimOf(name, 'o'), token: grant.token - 1n }
    expect(await store.renew([other])).toEqual([{ outcome: 'gone' }])
    expect(await store.release([other])).toEqual([{ outcome: 'gone' }])
    expect(await store.acquire([{ ...claimOf(name, 'o'), value: '"late"' }])).toMatchObject([{ token: grant.token }])
    expect((await store.inspect?.(`lock:${name}`))?.holders).toMatchObject([{ owner: 'o', value: '"first"' }])
    await store.acquire([{ ...claimOf(name, 'queued'), queueMs: 60_000 }])
    expect(await store.release([{ ...claimOf(name, 'queued'), token: 1n }]), 'no queue entry').toEqual([
      { outcome: 'gone' },
    ])
    expect((await store.inspect?.(`lock:${name}`))?.waiters).toHaveLength(1)
    expect(await store.renew([{ ...other, token: grant.token }])).toMatchObject([{ outcome: 'ours' }])
    expect(await store.release([{ ...other, token: grant.token }])).toEqual([{ outcome: 'released' }])
  })
})
