import { strict as assert } from 'node:assert'
import { granted, mustRelease, refused, release, tryAcquire } from '../store-calls.js'
import { type Case, needing } from '../case.js'

const watching: Case[] = [
  {
    name: 'a release wakes a waiter that watches the key, also in another client',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const waiting = t.claim(key, { queueMs: t.longMs })
      const probe = await t.probe(b, key)
      await refused(b, waiting)
      await mustRelease(a, held)
      await t.until('it is woken', () =>
        probe.received.some((event) => event.type === 'freed' || event.type === 'granted'),
      )
      await t.until('the waiter gets it', () => tryAcquire(b, waiting))
    },
  },
  {
    name: 'a watch reports no events of other keys',
    async run(t) {
      const [a, b] = await t.clients(2)
      const [mine, other] = [t.key(), t.key()]
      const [probe, elsewhere] = [await t.probe(b, mine), await t.probe(b, other)]
      const held = await granted(a, t.claim(other))
      await refused(b, t.claim(other, { queueMs: t.longMs }))
      await mustRelease(a, held)
      await t.until('the other key has an event', () => elsewhere.received.length > 0)
      assert.deepEqual(probe.received, [])
    },
  },
  {
    name: 'two watches of one key both get its events, and closing one keeps the other',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const [first, second] = [await t.probe(b, key), await t.probe(b, key)]
      const rings = async (): Promise<void> => {
        const held = await t.until('it is free', () => tryAcquire(a, t.claim(key)))
        const waiting = t.claim(key, { queueMs: t.longMs })
        await refused(b, waiting)
        await mustRelease(a, held)
        const successor = await t.until('the waiter gets it', () => tryAcquire(b, waiting))
        await mustRelease(b, successor)
      }
      await rings()
      await t.until('both get the event', () => first.received.length > 0 && second.received.length > 0)
      first.close()
      first.close()
      const before = { first: first.received.length, second: second.received.length }
      await rings()
      await t.until('the other gets the event', () => second.received.length > before.second)
      assert.equal(first.received.length, before.first, 'a closed watch is silent')
    },
  },
  {
    name: 'a watch may be closed and opened again at once',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      for (let i = 0; i < 5; i++) (await t.probe(b, key)).close()
      const probe = await t.probe(b, key)
      await refused(b, t.claim(key, { queueMs: t.longMs }))
      await mustRelease(a, held)
      await t.until('it is woken', () => probe.received.length > 0)
    },
  },
]

const blocking: Case[] = [
  {
    name: 'a request that the server may keep open is answered when the lease is released, or refused before',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const claim = t.claim(key, { queueMs: t.longMs, blockMs: 5_000 })
      const answer = Promise.resolve(b.acquire([claim]))
      await t.sleep(50)
      await mustRelease(a, held)
      const said = (await t.settled('the request is answered', answer))[0]
      assert.ok(said?.granted === true || said?.granted === false, 'it is decided')
      if (!said.granted) await t.until('its next request is granted', () => tryAcquire(b, claim))
    },
  },
  {
    name: 'a release ends a request that the server keeps open, which grants nothing then',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const claim = t.claim(key, { queueMs: t.longMs, blockMs: 60_000 })
      let isAnswered = false
      const answer = Promise.resolve(b.acquire([claim])).finally(() => (isAnswered = true))
      await t.sleep(50)
      // A request that arrived after the release would be another one, which waits.
      const isQueued = async (): Promise<boolean> => !a.inspect || (await a.inspect(key)).waiters.length > 0
      await t.until('the request has arrived', async () => isAnswered || (await isQueued()))
      await release(b, claim)
      const said = (await t.settled('the request is answered', answer))[0]
      assert.notEqual(said?.granted, true, 'another owner holds it')
      await mustRelease(a, held)
      await t.until('another client gets it', () => tryAcquire(a, t.claim(key)))
    },
  },
]

export const watchCases: Case[] = [...needing(['watch'], watching), ...blocking]
