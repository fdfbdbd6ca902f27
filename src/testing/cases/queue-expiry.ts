import { strict as assert } from 'node:assert'
import { granted, mustRelease, refused, tryAcquire } from '../store-calls.js'
import { type Case, needing } from '../case.js'

const expiring: Case[] = [
  {
    name: 'a waiter that stops asking loses its queue entry, so a dead waiter does not block the queue',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      const alive = t.claim(key, { queueMs: t.longMs })
      await refused(b, t.claim(key, { queueMs: 100 }))
      await refused(c, alive)
      await t.elapse(350)
      await mustRelease(a, held)
      const successor = await granted(c, alive, 'the waiter before it has been silent for too long')
      await mustRelease(c, successor)
      await granted(a, t.claim(key), 'the queue is empty')
    },
  },
  {
    name: 'a waiter that dies at the head of the queue blocks it for queueMs, not for ttlMs',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      const key = t.key()
      const held = await granted(a, t.claim(key))
      await refused(b, t.claim(key, { queueMs: 300 }))
      const alive = t.claim(key, { queueMs: t.longMs })
      await refused(c, alive)
      await mustRelease(a, held)
      await t.until('the waiter behind the dead one gets it', () => tryAcquire(c, alive))
    },
  },
  {
    name: 'a waiter that keeps asking keeps its queue entry without limit',
    async run(t) {
      const [a, b, c] = await t.clients(3)
      await t.unhurried(300, async (queueMs) => {
        const key = t.key()
        const held = await granted(a, t.claim(key))
        const first = t.claim(key, { queueMs })
        const second = t.claim(key, { queueMs: t.longMs })
        let askedAt = t.now()
        await refused(b, first)
        await refused(c, second)
        for (let i = 0; i < 6; i++) {
          await t.sleep(queueMs / 4)
          const again = t.now()
          await refused(b, first)
          t.mustBeBefore(askedAt + queueMs)
          askedAt = again
        }
        const { ahead } = await refused(c, second)
        t.mustBeBefore(askedAt + queueMs)
        assert.equal(ahead, 1, 'the first waiter is still ahead')
        await mustRelease(a, held)
      })
    },
  },
]

export const queueExpiryCases: Case[] = needing(['queue'], expiring)
