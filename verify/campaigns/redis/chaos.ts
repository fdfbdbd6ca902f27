import { createLocks, type Lock } from '../../../src/index.js'
import { redis } from '../../../src/stores/redis/index.js'
import type { Proving } from '../proving.js'
import { type Fault, NAMES, type RedisFixture } from './fixtures.js'

/** For so long after data was lost, two may believe that they hold the same: as long as it takes to notice. */
const NOTICED_WITHIN_MS = 1_000

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** Everything anybody saw. */
interface Witness {
  believers: Map<string, Set<Lock>>
  lastToken: Map<string, bigint>
  /** When data may last have been lost. */
  lossAt: number
  grants: number
  overlaps: number
  admitted: number
  repeated: number
  failures: number
}

async function contend(
  fixture: RedisFixture,
  witness: Witness,
  random: () => number,
  over: () => boolean,
): Promise<void> {
  const { client, end } = await fixture.connect()
  const store = redis(client)
  const locks = createLocks(store, { ttl: '3s', wait: '2s' })
  while (!over()) {
    const name = NAMES[Math.floor(random() * NAMES.length)] as string
    const lock = await locks.acquire(name).catch(() => undefined)
    if (!lock) {
      witness.failures++
      await sleep(random() * 20)
      continue
    }
    enter(witness, name, lock)
    for (const until = performance.now() + random() * 15; performance.now() < until && lock.isHeld; ) await sleep(1)
    witness.believers.get(name)?.delete(lock)
    await lock.release().catch(() => false)
  }
  await locks.close()
  await store.close()
  await end()
}

function enter(witness: Witness, name: string, lock: Lock): void {
  witness.grants++
  const believers = witness.believers.get(name) as Set<Lock>
  const now = performance.now()
  if ([...believers].some((other) => other.isHeld) && lock.isHeld) {
    if (now - witness.lossAt < NOTICED_WITHIN_MS + 5_000) witness.admitted++
    else witness.overlaps++
  }
  if (lock.fencingToken <= (witness.lastToken.get(name) ?? 0n)) witness.repeated++
  witness.lastToken.set(name, lock.fencingToken)
  believers.add(lock)
}

/** Several clients fight over a few names while one thing after the other goes wrong. */
export async function chaos(p: Proving, fixture: RedisFixture, seconds: number, random: () => number): Promise<void> {
  const witness: Witness = {
    believers: new Map(NAMES.map((name) => [name, new Set()])),
    lastToken: new Map(),
    lossAt: Number.NEGATIVE_INFINITY,
    grants: 0,
    overlaps: 0,
    admitted: 0,
    repeated: 0,
    failures: 0,
  }
  const endAt = performance.now() + seconds * 1_000
  const over = (): boolean => performance.now() > endAt
  const workers = Array.from({ length: 6 }, () => contend(fixture, witness, random, over))
  const struck = new Map<string, number>()
  let recovered = true
  let longest = 0
  for (let i = 0; !over(); i++) {
    await sleep(300 + random() * 500)
    const fault = (
      i < fixture.faults.length ? fixture.faults[i] : fixture.faults[Math.floor(random() * fixture.faults.length)]
    ) as Fault
    if (fault.loses) witness.lossAt = Number.POSITIVE_INFINITY
    await fault.strike().catch((error: unknown) => p.say(`${fault.name} could not be struck: ${String(error)}`))
    if (fault.loses) witness.lossAt = performance.now()
    struck.set(fault.name, (struck.get(fault.name) ?? 0) + 1)
    const before = witness.grants
    const struckAt = performance.now()
    while (witness.grants < before + 5 && performance.now() - struckAt < 15_000 && !over()) await sleep(5)
    if (witness.grants >= before + 5) longest = Math.max(longest, performance.now() - struckAt)
    else if (!over()) recovered = false
  }
  await Promise.all(workers)
  await fixture.stop()
  const faults = [...struck].map(([name, times]) => `${times} × ${name}`).join(', ')
  p.say(`${fixture.name}: ${faults}`)
  const figures = `${witness.grants} grants, ${witness.failures} attempts failed meanwhile`
  p.check(
    `${fixture.name}: no two holders where no data was lost`,
    witness.overlaps === 0,
    `${witness.overlaps} of ${figures}`,
  )
  p.check(
    `${fixture.name}: tokens never repeat nor fall`,
    witness.repeated === 0,
    `${witness.repeated} of ${witness.grants}`,
  )
  p.check(
    `${fixture.name}: everything recovers by itself`,
    recovered,
    `within ${longest.toFixed(0)} ms; ${witness.admitted} overlaps right after lost data`,
  )
}
