import { strict as assert } from 'node:assert'
import { granted, letGo, refused, unsupported } from '../ask.js'
import { type Alternative, type Case, needing } from '../case.js'

const locks: Case[] = [
  {
    name: 'a lock excludes everybody else until it is released',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      await refused(b, t.claim(key), 'held by another client')
      await refused(a, t.claim(key), 'held by another owner of the same client')
      await letGo(a, held)
      await granted(b, t.claim(key), 'nobody holds it any more')
    },
  },
  {
    name: 'of many who ask at the same moment exactly one gets the lock',
    async run(t) {
      const clients = await t.clients(4)
      for (let round = 0; round < 5; round++) {
        const key = t.key()
        const asked = clients.flatMap((client) => [t.claim(key), t.claim(key)].map((claim) => client.acquire([claim])))
        const answers = (await Promise.all(asked)).flat()
        const grants = answers.filter((answer) => answer.granted === true)
        assert.ok(grants.length <= 1, `${grants.length} of ${answers.length} were granted`)
        // A store that needs a majority may split it between those who ask at once; then nobody has it, and all let go.
        if (grants.length === 0)
          await t.until('somebody gets it', async () => (await clients[0].acquire([t.claim(key)]))[0]?.granted === true)
      }
    },
  },
  {
    name: 'different keys have nothing to do with each other',
    async run(t) {
      const [a, b] = await t.clients(2)
      const name = t.name()
      await granted(a, t.claim(`lock:${name}:1`))
      await granted(b, t.claim(`lock:${name}:2`))
      await granted(b, t.claim(`election:${name}:1`), 'a kind is a space of its own')
      await granted(b, t.claim(`lock:${name}`), 'a beginning of another name')
    },
  },
]

const shared: Case[] = [
  {
    name: 'readers hold side by side',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      for (const client of [a, b, c, a]) await granted(client, t.reader(key))
    },
  },
  {
    name: 'a reader is refused beside a lock',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const lock = await granted(a, t.claim(key))
      await refused(b, t.reader(key))
      await refused(a, t.reader(key), 'the same client, another owner')
      await letGo(a, lock)
      await granted(b, t.reader(key))
    },
  },
  {
    name: 'a lock is refused beside readers, until the last of them has left',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const first = await granted(a, t.reader(key))
      const second = await granted(b, t.reader(key))
      await refused(c, t.claim(key))
      await letGo(a, first)
      await refused(c, t.claim(key), 'one reader is left')
      await letGo(b, second)
      await granted(c, t.claim(key))
    },
  },
]

const uncounted: Alternative = {
  name: 'a claim of some of a capacity is unsupported, and grants nothing',
  async run(t) {
    const [a] = await t.clients(1)
    const key = t.key('', 'semaphore')
    await unsupported(a, [t.claim(key, { weight: 1, capacity: 3 })])
    await granted(a, t.claim(key), 'nothing was left behind')
  },
}

const counting: Case[] = [
  {
    name: 'weights add up to the capacity and not beyond',
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
      await letGo(a, two)
      await refused(b, of5(3), '3 of 5 are held')
      await granted(b, of5(2))
    },
  },
  {
    name: 'a semaphore of one admits one',
    otherwise: uncounted,
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key('', 'semaphore')
      const held = await granted(a, t.claim(key, { weight: 1, capacity: 1 }))
      await refused(b, t.claim(key, { weight: 1, capacity: 1 }))
      await letGo(a, held)
      await granted(b, t.claim(key, { weight: 1, capacity: 1 }))
    },
  },
  {
    name: 'each claim is judged by the capacity that it names itself',
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
