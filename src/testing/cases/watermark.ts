import { strict as assert } from 'node:assert'
import type { Renewed } from '../../store.js'
import { granted, mustRelease, refused, renew } from '../store-calls.js'
import { type Case, needing } from '../case.js'

const readers: Case[] = [
  {
    name: 'a refusal reports the newest token: no holder has a larger one',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const tokens = [(await granted(a, t.reader(key))).token, (await granted(b, t.reader(key))).token]
      for (const claim of [t.claim(key), t.claim(key, { queueMs: t.longMs })]) {
        const { newest } = await refused(a, claim)
        for (const token of tokens) assert.ok(newest !== undefined && newest >= token, `${newest}, held by ${token}`)
      }
    },
  },
  {
    name: 'a refusal reports the newest token also after its holder has left',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      await granted(a, t.reader(key))
      const last = await granted(b, t.reader(key))
      await mustRelease(b, last)
      const { newest } = await refused(a, t.claim(key))
      assert.ok(newest !== undefined && newest >= last.token, `${newest}, granted before: ${last.token}`)
    },
  },
  {
    name: 'a grant that is pushed after a refusal has a larger token than the newest token in that refusal',
    async run(t) {
      const [a, b] = await t.clients(2)
      const key = t.key()
      const probe = await t.probe(b, key)
      const [first, second] = [await granted(a, t.reader(key)), await granted(a, t.reader(key))]
      const waiting = t.claim(key, { queueMs: t.longMs })
      await mustRelease(a, second)
      const { newest = 0n } = await refused(b, waiting)
      const [kept] = (await b.renew([{ key, owner: waiting.owner, ttlMs: t.longMs, queued: true }])) as [Renewed]
      await mustRelease(a, first)
      const { token } = await probe.event({ type: 'granted', owner: waiting.owner })
      assert.ok(newest >= second.token, `${newest}, granted before: ${second.token}`)
      assert.ok(token > newest, `pushed with ${token} after ${newest}`)
      if (kept.outcome === 'waiting' && kept.newest !== undefined) assert.ok(token > kept.newest)
    },
  },
]

const permits: Case[] = [
  {
    name: 'a grant that was handed off and has expired is not newer than a later refusal of the same waiter',
    async run(t) {
      const [a, b] = await t.clients(2)
      await t.unhurried(150, async (queueMs) => {
        const key = t.key('', 'semaphore')
        const of2 = (over = {}) => t.claim(key, { weight: 1, capacity: 2, ...over })
        const oldest = await granted(a, of2())
        const second = await granted(a, of2())
        const waiting = of2({ queueMs })
        const probe = await t.probe(b, key)
        const sentAt = t.now()
        await refused(b, waiting)
        await mustRelease(a, second)
        // Later, the queue entry may have expired before the release, and nobody is granted the permit.
        t.mustBeBefore(sentAt + queueMs)
        const { token } = await probe.event({ type: 'granted', owner: waiting.owner })
        // The grant is not renewed: it expires, and another owner takes the permit.
        const taken = await t.until('the permit is free again', async () => {
          const [answer] = await a.acquire([of2()])
          return answer?.granted === true ? answer : undefined
        })
        const { newest = 0n } = await refused(b, of2({ owner: waiting.owner, queueMs: t.longMs }))
        assert.ok(newest >= taken.token && newest >= token, `${newest}, granted before: ${token}, ${taken.token}`)
        assert.equal(await renew(a, oldest, t.longMs), 'ours')
      })
    },
  },
]

/** The newest token in a refusal tells the waiter whether a pushed grant is current or was delivered late. */
export const watermarkCases: Case[] = [
  ...needing(['queue', 'watch', 'handoff', 'owners'], readers),
  ...needing(['queue', 'watch', 'handoff', 'owners', 'counting'], permits),
]
