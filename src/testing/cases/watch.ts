import { strict as assert } from 'node:assert'
import { granted, letGo, refused, release, tried } from '../ask.js'
import { type Case, needing } from '../case.js'

const watching: Case[] = [
  {
    name: 'a release wakes whoever waits and watches, in another client too',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { placeMs: t.longMs })
      const ear = await t.ear(b, key)
      await refused(b, waiting)
      await letGo(a, held)
      await t.until('it is woken', () => ear.heard.some((event) => event.type === 'freed' || event.type === 'granted'))
      await t.until('it gets it', () => tried(b, waiting))
    },
  },
  {
    name: 'a watch hears nothing of other keys',
    async run(t) {
      const [a, b] = await t.clients(2)
      const [mine, other] = [t.key(), t.key()]
      const [ear, elsewhere] = [await t.ear(b, mine), await t.ear(b, other)]
      const held = await granted(a, t.claim(other))
      await refused(b, t.claim(other, { placeMs: t.longMs }))
      await letGo(a, held)
      await t.until('the other key rings', () => elsewhere.heard.length > 0)
      assert.deepEqual(ear.heard, [])
    },
  },
  {
    name: 'two watches of one key both hear, and closing one leaves the other',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const [first, second] = [await t.ear(b, key), await t.ear(b, key)]
      const rings = async (): Promise<void> => {
        const held = await t.until('it is free', () => tried(a, t.claim(key)))
        const waiting = t.claim(key, { placeMs: t.longMs })
        await refused(b, waiting)
        await letGo(a, held)
        const heir = await t.until('the waiter gets it', () => tried(b, waiting))
        await letGo(b, heir)
      }
      await rings()
      await t.until('both hear', () => first.heard.length > 0 && second.heard.length > 0)
      first.close()
      first.close()
      const before = { first: first.heard.length, second: second.heard.length }
      await rings()
      await t.until('the other hears', () => second.heard.length > before.second)
      assert.equal(first.heard.length, before.first, 'a closed watch is silent')
    },
  },
  {
    name: 'a watch may be closed and opened again at once',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      for (let i = 0; i < 5; i++) (await t.ear(b, key)).close()
      const ear = await t.ear(b, key)
      await refused(b, t.claim(key, { placeMs: t.longMs }))
      await letGo(a, held)
      await t.until('it is woken', () => ear.heard.length > 0)
    },
  },
]

const blocking: Case[] = [
  {
    name: 'a question that may be kept open is answered when the lease is released, or refused before',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const claim = t.claim(key, { placeMs: t.longMs, blockMs: 5_000 })
      const answer = Promise.resolve(b.acquire([claim]))
      await t.sleep(50)
      await letGo(a, held)
      const said = (await t.settled('the question is answered', answer))[0]
      assert.ok(said?.granted === true || said?.granted === false, 'it is decided')
      if (!said.granted) await t.until('it gets it when it asks again', () => tried(b, claim))
    },
  },
  {
    name: 'a release ends a question that is kept open, and nothing comes of it',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const claim = t.claim(key, { placeMs: t.longMs, blockMs: 60_000 })
      const answer = Promise.resolve(b.acquire([claim]))
      await t.sleep(50)
      await release(b, claim)
      const said = (await t.settled('the question is answered', answer))[0]
      assert.notEqual(said?.granted, true, 'it is held by another')
      await letGo(a, held)
      await t.until('another gets it', () => tried(a, t.claim(key)))
    },
  },
]

export const watchCases: Case[] = [...needing(['watch'], watching), ...blocking]
