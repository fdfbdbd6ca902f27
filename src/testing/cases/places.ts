import { strict as assert } from 'node:assert'
import { granted, letGo, refused, tried } from '../ask.js'
import { type Case, needing } from '../case.js'

const places: Case[] = [
  {
    name: 'a waiter who falls silent loses its place, so the dead do not block the line',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const alive = t.claim(key, { placeMs: t.longMs })
      await refused(b, t.claim(key, { placeMs: 100 }))
      await refused(c, alive)
      await t.sleep(350)
      await letGo(a, held)
      const heir = await granted(c, alive, 'the one before it has been silent for too long')
      await letGo(c, heir)
      await granted(a, t.claim(key), 'nobody is in line')
    },
  },
  {
    name: 'a waiter who dies at the head of the line holds it up for its place, not for its time to live',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      await refused(b, t.claim(key, { placeMs: 300 }))
      const alive = t.claim(key, { placeMs: t.longMs })
      await refused(c, alive)
      await letGo(a, held)
      await t.until('the one behind the dead gets it', () => tried(c, alive))
    },
  },
  {
    name: 'asking again keeps a place alive for as long as one likes',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(300, async (placeMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const first = t.claim(key, { placeMs })
        const second = t.claim(key, { placeMs: t.longMs })
        let askedAt = t.now()
        await refused(b, first)
        await refused(c, second)
        for (let i = 0; i < 6; i++) {
          await t.sleep(placeMs / 4)
          const again = t.now()
          await refused(b, first)
          t.mustBeBefore(askedAt + placeMs)
          askedAt = again
        }
        const { ahead } = await refused(c, second)
        t.mustBeBefore(askedAt + placeMs)
        assert.equal(ahead, 1, 'the first is still before it')
        await letGo(a, held)
      })
    },
  },
]

export const placeCases: Case[] = needing(['line'], places)
