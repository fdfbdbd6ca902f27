import { strict as assert } from 'node:assert'
import { letGo, tried } from '../ask.js'
import type { Bench } from '../bench.js'
import { type Case, needing } from '../case.js'
import type { Claim, Store } from '../../store.js'

/** What is held in all, as seen by those who hold it: counted after the grant was heard, given back before it is let go. */
interface Crowd {
  held: number
  most: number
  grants: number
}

/** Asks and lets go for a while. Whoever counts more than fits saw two who both believed that they held it. */
async function crowd(
  t: Bench,
  clients: readonly Store[],
  claimOf: (worker: number) => Claim,
  fits: (held: number) => boolean,
): Promise<Crowd> {
  const seen: Crowd = { held: 0, most: 0, grants: 0 }
  const over = t.now() + 600
  const work = async (worker: number): Promise<void> => {
    const client = clients[worker % clients.length] as Store
    // At least so many attempts, also on a slow machine.
    for (let attempt = 0; attempt < 10 || (t.now() < over && attempt < 400); attempt++) {
      const claim = claimOf(worker)
      const lease = await tried(client, claim)
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
      await letGo(client, lease)
    }
  }
  await Promise.all(Array.from({ length: clients.length * 2 }, (_, worker) => work(worker)))
  assert.ok(seen.grants > 0, 'somebody got it')
  return seen
}

const one: Case[] = [
  {
    name: 'under contention of several clients a lock never has two holders',
    async run(t) {
      const clients = await t.clients(4)
      const key = t.key()
      const whole = t.claim(key).weight
      await crowd(
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
          const lease = await tried(client, t.claim(key))
          if (!lease) {
            await t.sleep(Math.random() * 4)
            continue
          }
          assert.ok(lease.token > last, `token ${lease.token} came after ${last}`)
          last = lease.token
          await letGo(client, lease)
        }
      }
      await Promise.all(clients.map(work))
      assert.ok(last > 0n, 'somebody got it')
    },
  },
  {
    name: 'under contention of several clients readers and locks never meet',
    async run(t) {
      const clients = await t.clients(4)
      const key = t.key()
      const whole = t.claim(key).weight
      // A reader weighs 1 and the lock everything, so a reader beside a lock counts one too many.
      await crowd(
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
    name: 'under contention of several clients a semaphore never admits more than its capacity',
    async run(t) {
      const clients = await t.clients(4)
      const key = t.key('', 'semaphore')
      const claimOf = (worker: number) => t.claim(key, { weight: 1 + (worker % 3), capacity: 5 })
      await crowd(t, clients, claimOf, (held) => held <= 5)
    },
  },
]

export const throngCases: Case[] = [...one, ...needing(['counting'], some)]
