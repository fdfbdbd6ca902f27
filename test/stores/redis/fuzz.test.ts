/**
 * The fast path of each script against its slow path: the same random operations on two servers, one of whose scripts have
 * no fast path. Every answer, every token, every view and every pushed grant has to be the same. The time of both servers is
 * injected, so that leases and queue entries end without anybody waiting for it.
 */
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startRedis } from '../../../testbed/servers/index.js'
import {
  ALL,
  type Answer,
  type Claim,
  type LeaseId,
  type Limit,
  type Renewal,
  type Renewed,
  type Store,
  type TakeRequest,
} from '../../../src/store.js'
import { adapterOf } from '../../../src/clients/redis/open.js'
import { embedded, type RedisScriptSources } from '../../../src/stores/redis/transport.js'
import { createRedisStore } from '../../../src/stores/redis/create.js'
import { ioredis } from '../../../testbed/redis/fixtures.js'

/** Longer by hand: FUZZ_MS=60000, and one run again: FUZZ_SEED=7. */
const BUDGET_MS = Number(process.env.FUZZ_MS ?? 10_000)
const STEPS = 150
/** Of the injected time, and so long that what passes of the real time meanwhile is nothing beside it. */
const UNIT_MS = 300_000
/** All times of a run are multiples of it, so rounding to it never hangs on the few milliseconds that really pass. */
const STEP_MS = UNIT_MS / 10
const BACK_MICROS = 5_000_000

/** Locks that batches take and release without a further wish: most of them have no state, so that batches are mixed. */
const CALM_KEYS = Array.from({ length: 8 }, (_, i) => `lock:calm:${i}`)
const KEYS = ['lock:a', 'lock:{b}', 'lock:c', 'semaphore:s', 'semaphore:t', 'run-once:o', ...CALM_KEYS]
const OWNERS = ['o1', 'o2', 'o3', 'o4', 'o5', 'o6']

/** Token buckets, of which all but the first refuse soon. The last two refuse always, and what costs more than 1. */
const BUCKETS: readonly Limit[] = [
  { algorithm: 'token-bucket', limit: 1_000_000, perMs: 60_000, burst: 1_000_000 },
  { algorithm: 'token-bucket', limit: 3, perMs: 2 * UNIT_MS, burst: 3 },
  { algorithm: 'token-bucket', limit: 7, perMs: 1.7 * UNIT_MS, burst: 2.5 },
  { algorithm: 'token-bucket', limit: 0, perMs: UNIT_MS, burst: 0 },
  { algorithm: 'token-bucket', limit: 0.1, perMs: UNIT_MS / 10, burst: 1 },
]
const LIMIT_SETS: readonly (readonly Limit[])[] = [
  ...BUCKETS.map((bucket) => [bucket]),
  [BUCKETS[1] as Limit, BUCKETS[2] as Limit],
  [{ algorithm: 'sliding-window', limit: 3, perMs: UNIT_MS, burst: 3 }],
]

/** The scripts, with a clock that is set by the test. */
function timed(sources: RedisScriptSources): RedisScriptSources {
  const clock = "{ redis.call('GET', 'fuzz:s'), redis.call('GET', 'fuzz:us') }"
  return Object.fromEntries(
    Object.entries(sources).map(([name, source]) => [
      name,
      source.replaceAll("redis.call('TIME')", clock).replaceAll("call('TIME')", clock),
    ]),
  ) as RedisScriptSources
}

function withoutFastPath(sources: RedisScriptSources): RedisScriptSources {
  const slow = (source: string): string => {
    const changed = source.replace('local FAST = true', 'local FAST = false')
    if (changed === source) throw new Error('there is no fast path to take away')
    return changed
  }
  const { acquire, renew, release, take } = sources
  return { ...sources, acquire: slow(acquire), renew: slow(renew), release: slow(release), take: slow(take) }
}

/** As if so much time had passed: what is left of every key grows shorter. */
const PASS = `
  for _, key in ipairs(redis.call('KEYS', '*')) do
    local left = redis.call('PTTL', key)
    if left > 0 then
      if left <= tonumber(ARGV[1]) then redis.call('DEL', key) else redis.call('PEXPIRE', key, left - ARGV[1]) end
    end
  end
  redis.call('SET', 'fuzz:s', ARGV[2])
  redis.call('SET', 'fuzz:us', ARGV[3])`

interface Side {
  command: (...args: string[]) => Promise<unknown>
  store: Store
  heard: string[]
}

const sides: Side[] = []
const ends: (() => unknown)[] = []
beforeAll(async () => {
  for (const sources of [timed(embedded), withoutFastPath(timed(embedded))]) {
    const server = await startRedis()
    await server.command('EVAL', PASS, '0', '0', '1700000000', '0')
    const { client, end } = ioredis[6](server.url)
    const admin = ioredis[6](server.url)
    const command = (...[name, ...args]: string[]): Promise<unknown> => admin.client.call(name as string, ...args)
    const store = createRedisStore(adapterOf(client), { timeout: '20s', listForeign: false }, sources)
    const side: Side = { command, store, heard: [] }
    for (const key of KEYS) {
      const watch = store.watch?.(key, (event) => {
        // How much is left of a grant depends on the moment at which it is read.
        if (event.type === 'granted') side.heard.push(`${key} granted ${event.owner} ${event.token}`)
        else if (event.type === 'freed') side.heard.push(`${key} freed ${event.owner}`)
      })
      expect(await watch?.ready).toBe(true)
    }
    sides.push(side)
    ends.push(
      () => store.close(),
      end,
      () => server.stop(),
    )
  }
})
afterAll(async () => {
  for (const end of ends) await end()
})

type Random = () => number
function mulberry(seed: number): Random {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}

class Run {
  readonly log: string[] = []
  readonly #random: Random
  /** The last token of each lease, as both sides said. */
  readonly #tokens = new Map<string, bigint>()
  /** The last token of an exclusive grant of each key. */
  readonly #newest = new Map<string, bigint>()
  /** Who was told to wait, as `key owner`, the last ones behind. */
  readonly #waiting = new Set<string>()
  /** When an index was lost. */
  #lostAt = 0
  /** Never goes back, also from one run to the next: the stores remember how far ahead of them their servers are. */
  static #micros = 1_700_000_000_000_000

  constructor(readonly seed: number) {
    this.#random = mulberry(seed * 7_919)
  }

  #pick<T>(items: readonly T[]): T {
    return items[Math.floor(this.#random() * items.length)] as T
  }

  #chance(share: number): boolean {
    return this.#random() < share
  }

  #some<T>(most: number, make: () => T): T[] {
    return Array.from({ length: this.#chance(0.7) ? 1 : 1 + Math.floor(this.#random() * most) }, make)
  }

  /** As many as a burst of one process has, nearly all of them exclusive and without a wish. */
  #burst(): Claim[] {
    return Array.from({ length: 2 + Math.floor(this.#random() * 12) }, () => {
      if (this.#chance(0.1)) return this.#claim()
      const queued = this.#chance(0.1) ? { queueMs: 15 * UNIT_MS } : {}
      const ttlMs = (this.#chance(0.1) ? 1 : 20) * UNIT_MS
      return { key: this.#pick(CALM_KEYS), owner: this.#pick(OWNERS), weight: ALL, capacity: ALL, ttlMs, ...queued }
    })
  }

  readonly #claim = (): Claim => {
    const key = this.#pick(KEYS)
    const counted = key.startsWith('semaphore')
    const shared = counted || this.#chance(0.25)
    const claim: Claim = {
      key,
      owner: (shared ? 'r' : '') + this.#pick(OWNERS),
      weight: counted ? 1 + Math.floor(this.#random() * 2) : shared ? 1 : ALL,
      capacity: counted ? 3 : ALL,
      ttlMs: (this.#chance(0.25) ? 1 : 20) * UNIT_MS,
    }
    if (this.#chance(0.6)) claim.queueMs = (this.#chance(0.25) ? 1 : 15) * UNIT_MS
    if (this.#chance(0.12)) claim.value = `"v${Math.floor(this.#random() * 9)}"`
    if (this.#chance(0.1)) claim.announce = true
    if (this.#chance(0.06)) claim.steal = true
    return claim
  }

  readonly #lease = (): LeaseId => {
    const recent = [...this.#tokens.keys()].slice(-16).map((lease) => lease.split(' ') as [string, string])
    const [key, owner] =
      this.#chance(0.7) && recent.length > 0
        ? this.#pick(recent)
        : [this.#pick(KEYS), this.#pick(['', 'r']) + this.#pick(OWNERS)]
    const token = this.#tokens.get(`${key} ${owner}`)
    if (token === undefined || this.#chance(0.4)) return { key, owner }
    return { key, owner, token: this.#chance(0.2) ? token - 1n : token }
  }

  /** The same on both sides, and what they said. */
  async #both<T>(what: string, act: (side: Side) => Promise<T> | T, show: (answer: T) => unknown): Promise<T> {
    const answers = await Promise.all(sides.map(async (side) => act(side)))
    const [fast, slow] = answers.map((answer) =>
      JSON.stringify(show(answer as T), (_, value) =>
        String(value) === '[object Object]' || Array.isArray(value) ? value : String(value),
      ),
    )
    this.log.push(`${what} → ${fast}`)
    if (fast !== slow) throw this.#fail(`fast and slow path differ: ${fast} and ${slow}`)
    return answers[0] as T
  }

  #fail(why: string): Error {
    return new Error(`seed ${this.seed}: ${why}\n${this.log.slice(-25).join('\n')}`)
  }

  async step(): Promise<void> {
    Run.#micros += 1_000 + Math.floor(this.#random() * 5_000)
    await this.#pass(0)
    const dice = this.#random()
    if (dice < 0.42) await this.#acquire()
    else if (dice < 0.66) await this.#release()
    else if (dice < 0.8) await this.#renew()
    else if (dice < 0.86) await this.#pass(this.#pick([0.3, 0.7, 2, 16]) * UNIT_MS)
    else if (dice < 0.87) await this.#heartbeats()
    else if (dice < 0.88) await this.#revoke()
    else if (dice < 0.9) await this.#interfere()
    else if (dice < 0.95) await this.#take()
    else await this.look()
  }

  async #pass(ms: number): Promise<void> {
    Run.#micros += ms * 1_000
    // Now and then the clock of both servers is set back for a moment. Not to before the loss of an index: then nothing is left
    // that could tell the last token.
    const isKnown = Run.#micros - BACK_MICROS > this.#lostAt
    const at = ms === 0 && this.#chance(0.05) && isKnown ? Run.#micros - BACK_MICROS : Run.#micros
    const [seconds, micros] = [Math.floor(at / 1e6), at % 1e6]
    await Promise.all(
      sides.map(({ command }) =>
        ms > 0
          ? command('EVAL', PASS, '0', String(ms), String(seconds), String(micros))
          : command('MSET', 'fuzz:s', String(seconds), 'fuzz:us', String(micros)),
      ),
    )
    if (ms > 0) this.log.push(`${ms} ms pass`)
  }

  async #acquire(): Promise<void> {
    const claims = this.#chance(0.3) ? this.#burst() : this.#some(5, this.#claim)
    const kinds = new Set(claims.map(({ key }) => key.split(':')[0]))
    const atomic = claims.length > 1 && kinds.size === 1 && this.#chance(0.4)
    const what = `acquire${atomic ? ' all of' : ''} ${JSON.stringify(claims)}`
    const answers = await this.#both(
      what,
      ({ store }) => store.acquire(claims, { atomic }),
      (all) => all.map(answerOf),
    )
    for (const [i, answer] of answers.entries()) {
      if (answer.granted === 'unknown') throw this.#fail(`undecided: ${String(answer.error)}`)
      const claim = claims[i] as Claim
      if (answer.granted) this.#granted(claim, answer.token)
      else if (claim.queueMs) {
        this.#waiting.delete(`${claim.key} ${claim.owner}`)
        this.#waiting.add(`${claim.key} ${claim.owner}`)
      }
    }
  }

  #granted({ key, owner, weight }: Pick<Claim, 'key' | 'owner' | 'weight'>, token: bigint): void {
    const lease = `${key} ${owner}`
    const before = this.#newest.get(key) ?? 0n
    if (weight === ALL && token !== this.#tokens.get(lease) && token <= before)
      throw this.#fail(`the token ${token} of ${lease} is not larger than ${before}`)
    this.#tokens.delete(lease)
    this.#tokens.set(lease, token)
    if (token > before) this.#newest.set(key, token)
  }

  async #release(): Promise<void> {
    const leases = this.#some(12, this.#lease)
    const answers = await this.#both(
      `release ${show(leases)}`,
      ({ store }) => store.release(leases),
      (all) => all.map(({ outcome }) => outcome),
    )
    if (answers.some(({ outcome }) => outcome === 'unknown')) throw this.#fail('a release is unknown')
  }

  async #renew(): Promise<void> {
    const [calm, sameMs] = [this.#chance(0.6), (this.#chance(0.3) ? 1 : 20) * UNIT_MS]
    // Never both in one call: an entry behind a lease that the same call renews would be told another time.
    const queued = this.#chance(0.5)
    const renewals = this.#some(12, (): Renewal => {
      const { key, owner, token } = this.#lease()
      // As a heartbeat: all of them want the same.
      if (calm) return queued ? { key, owner, ttlMs: sameMs, queued } : { key, owner, ttlMs: sameMs, token }
      const ttlMs = (this.#chance(0.3) ? 1 : 20) * UNIT_MS
      if (queued) return { key, owner, ttlMs, queued: true }
      return { key, owner, ttlMs, token, ...(this.#chance(0.2) ? { value: `"r${this.log.length}"` } : {}) }
    })
    await this.#renewAll(renewals)
  }

  async #renewAll(renewals: readonly Renewal[]): Promise<void> {
    const answers = await this.#both(
      `renew ${show(renewals)}`,
      ({ store }) => store.renew(renewals),
      (all) => all.map(renewedOf),
    )
    for (const [i, answer] of answers.entries()) {
      if (answer.outcome === 'unknown') throw this.#fail(`a renewal is unknown: ${String(answer.error)}`)
      const { key, owner } = renewals[i] as Renewal
      if (answer.outcome === 'granted')
        this.#granted({ key, owner, weight: owner.startsWith('r') ? 1 : ALL }, answer.token)
    }
  }

  /** Several in a row, so that queues grow old while somebody waits. Most entries are renewed in time. */
  async #heartbeats(): Promise<void> {
    const leases = [...this.#tokens].slice(-8).map(([lease, token]) => ({ ...identityOf(lease), token }))
    const entries = [...this.#waiting].slice(-8).map(identityOf)
    for (let i = 0; i < 5; i++) {
      await this.#pass(this.#pick([0.3, 0.7, 7, 16]) * UNIT_MS)
      const kept = leases.filter(() => this.#chance(0.9)).map((lease) => ({ ...lease, ttlMs: 20 * UNIT_MS }))
      const queued = entries
        .filter(() => this.#chance(0.9))
        .map((one) => ({ ...one, ttlMs: 15 * UNIT_MS, queued: true }))
      if (kept.length > 0) await this.#renewAll(kept)
      if (queued.length > 0) await this.#renewAll(queued)
    }
  }

  async #take(): Promise<void> {
    const [limits, cost] = [this.#pick(LIMIT_SETS), this.#pick([0, 1, 1, 1, 2, 0.3, 2.7])]
    const isMixed = this.#chance(0.2)
    const requests = this.#some(24, (): TakeRequest => {
      // Few keys, so that some are there twice.
      const key = `limiter:l:${Math.floor(this.#random() * 16)}`
      if (isMixed) return { key, limits: this.#pick(LIMIT_SETS), cost: this.#pick([0, 1, 2, -1]) }
      return { key, limits, cost }
    })
    if (this.#chance(0.05)) for (const request of requests) request.reset = true
    await this.#both(
      `take ${JSON.stringify(requests.map(({ key, cost: each }) => [key, each]))} of ${JSON.stringify(limits)}`,
      ({ store }) => store.take?.(requests) ?? [],
      (all) => all,
    )
  }

  async #revoke(): Promise<void> {
    const key = this.#pick(KEYS)
    await this.#both(
      `revoke ${key}`,
      ({ store }) => store.revoke?.(key) ?? [],
      (all) => all.map(({ owner }) => owner).sort(),
    )
  }

  /** Somebody else's lock, an accidental DEL, or an index that was lost. */
  async #interfere(): Promise<void> {
    const command = this.#pick([
      ['SET', 'lock:a', 'foreigner', 'NX', 'PX', String(2 * UNIT_MS)],
      ['SET', 'lock:a', 'foreigner', 'NX'],
      ['DEL', this.#pick(KEYS)],
      ['DEL', 'lock:a'],
      ['DEL', `leasehold:1:held:${this.#pick(['lock', 'semaphore'])}`],
    ])
    if (command[1]?.startsWith('leasehold:')) this.#lostAt = Run.#micros
    await this.#both(
      command.join(' '),
      (side) => side.command(...command),
      (reply) => reply,
    )
  }

  /** What is held and who waits, and that it is allowed. */
  async look(): Promise<void> {
    for (const key of KEYS) {
      const { holders } = await this.#both(
        `inspect ${key}`,
        ({ store }) => store.inspect?.(key) ?? { holders: [], waiters: [] },
        (view) => [
          view.holders
            .map((one) => [one.owner, one.weight, one.token, about(one.ttlMs), one.value, one.foreign])
            .sort(),
          view.waiters.map((one) => [one.owner, one.weight, one.value]),
        ],
      )
      const taken = holders.reduce((sum, { weight }) => sum + weight, 0)
      if (holders.length > 1 && taken > (key.startsWith('semaphore') ? 3 : ALL - 1))
        throw this.#fail(`too much of ${key} is held`)
      for (const { owner, token, weight } of holders)
        if (token !== undefined) this.#granted({ key, owner, weight }, token)
    }
  }
}

function identityOf(lease: string): { key: string; owner: string } {
  const [key, owner] = lease.split(' ') as [string, string]
  return { key, owner }
}

function about(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : Math.round(ms / STEP_MS)
}

function show(value: unknown): string {
  return JSON.stringify(value, (_, item: unknown) => (typeof item === 'bigint' ? String(item) : item))
}

function answerOf(answer: Answer): unknown {
  if (answer.granted === true) return ['granted', answer.token]
  if (answer.granted === 'unknown') return ['unknown', String(answer.error)]
  const { ahead, newest, blocker } = answer
  // One of several shares: which of those that end in the same moment is no matter.
  return ['refused', ahead, newest, about(blocker?.ttlMs), blocker?.value, blocker?.foreign, blocker?.owner]
}

function renewedOf(answer: Renewed): unknown {
  if (answer.outcome === 'granted') return ['granted', answer.token, about(answer.ttlMs)]
  if (answer.outcome === 'waiting') return ['waiting', answer.ahead, answer.newest, about(answer.blockedMs)]
  return answer.outcome
}

test('the fast paths decide exactly as the slow paths do', { timeout: BUDGET_MS + 180_000 }, async () => {
  const began = performance.now()
  const only = Number(process.env.FUZZ_SEED ?? 0)
  let runs = 0
  const isOver = (): boolean => (only ? runs > 0 : runs > 2 && performance.now() - began >= BUDGET_MS)
  for (let seed = only || 1; !isOver(); seed++, runs++) {
    for (const side of sides) {
      await side.command('FLUSHALL')
      side.heard.length = 0
    }
    const run = new Run(seed)
    for (let i = 0; i < STEPS; i++) await run.step()
    await run.look()
    const [fast, slow] = sides as [Side, Side]
    await expect
      .poll(() => [...fast.heard].sort(), { message: `seed ${seed}: pushed grants` })
      .toEqual([...slow.heard].sort())
  }
})
