import { strict as assert } from 'node:assert'
import { mustRelease, tryAcquire } from '../store-calls.js'
import type { TestContext } from '../test-context.js'
import { type Case, needing } from '../case.js'
import type { Claim, Store } from '../../store.js'

/**
 * What is held in total, as the holders see it: added after the grant has arrived, subtracted before the release is
 * sent.
 */
interface HeldTotal {
  held: number
  most: number
  grants: number
}

/**
 * Acquires and releases for a while. A client that counts more than the capacity saw two holders that both believed to
 * hold.
 */
async function contend(
  t: TestContext,
  clients: readonly Store[],
  claimOf: (worker: number) => Claim,
  fits: (held: number) => boolean,
): Promise<HeldTotal> {
  const seen: HeldTotal = { held: 0, most: 0, grants: 0 }
  const over = t.now() + 600
  const work = async (worker: number): Promise<void> => {
    const client = clients[worker % clients.length] as Store
    // A minimum number of attempts, so that a slow machine tests something as well.
    for (let attempt = 0; attempt < 10 || (t.now() < over && attempt < 400); attempt++) {
      const claim = claimOf(worker)
      const lease = await tryAcquire(client, claim)
      if (!lease) {
        await t.sleep(Math.random() * 4)
        continue
      }
      seen.grants++
      seen.held += claim.weight
      seen.most = Math.max(seen.most, seen.held)
      assert.ok(fits(seen.held), `${seen.held} were held at once`)
      await t.sleep(Math.random() * 2)
      seen.held -= claim.weight
      await mustRelease(client, lease)
    }
  }
  await Promise.all(Array.from({ length: clients.length * 2 }, (_, worker) => work(worker)))
  assert.ok(seen.grants > 0, 'a client got it')
  return seen
}

const one: Case[] = [
  {
    name: 'under contention of several clients a lock never has two holders',
    async run(t) {
      const clients = await t.clients(4)
      const key = t.key()
      const whole = t.claim(key).weight
      await contend(
        t,
        clients,
        () => t.claim(key),
        (held) => held <= whole,
      )
    },
  },
  {
    name: 'under contention of several clients tokens grow with every grant of a lock',
    async run(t) {
      const clients = await t.clients(4)
      const key = t.key()
      const over = t.now() + 600
      let last = 0n
      const work = async (client: Store): Promise<void> => {
        for (let attempt = 0; attempt < 10 || (t.now() < over && attempt < 400); attempt++) {
          const lease = await tryAcquire(client, t.claim(key))
          if (!lease) {
            await t.sleep(Math.random() * 4)
            continue
          }
          assert.ok(lease.token > last, `token ${lease.token} came after ${last}`)
          last = lease.token
          await mustRelease(client, lease)
        }
      }
      await Promise.all(clients.map(work))
      assert.ok(last > 0n, 'a client got it')
    },
  },
  {
    name: 'under contention of several clients readers and writers never hold the key at the same time',
    async run(t) {
      const clients = await t.clients(4)
      const key = t.key()
      const whole = t.claim(key).weight
      // A reader weighs 1 and the lock everything, so a reader beside a lock exceeds the capacity by one.
      await contend(
        t,
        clients,
        (worker) => (worker % 3 === 0 ? t.claim(key) : t.reader(key)),
        (held) => held <= whole,
      )
    },
  },
]

const some: Case[] = [
  {
    name: 'under contention of several clients a semaphore never has more holders than its capacity',
    async run(t) {
      const clients = await t.clients(4)
      const key = t.key('', 'semaphore')
      const claimOf = (worker: number) => t.claim(key, { weight: 1 + (worker % 3), capacity: 5 })
      await contend(t, clients, claimOf, (held) => held <= 5)
    },
  },
]

export const contentionCases: Case[] = [...one, ...needing(['counting'], some)]
