import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type RedisServer, startRedis } from '../../../testbed/servers/index.js'
import { realWorld } from '../../../src/util/world.js'
import { connectionOf, ScriptRunner } from '../../../src/stores/redlock/connection.js'
import { LuaNode } from '../../../src/stores/redlock/lua-node.js'
import type { Admission, NodeCallback, NodeView, NodePage, NodeRevoked } from '../../../src/stores/redlock/node.js'
import { ModelNode } from '../../../verify/simulation/redlock/model-node.js'
import { chance } from '../../../verify/simulation/redlock/timeline.js'

// The simulation is worth as much as its nodes are like real ones. Both get the same random requests here.

const KEYS = ['lock:a', 'lock:b', 'lock:{c}']
const OWNERS = ['x#aaaaaaaa', 'y#bbbbbbbb', 'z#cccccccc', 'w#dddddddd']
const NEVER_MS = 600_000
const SHORT_MS = 30
const SIZE = 5

let server: RedisServer
let client: Redis
let real: LuaNode

beforeAll(async () => {
  server = await startRedis()
  client = new Redis(server.url, { keyPrefix: 'some:prefix:' })
  client.on('error', () => {})
  real = new LuaNode(new ScriptRunner(connectionOf(client, 0), realWorld, 5_000), { nodes: SIZE, maxTtlMs: 0 })
})

afterAll(async () => {
  client.disconnect()
  await server.stop()
})

const ask = <T>(call: (done: NodeCallback<T>) => void): Promise<T> =>
  new Promise((resolve, reject) => {
    call((answer) => (answer instanceof Error ? reject(answer) : resolve(answer)))
  })

/**
 * Removes entries of names that are not held, as the scripts do now and then, by chance. Every attempt has an owner of its
 * own, so only in this test could an owner find its old entry again.
 */
async function sweep(): Promise<void> {
  for (const key of KEYS) if ((await client.exists(key)) === 0) await client.hdel('leasehold:redlock', `:${key}`)
}

/** Times differ by as long as the request took. Everything else must not. */
function withoutTimes(answer: unknown): unknown {
  const text = JSON.stringify(answer, (name, value) => {
    if (name === 'micros') return undefined
    if (name === 'ttlMs' || name === 'ageMs') return typeof value === 'number' ? Math.round(value / 120_000) : value
    return typeof value === 'bigint' ? `${value}n` : value
  })
  return JSON.parse(text)
}

/** Random requests, each sent to the server and to the model. */
class Conversation {
  readonly random: () => number
  /** The model's clock stands still during a request, as a script's does. */
  now = Date.now()
  readonly model = new ModelNode({
    name: 'model',
    size: SIZE,
    maxTtlMs: 0,
    clock: () => this.now,
    micros: () => this.micros,
  })
  /** The model's clock, as far as tokens are concerned. */
  micros = Date.now() * 1_000
  /** As they were when last identified: they may have restarted since. */
  realRun = 'nobody'
  modelRun = 'nobody'
  ids = 0
  lastId = ''
  last = { key: '', owner: '' }
  /** Ahead of the clocks for as long as this lasts, so that only counters decide. */
  token = (Date.now() + 60_000) * 1_000
  pause = 0
  raised = 0
  foreseen = 0
  stolen = 0

  constructor(seed: number) {
    this.random = chance(seed)
  }

  pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.random() * from.length)] as T
  }

  async step(): Promise<[asked: string, real: unknown, model: unknown]> {
    const dice = this.random()
    this.now = Date.now()
    // A node that sits out for most of the time is asked little.
    if (!this.model.votes && this.random() < 0.4) return dice < 0.5 ? this.#identify() : this.#admit()
    if (dice < 0.4) return this.#vote()
    if (dice < 0.5) return this.#raise()
    if (dice < 0.58) return this.#renew()
    if (dice < 0.76) return this.#release()
    if (dice < 0.78) return this.#revoke()
    if (dice < 0.8) return this.#inspect()
    if (dice < 0.86) return this.#identify()
    if (dice < 0.96) return this.#admit()
    return this.#disturb()
  }

  #runs(): [string, string] {
    return this.random() < 0.95 ? [this.realRun, this.modelRun] : ['somebody else', 'somebody else']
  }

  /** Mostly the last owner: nearly all others would be answered that the key is not theirs. */
  #somebody(): { key: string; owner: string } {
    return this.random() < 0.8 ? this.last : { key: this.pick(KEYS), owner: this.pick(OWNERS) }
  }

  /** One batch. With three keys, a key is often in it twice. */
  #batch<T>(item: () => T): T[] {
    return Array.from({ length: this.random() < 0.5 ? 1 : 2 + Math.floor(this.random() * 4) }, item)
  }

  #value(): string | undefined {
    return this.random() < 0.5 ? JSON.stringify({ n: this.token, text: 'a:b=c\n' }) : undefined
  }

  async #vote(): Promise<[string, unknown, unknown]> {
    const short = this.random() < 0.05
    if (short) this.pause = 2 * SHORT_MS
    const ttlMs = short ? SHORT_MS : NEVER_MS
    const item = () => {
      const [shared, steal] = [this.random() < 0.35, this.random() < 0.2]
      const announce = this.random() < 0.1
      return { key: this.pick(KEYS), owner: this.pick(OWNERS), ttlMs, shared, steal, announce, value: this.#value() }
    }
    const items = this.#batch(item)
    const { key, owner } = this.pick(items)
    this.last = { key, owner }
    const [run, modelRun] = this.#runs()
    const token = this.pick([
      0,
      Date.now() * 1_000 - 5_000_000,
      this.token,
      ...[1, 1, 4, 5, 7, 16].map((n) => this.token + n),
    ])
    this.token = Math.max(this.token, token)
    const answer = await ask<object>((done) =>
      real.vote({ run, items, token, notifyWaiters: this.random() < 0.5 }, done),
    )
    const model = this.model.vote({ run: modelRun, items, token, notifyWaiters: false })
    if (model.items.includes('raised')) this.foreseen++
    const raised = items.filter((_, i) => model.items[i] === 'raised').map(({ key }) => key)
    if (items.some(({ key, steal }, i) => steal && model.items[i] === 'held' && raised.includes(key))) this.stolen++
    return [`vote ${token} ${JSON.stringify(items)}`, answer, model]
  }

  async #raise(): Promise<[string, unknown, unknown]> {
    const items = this.#batch(() => {
      this.token += Math.floor(this.random() * 3)
      return { ...this.#somebody(), token: this.token, announce: this.random() < 0.1, value: this.#value() }
    })
    const answer = await ask<unknown>((done) => real.raise(items, done))
    const model = this.model.raise(items)
    if (model[0] === true) this.raised++
    return [`raise ${JSON.stringify(items)}`, answer, model]
  }

  async #renew(): Promise<[string, unknown, unknown]> {
    const items = this.#batch(() => {
      const value = this.random() < 0.3 ? JSON.stringify(this.token) : undefined
      const version = 1 + Math.floor(this.random() * 4)
      return { ...this.#somebody(), ttlMs: NEVER_MS, token: this.token, value, version }
    })
    const [run, modelRun] = this.#runs()
    const answer = await ask<object>((done) => real.renew({ run, items }, done))
    return [`renew ${JSON.stringify(items)}`, answer, this.model.renew({ run: modelRun, items })]
  }

  async #release(): Promise<[string, unknown, unknown]> {
    const items = this.#batch(() => ({ ...this.#somebody(), quiet: this.random() < 0.5 }))
    const answer = await ask<unknown>((done) => real.release(items, done))
    return [`release ${JSON.stringify(items)}`, answer, this.model.release(items)]
  }

  async #revoke(): Promise<[string, unknown, unknown]> {
    const key = this.pick(KEYS)
    const answer = await ask<NodeRevoked>((done) => real.revoke(key, done))
    const model = this.model.revoke(key)
    // Who of the readers comes first says nothing.
    const plain = ({ shared, owners }: NodeRevoked): unknown => [shared, [...owners].sort()]
    return [`revoke ${key}`, plain(answer), plain(model)]
  }

  async #inspect(): Promise<[string, unknown, unknown]> {
    const key = this.pick(KEYS)
    const { views } = await ask<NodePage>((done) => real.inspect(key, undefined, done))
    const facts = (view: NodeView): string => `${view.owner} ${view.shared} ${view.token} ${view.value}`
    return [`inspect ${key}`, views.map(facts).sort(), this.model.inspect(key).map(facts).sort()]
  }

  async #identify(): Promise<[string, unknown, unknown]> {
    const request = { id: `id-${this.ids++}`, known: this.random() < 0.3 }
    const answer = await ask<{ run: string; id: string }>((done) => real.identify(request, done))
    const model = this.model.identify(request)
    this.realRun = answer.run
    this.modelRun = model.run
    this.lastId = answer.id
    return ['identify', { ...answer, run: undefined }, { ...model, run: undefined }]
  }

  async #admit(): Promise<[string, unknown, unknown]> {
    const id = this.random() < 0.9 ? this.lastId : 'another'
    const longestMs = this.random() < 0.8 ? 1 : NEVER_MS
    const admission = this.pick<Admission>([
      { as: 'founder', id, manifest: `${id} others` },
      ...[1, 5].map((n) => ({
        as: 'returner' as const,
        id,
        counter: this.token + Math.floor(this.random() * n) - 2,
        longestMs,
      })),
      { as: 'loser', id },
    ])
    // One that may return after a millisecond must have sat out for one.
    await sleep(2)
    const answer = await ask<boolean>((done) => real.admit(admission, done))
    // A founder's counter begins a second ahead of its clock: of this very moment, also in the model.
    const counter = Number(await client.hget('leasehold:redlock', 'counter'))
    if (Math.abs(counter / 1_000 - Date.now()) < 1_100) this.micros = counter - 1_000_000
    return [`admit ${JSON.stringify(admission)}`, answer, this.model.admit(admission)]
  }

  /** What happens to a server: emptied, restarted, keys deleted or taken by somebody else. */
  async #disturb(): Promise<[string, unknown, unknown]> {
    const dice = this.random()
    const key = this.pick(KEYS)
    if (dice < 0.05) {
      await client.flushall()
      this.model.flush()
      return ['flush', 0, 0]
    }
    if (dice < 0.09) {
      const keepData = this.random() < 0.5
      await server.restart({ keepData })
      await client.ping()
      this.model.restart(keepData ? this.model.snapshot() : undefined)
      return [`restart ${keepData}`, 0, 0]
    }
    if (dice < 0.8) {
      await client.del(key)
      await sweep()
      this.model.expire(key)
      return [`del ${key}`, 0, 0]
    }
    const set = await client.set(key, 'somebody', 'PX', NEVER_MS, 'NX')
    return [`foreign ${key}`, set === 'OK', this.model.takeAsForeigner(key, 'somebody', NEVER_MS)]
  }
}

test.each([1, 2])('a model node answers every request as the Lua on a server does (seed %i)', async (seed) => {
  await client.flushall()
  const conversation = new Conversation(seed)
  const log: string[] = []
  for (let i = 0; i < 800; i++) {
    const [asked, said, expected] = await conversation.step()
    log.push(asked)
    expect(withoutTimes(said), `step ${i}, after\n${log.slice(-12).join('\n')}\n`).toEqual(withoutTimes(expected))
    // Redis counts whole milliseconds: who came last among readers must not depend on rounding.
    await sleep(Math.max(conversation.pause, 2))
    if (conversation.pause > 0) await sweep()
    conversation.pause = 0
  }
  expect(conversation.raised, 'tokens raised').toBeGreaterThan(10)
  expect(conversation.foreseen, 'tokens guessed').toBeGreaterThan(3)
  expect(conversation.stolen, 'steals in one batch with a victim that was raised').toBeGreaterThan(3)
})
