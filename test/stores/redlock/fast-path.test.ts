import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import { realWorld } from '../../../src/util/world.js'
import { RECORD, REVOKED, wakeupChannel } from '../../../src/stores/redlock/keys.js'
import { connectionOf, ScriptRunner } from '../../../src/stores/redlock/connection.js'
import { buildScripts, LuaNode } from '../../../src/stores/redlock/lua-node.js'
import type { NodeCallback, NodeRecord } from '../../../src/stores/redlock/node.js'
import { chance } from '../../../verify/simulation/redlock/timeline.js'

// A fast path must do what the long path does. Both get the same random operations, on one server under two prefixes: they
// must answer alike, leave the same keys behind, and publish the same messages.

const KEYS = ['lock:a', 'lock:b', 'lock:{c}']
const NEVER_MS = 600_000
const SHORT_MS = 25
const FAST_PATH = /\n-- fast path[^]*?\n-- end of the fast path\n/

let server: RedisServer
let subscriber: Redis
const published: string[] = []
let synced: (() => void) | undefined

beforeAll(async () => {
  server = await startRedis()
  subscriber = new Redis(server.url)
  subscriber.on('message', (channel: string, text: string) => {
    if (channel === 'sync') synced?.()
    else published.push(`${channel} ${channel === REVOKED ? (JSON.parse(text) as string[]).sort().join(' ') : text}`)
  })
  await subscriber.subscribe('sync', REVOKED, ...KEYS.map(wakeupChannel))
})
afterAll(async () => {
  subscriber.disconnect()
  await server.stop()
})

const ask = <T>(call: (done: NodeCallback<T>) => void): Promise<T> =>
  new Promise((resolve, reject) => {
    call((answer) => (answer instanceof Error ? reject(answer) : resolve(answer)))
  })

async function flush(): Promise<void> {
  const client = new Redis(server.url)
  await client.flushall()
  client.disconnect()
}

class Side {
  readonly client: Redis
  readonly node: LuaNode
  run = ''

  constructor(name: 'fast' | 'long') {
    this.client = new Redis(server.url, { keyPrefix: `${name}:` })
    const scripts = buildScripts((source) => (name === 'fast' ? source : source.replace(FAST_PATH, '\n')))
    this.node = new LuaNode(new ScriptRunner(connectionOf(this.client, 0), realWorld, 5_000), {
      nodes: 3,
      maxTtlMs: 0,
      scripts,
    })
  }

  async found(): Promise<void> {
    const { run, id } = await ask<NodeRecord>((done) => this.node.identify({ id: 'x', known: false }, done))
    this.run = run
    await ask((done) => this.node.admit({ as: 'founder', id, manifest: 'x' }, done))
  }

  /** What an operation answered and what it published, in order. */
  async do<T>(
    operation: (side: Side, done: NodeCallback<T>) => void,
  ): Promise<{ answer: unknown; published: string[] }> {
    published.length = 0
    const readers = await this.#readers()
    const answer = await ask<T>((done) => operation(this, done))
    for (const reader of await this.#readers()) readers.add(reader)
    const arrived = new Promise<void>((resolve) => (synced = resolve))
    await this.client.publish('sync', '')
    await arrived
    return { answer: comparable(answer, readers), published: withoutChoice(published) }
  }

  async #readers(): Promise<Set<string>> {
    const held = await Promise.all(KEYS.map((key) => this.client.zrange(`${RECORD}:readers:${key}`, '0', '-1')))
    return new Set(held.flat())
  }

  /** Everything that is kept, without what differs by when it was written. */
  async state(): Promise<unknown> {
    const record = await this.client.hgetall(RECORD)
    const kept: Record<string, unknown> = { counter: Math.max(Number(record['counter']), FIRST_TOKEN) }
    for (const key of KEYS) {
      kept[key] = await this.client.get(key).catch((error: Error) => error.message)
      const isShared = kept[key] === 'leasehold:shared'
      const entry = record[`:${key}`]?.replace(/^(\d+):\d+/, '$1')
      // What an earlier owner left is swept by chance.
      if (kept[key] !== null && !isShared && entry?.endsWith(kept[key] as string)) kept[`:${key}`] = entry
      // Readers whose plain key was deleted hold nothing, and are removed sooner or later.
      if (!isShared) continue
      kept[`readers ${key}`] = (await this.client.zrange(`${RECORD}:readers:${key}`, '0', '-1')).sort()
      const info = await this.client.hgetall(`${RECORD}:entries:${key}`)
      for (const [owner, text] of Object.entries(info)) kept[`${owner} ${key}`] = text.replace(/^(\d+):\d+/, '$1')
      // Before the first raise of a reader, the name may still have what a sweep by chance has left.
      if (Object.keys(info).length > 0) kept[`:${key}`] = entry
    }
    return kept
  }
}

/**
 * Where several readers are cut off, the one that ends last is named to those who watch. Which one that is may depend on a
 * millisecond.
 */
function withoutChoice(messages: readonly string[]): string[] {
  const revoked = messages
    .filter((message) => message.startsWith(`${REVOKED} `))
    .map((message) => message.split(' ').slice(2))
  const several = new Set(revoked.filter((owners) => owners.length > 1).flat())
  return messages.map((message) =>
    message.startsWith(`${REVOKED} `)
      ? message
      : message.replace(/\S+#abcdefgh/g, (owner) => (several.has(owner) ? 'one of them' : owner)),
  )
}

/** Times differ by as long as a question took. */
function comparable(answer: unknown, readers: ReadonlySet<string>): unknown {
  const text = JSON.stringify(answer, (name, value) => {
    if (name === 'micros') return undefined
    // Of readers, the one that ends first is named. Which one that is may depend on a millisecond; they share a token, or have none yet.
    const { owner, token } = (value ?? {}) as { owner?: string; token?: string }
    if (owner !== undefined && token !== undefined) return { token }
    if (name === 'owner' && readers.has(value as string)) return 'one of the readers'
    if (name === 'counter') return Math.max(value as number, FIRST_TOKEN)
    if (name === 'ttlMs') return typeof value === 'number' ? Math.round(value / 120_000) : value
    return typeof value === 'bigint' ? String(value) : value
  })
  return JSON.parse(text)
}

/** Ahead of the clock for as long as this lasts, so that a guess is judged alike on both sides. */
const FIRST_TOKEN = (Date.now() + 600_000) * 1_000

class Operations {
  readonly random: () => number
  token = FIRST_TOKEN
  owners = 0
  /** Some of the latest owners, and the key each asked for. */
  recent: { key: string; owner: string }[] = [{ key: 'lock:a', owner: 'nobody' }]
  pause = 0

  constructor(seed: number) {
    this.random = chance(seed)
  }

  next(): (side: Side, done: NodeCallback<unknown>) => void {
    const dice = this.random()
    if (dice < 0.45) return this.#vote()
    if (dice < 0.6) return this.#raise()
    if (dice < 0.7) return this.#renew()
    if (dice < 0.97) return this.#release()
    const key = this.pick(KEYS)
    if (dice < 0.98) return (side, done) => side.node.revoke(key, done as NodeCallback<unknown>)
    // Another program's hand in the store: a key deleted, or of another type.
    const wrong = dice < 0.985
    return (side, done) => {
      const work = side.client.del(key).then(() => (wrong ? side.client.rpush(key, 'x') : 0))
      work.then(() => side.client.pexpire(key, SHORT_MS)).then(() => done(0), done)
      this.pause = 2 * SHORT_MS
    }
  }

  pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.random() * from.length)] as T
  }

  #batch<T>(item: () => T): T[] {
    return Array.from({ length: this.random() < 0.6 ? 1 : 2 + Math.floor(this.random() * 3) }, item)
  }

  #vote(): (side: Side, done: NodeCallback<unknown>) => void {
    const plain = this.random() < 0.5
    const short = this.random() < 0.05
    if (short) this.pause = 2 * SHORT_MS
    const items = this.#batch(() => {
      const key = this.pick(KEYS)
      const owner = `o${this.owners++}#abcdefgh`
      this.recent = [...this.recent.slice(-3), { key, owner }]
      const [shared, steal] = plain ? [false, false] : [this.random() < 0.4, this.random() < 0.2]
      const value = plain || this.random() < 0.6 ? undefined : 'a:b=ü\n'
      return { key, owner, ttlMs: short ? SHORT_MS : NEVER_MS, shared, steal, announce: this.random() < 0.3, value }
    })
    const token = this.pick([0, this.token, ...[1, 3, 16].map((more) => this.token + more)])
    this.token = Math.max(this.token, token)
    return (side, done) =>
      side.node.vote({ run: side.run, items, token, notifyWaiters: true }, done as NodeCallback<unknown>)
  }

  #raise(): (side: Side, done: NodeCallback<unknown>) => void {
    const items = this.#batch(() => {
      this.token += Math.floor(this.random() * 3)
      const value = this.random() < 0.5 ? undefined : '{"n":1}'
      return { ...this.pick(this.recent), token: this.token, announce: this.random() < 0.3, value }
    })
    return (side, done) => side.node.raise(items, done as NodeCallback<unknown>)
  }

  #renew(): (side: Side, done: NodeCallback<unknown>) => void {
    const items = this.#batch(() => {
      const value = this.random() < 0.3 ? 'new' : undefined
      return { ...this.pick(this.recent), ttlMs: NEVER_MS, token: this.token, value, version: 2 }
    })
    return (side, done) => side.node.renew({ run: side.run, items }, done as NodeCallback<unknown>)
  }

  #release(): (side: Side, done: NodeCallback<unknown>) => void {
    const items = this.#batch(() => ({ ...this.pick(this.recent), quiet: this.random() < 0.3 }))
    return (side, done) => side.node.release(items, done as NodeCallback<unknown>)
  }
}

/** The first found that a release announced the end of an earlier owner's lease. */
const SEEDS = [963_081, Date.now() % 1_000_000]

test.each(SEEDS)('the fast paths of the scripts do what the long paths do (seed %i)', async (seed) => {
  await flush()
  const sides = [new Side('fast'), new Side('long')] as const
  for (const side of sides) await side.found()
  const operations = new Operations(seed)
  const limit = performance.now() + 3_000
  let done = 0
  // On a slow machine until there is enough to judge.
  for (; (performance.now() < limit || done <= 100) && done < 3_000; done++) {
    const operation = operations.next()
    const [fast, long] = [await sides[0].do(operation), await sides[1].do(operation)]
    expect(fast, `operation ${done}`).toEqual(long)
    if (operations.pause > 0) await sleep(operations.pause)
    operations.pause = 0
    if (done % 5 === 0) expect(await sides[0].state(), `after operation ${done}`).toEqual(await sides[1].state())
  }
  for (const { client } of sides) client.disconnect()
})
