import { strict as assert } from 'node:assert'
import { granted, mustRelease, refused, unsupported } from '../store-calls.js'
import { type Alternative, type Case, needing } from '../case.js'

const locks: Case[] = [
  {
    name: 'a lock excludes every other owner until it is released',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      await refused(b, t.claim(key), 'held by another client')
      await refused(a, t.claim(key), 'held by another owner of the same client')
      await mustRelease(a, held)
      await granted(b, t.claim(key), 'it is free again')
    },
  },
  {
    name: 'a lock that many clients request at the same moment is granted to exactly one',
    async run(t) {
      const clients = await t.clients(4)
      for (let round = 0; round < 5; round++) {
        const key = t.key()
        const asked = clients.flatMap((client) => [t.claim(key), t.claim(key)].map((claim) => client.acquire([claim])))
        const answers = (await Promise.all(asked)).flat()
        const grants = answers.filter((answer) => answer.granted === true)
        assert.ok(grants.length <= 1, `${grants.length} of ${answers.length} were granted`)
        // A store that needs a majority may split its votes between simultaneous requests. Then no client has the lock,
        // and all requests are undone.
        if (grants.length === 0)
          await t.until(
            'one client gets it',
            async () => (await clients[0].acquire([t.claim(key)]))[0]?.granted === true,
          )
      }
    },
  },
  {
    name: 'different keys are independent of each other',
    async run(t) {
      const [a, b] = await t.clients(2)
      const name = t.name()
      await granted(a, t.claim(`lock:${name}:1`))
      await granted(b, t.claim(`lock:${name}:2`))
      await granted(b, t.claim(`election:${name}:1`), 'a kind is a namespace')
      await granted(b, t.claim(`lock:${name}`), 'the name is a prefix of another name')
    },
  },
]

const shared: Case[] = [
  {
    name: 'readers of one key hold it at the same time',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      for (const client of [a, b, c, a]) await granted(client, t.reader(key))
    },
  },
  {
    name: 'a reader is refused while a lock is held',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const lock = await granted(a, t.claim(key))
      await refused(b, t.reader(key))
      await refused(a, t.reader(key), 'the same client, another owner')
      await mustRelease(a, lock)
      await granted(b, t.reader(key))
    },
  },
  {
    name: 'a lock is refused while readers hold the key, until the last reader has released',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const first = await granted(a, t.reader(key))
      const second = await granted(b, t.reader(key))
      await refused(c, t.claim(key))
      await mustRelease(a, first)
      await refused(c, t.claim(key), 'one reader is left')
      await mustRelease(b, second)
      await granted(c, t.claim(key))
    },
  },
]

const uncounted: Alternative = {
  name: 'a claim of a part of a capacity is unsupported, and grants nothing',
  async run(t) {
    const [a] = await t.clients(1)
    const key = t.key('', 'semaphore')
    await unsupported(a, [t.claim(key, { weight: 1, capacity: 3 })])
    await granted(a, t.claim(key), 'the claim left nothing behind')
  },
}

const counting: Case[] = [
  {
    name: 'the weights of all grants of a key add up to the capacity and never more',
    otherwise: uncounted,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key('', 'semaphore')
      const of5 = (weight: number) => t.claim(key, { weight, capacity: 5 })
      const two = await granted(a, of5(2))
      await granted(b, of5(2))
      await refused(c, of5(2), '4 of 5 are held')
      await granted(c, of5(1), 'the last one')
      await refused(a, of5(1), '5 of 5 are held')
      await mustRelease(a, two)
      await refused(b, of5(3), '3 of 5 are held')
      await granted(b, of5(2))
    },
  },
  {
    name: 'a semaphore with capacity 1 has one holder at a time',
    otherwise: uncounted,
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key('', 'semaphore')
      const held = await granted(a, t.claim(key, { weight: 1, capacity: 1 }))
      await refused(b, t.claim(key, { weight: 1, capacity: 1 }))
      await mustRelease(a, held)
      await granted(b, t.claim(key, { weight: 1, capacity: 1 }))
    },
  },
  {
    name: 'each claim is judged by its own capacity',
    otherwise: uncounted,
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key('', 'semaphore')
      await granted(a, t.claim(key, { weight: 2, capacity: 5 }))
      await refused(b, t.claim(key, { weight: 1, capacity: 2 }), '2 and 1 are more than 2')
      await granted(b, t.claim(key, { weight: 1, capacity: 3 }), '2 and 1 are 3')
    },
  },
]

export const exclusionCases: Case[] = [...locks, ...shared, ...needing(['counting'], counting)]
