import { strict as assert } from 'node:assert'
import { granted, letGo, refused, release, renew, tried } from '../ask.js'
import { type Alternative, type Case, needing } from '../case.js'

const unlined: Alternative = {
  name: 'without a line, asking for a place changes nothing: refused while held, granted when free',
  async run(t) {
    const [a, b] = await t.clients(2)
    const key = t.key()
    const held = await granted(a, t.claim(key))
    const waiting = t.claim(key, { placeMs: t.longMs })
    await refused(b, waiting)
    await letGo(a, held)
    await t.until('whoever asks gets it', () => tried(a, t.claim(key)))
  },
}

const order: Case[] = [
  {
    name: 'whoever stands in line is served in order of arrival',
    otherwise: unlined,
    async run(t) {
      const clients = await t.clients(3)
      const key = t.key()
      let held = await granted(clients[0], t.claim(key))
      let holder = clients[0]
      const waiting = Array.from({ length: 5 }, (_, i) => ({
        client: clients[i % 3] as typeof holder,
        claim: t.claim(key, { placeMs: t.longMs }),
      }))
      for (const { client, claim } of waiting) await refused(client, claim)
      for (const [turn, { client, claim }] of waiting.entries()) {
        await letGo(holder, held)
        // The last in line asks first: it must not matter who is quickest.
        for (const later of waiting.slice(turn + 1).toReversed())
          await refused(later.client, later.claim, 'others came earlier')
        held = await granted(client, claim, 'it is first in line')
        holder = client
      }
      await letGo(holder, held)
      await granted(holder, t.claim(key), 'the line is empty')
    },
  },
  {
    name: 'asking again keeps the place',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const first = t.claim(key, { placeMs: t.longMs })
      const second = t.claim(key, { placeMs: t.longMs })
      await refused(b, first)
      await refused(c, second)
      for (let i = 0; i < 3; i++) await refused(b, first)
      await letGo(a, held)
      await refused(c, second, 'it came second')
      await granted(b, first)
    },
  },
  {
    name: 'a refusal tells how many are ahead',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.claim(key))
      const first = t.claim(key, { placeMs: t.longMs })
      const second = t.claim(key, { placeMs: t.longMs })
      assert.equal((await refused(b, first)).ahead, 0)
      assert.equal((await refused(c, second)).ahead, 1)
      assert.equal((await refused(a, t.claim(key))).ahead, 2, 'before anyone who came now')
      assert.equal((await refused(b, first)).ahead, 0, 'asking again')
    },
  },
  {
    name: 'a newcomer does not pass the line, although the lease has just run out',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const sentAt = t.now()
      const brief = await granted(a, t.claim(key, { ttlMs: 150 }))
      const first = t.claim(key, { placeMs: t.longMs })
      const second = t.claim(key, { placeMs: t.longMs })
      // On a slow machine the lease may have ended before the first came: then it is granted, and that is right too.
      const early = await tried(b, first)
      if (early) return assert.ok(t.now() - sentAt >= brief.ttlMs - 5, 'the lease had ended')
      await refused(c, second)
      await t.sleep(400)
      await refused(c, t.claim(key), 'a newcomer')
      await refused(c, second, 'second in line')
      await granted(b, first, 'first in line')
    },
  },
  {
    name: 'whoever lets go passes over a place that has ended, also if nobody else is left in line',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const later = t.claim(key, { placeMs: t.longMs })
      await refused(b, t.claim(key, { placeMs: 200 }))
      await refused(c, later)
      await letGo(c, { key, owner: later.owner })
      await t.sleep(400)
      await letGo(a, held)
      await granted(c, t.claim(key), 'nobody alive came before')
    },
  },
  {
    name: 'readers who keep coming do not starve a lock that waits',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const reading = await granted(a, t.reader(key))
      const writer = t.claim(key, { placeMs: t.longMs })
      await refused(b, writer)
      await refused(c, t.reader(key), 'a reader who came after the writer')
      const later = t.reader(key, { placeMs: t.longMs })
      assert.equal((await refused(c, later)).ahead, 1)
      await letGo(a, reading)
      await refused(c, later, 'the writer goes first')
      const writing = await granted(b, writer)
      await letGo(b, writing)
      await granted(c, later)
    },
  },
  {
    name: 'locks that keep coming do not starve a reader who waits',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const writing = await granted(a, t.claim(key))
      const reader = t.reader(key, { placeMs: t.longMs })
      await refused(b, reader)
      const writer = t.claim(key, { placeMs: t.longMs })
      await refused(c, writer)
      await letGo(a, writing)
      await refused(c, writer, 'the reader goes first')
      const reading = await granted(b, reader)
      await letGo(b, reading)
      await granted(c, writer)
    },
  },
]

const weights: Case[] = [
  {
    name: 'small claims do not pass a big one that waits for room',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key('', 'semaphore')
      const of3 = (weight: number, placeMs?: number) => t.claim(key, { weight, capacity: 3, placeMs })
      const held = await granted(a, of3(1))
      const big = of3(3, t.longMs)
      await refused(b, big)
      await refused(c, of3(1), 'there is room, but somebody is before it')
      await letGo(a, held)
      await refused(c, of3(1), 'the big one goes first')
      await granted(b, big)
    },
  },
]

const leaving: Case[] = [
  {
    name: 'releasing a place answers released once, and nothing is handed to it afterwards',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { placeMs: t.longMs })
      await refused(b, waiting)
      assert.equal(await release(b, waiting), 'released')
      assert.equal(await release(b, waiting), 'gone')
      await letGo(a, held)
      await granted(c, t.claim(key), 'nobody is in line')
    },
  },
  {
    name: "a stranger's release does not remove a place",
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { placeMs: t.longMs })
      await refused(b, waiting)
      assert.equal(await release(c, { key, owner: t.owner() }), 'gone')
      await letGo(a, held)
      await refused(c, t.claim(key), 'the place is still there')
      await granted(b, waiting)
    },
  },
  {
    name: 'whoever leaves the line lets those behind pass',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      await granted(a, t.reader(key))
      const writer = t.claim(key, { placeMs: t.longMs })
      await refused(b, writer)
      const reader = t.reader(key, { placeMs: t.longMs })
      await refused(c, reader, 'behind a writer')
      assert.equal(await release(b, writer), 'released')
      await granted(c, reader, 'beside the first reader')
    },
  },
  {
    name: 'a claim that asks for no place leaves none',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      await refused(b, t.claim(key))
      await letGo(a, held)
      await granted(c, t.claim(key))
    },
  },
  {
    name: 'renewing a place is gone, and neither grants nor loses it',
    otherwise: unlined,
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { placeMs: t.longMs })
      await refused(b, waiting)
      assert.equal(await renew(b, waiting, t.longMs), 'gone', 'a place is not a lease')
      assert.equal(await renew(a, held, t.longMs), 'ours', 'its holder still holds it')
      await letGo(a, held)
      await refused(c, t.claim(key))
      await granted(b, waiting)
    },
  },
]

export const lineCases: Case[] = [
  ...needing(['line'], [...order, ...leaving]),
  ...needing(['line', 'counting'], weights),
]
