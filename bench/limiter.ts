// Rate limiting on Redis beside rate-limiter-flexible: one key, 10,000 keys, and keys that are refused. Same server, same
// client library, taken in turns, so that a noisy machine is noisy for both: compare the ratios.
//
//   npm run bench -- limiter [--rounds 7]
import { createRequire } from 'node:module'
import { startRedis } from '../scripts/servers/index.js'
import { createLocks, redis, Redis } from './built.js'

/** The part of the peer that is used. Its package is installed beside this file only. */
interface Peer {
  RateLimiterRedis: new (options: object) => { consume(key: string): Promise<unknown> }
}

const { RateLimiterRedis } = createRequire(import.meta.url)('rate-limiter-flexible') as Peer

const at = process.argv.indexOf('--rounds')
const ROUNDS = at > 0 ? Number(process.argv[at + 1]) : 7
const ROUND_MS = 400
const IN_FLIGHT = 64

type Take = (key: string) => Promise<unknown>
type Contenders = Record<'leasehold' | 'rate-limiter-flexible', Take>

let seed = 1
/** Small and quick, and the same for both. */
function random(below: number): number {
  seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fffffff
  return seed % below
}

/** Takes a second with so many under way at all times. */
async function rate(take: Take, keys: readonly string[]): Promise<number> {
  const began = performance.now()
  let done = 0
  let over = false
  const worker = async (): Promise<void> => {
    while (!over) {
      await take(keys[random(keys.length)] as string)
      // Refused without a question, nothing gives way to timers: so the clock is looked at here.
      if (++done % 512 === 0) over = performance.now() - began > ROUND_MS
    }
  }
  await Promise.all(Array.from({ length: IN_FLIGHT }, worker))
  return (done / (performance.now() - began)) * 1_000
}

async function inTurns(contenders: Contenders, keys: readonly string[]): Promise<Record<string, number>> {
  const figures: Record<string, number[]> = {}
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [name, take] of Object.entries(contenders)) {
      const figure = await rate(take, keys)
      // The first round warms up.
      if (round > 0) (figures[name] ??= []).push(figure)
    }
  }
  return Object.fromEntries(
    Object.entries(figures).map(([name, all]) => [name, all.sort((a, b) => a - b)[all.length >> 1] as number]),
  )
}

async function compare(title: string, wanted: number, contenders: Contenders, keys: readonly string[]): Promise<void> {
  const figures = await inTurns(contenders, keys)
  const ours = figures['leasehold'] as number
  const peer = figures['rate-limiter-flexible'] as number
  console.log(`${title}, ${IN_FLIGHT} under way (asked for: ${wanted}x)`)
  for (const [name, figure] of Object.entries(figures)) {
    console.log(`  ${name.padEnd(24)}${figure.toFixed(0).padStart(10)} takes a second`)
  }
  console.log(`  ratio                   ${(ours / peer).toFixed(2).padStart(10)}`)
}

const ignore = (): void => {}

const keysOf = (count: number): string[] => Array.from({ length: count }, (_, i) => `user:${i}`)

const server = await startRedis()
const clients = [new Redis(server.url), new Redis(server.url)] as const
const locks = createLocks(redis(clients[0]))

/** Both allow `limit` in a minute. What the peer refuses, it throws. */
function contenders(name: string, limit: number, blocks: boolean): Contenders {
  const ours = locks.limiter(name, { limit, per: '1m' })
  const peer = new RateLimiterRedis({
    storeClient: clients[1],
    keyPrefix: name,
    points: limit,
    duration: 60,
    ...(blocks ? { inMemoryBlockOnConsumed: limit } : {}),
  })
  return {
    leasehold: (key) => ours.take(key),
    'rate-limiter-flexible': (key) => peer.consume(key).catch(ignore),
  }
}

await compare('one key, all allowed', 3, contenders('one', 1e8, false), keysOf(1))
await compare('10,000 keys, all allowed', 1.4, contenders('many', 1e6, false), keysOf(10_000))
await compare('100 keys, nearly all refused, blocked in memory', 5, contenders('refused', 100, true), keysOf(100))

await locks.close()
for (const client of clients) client.disconnect()
await server.stop()
