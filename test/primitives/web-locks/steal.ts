/** Taking a lock away: from whoever holds it, before everybody who waits. */
import { strict as assert } from 'node:assert'
import { LockLostError } from '../../../src/index.js'
import { type Case, needing } from '../../../src/testing/case.js'
import { domException, hold, instances, pending, request } from './requests.js'

/** Elsewhere than in memory a theft is noticed with the next renewal, after a third of this. */
const TTL = 3_000

export const stealCases: Case[] = needing(
  ['line', 'revoke'],
  [
    {
      name: 'stealing what is free is asking for it',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const held = await hold(t, a, 'name', { steal: true })
        assert.deepEqual({ ...(await held.lock) }, { name: 'name', mode: 'exclusive' })
        assert.equal(await b.request('name', { ifAvailable: true }, (lock) => lock), null)
        held.letGo('mine')
        assert.equal(await held.outcome, 'mine')
      },
    },
    {
      name: 'the robbed request rejects with an AbortError whose cause is the loss, and its result no longer counts',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const robbed = await hold(t, a, 'name')
        const thief = await hold(t, b, 'name', { steal: true })
        const rejected = assert.rejects(robbed.outcome, (error) => {
          assert.ok(domException('AbortError')(error))
          const { cause } = error as DOMException
          assert.ok(cause instanceof LockLostError)
          assert.equal(cause.lock, 'name')
          return true
        })
        await t.settled('it is told', rejected)
        robbed.letGo('too late')
        assert.deepEqual(
          (await b.query()).held.map(({ clientId }) => clientId),
          [b.clientId],
          'ending its callback does not free what the thief holds',
        )
        thief.letGo('mine')
        assert.equal(await thief.outcome, 'mine')
      },
    },
    {
      name: 'a robbed callback that ends before it is told is rejected all the same',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const robbed = await hold(t, a, 'name')
        const thief = await hold(t, b, 'name', { steal: true })
        robbed.letGo('as if nothing had happened')
        await t.settled('it is told', assert.rejects(robbed.outcome, domException('AbortError')))
        thief.letGo()
        await thief.outcome
        // Whoever fails by itself fails with its own error.
        const failing = await hold(t, a, 'name')
        const second = await hold(t, b, 'name', { steal: true })
        failing.fail(new Error('mine'))
        await t.settled('it is told', assert.rejects(failing.outcome))
        second.letGo()
        await second.outcome
      },
    },
    {
      name: 'stealing robs everybody who holds it shared',
      async run(t) {
        const [a, b, c] = await instances(t, 3, TTL)
        const robbed = await Promise.all([a, b, a].map((locks) => hold(t, locks, 'name', { mode: 'shared' })))
        const thief = await hold(t, c, 'name', { steal: true })
        assert.deepEqual(
          (await a.query()).held.map(({ mode, clientId }) => [mode, clientId]),
          [['exclusive', c.clientId]],
        )
        for (const { outcome } of robbed) {
          await t.settled('it is told', assert.rejects(outcome, domException('AbortError')))
        }
        thief.letGo()
        await thief.outcome
      },
    },
    {
      name: 'a thief goes before everybody who waits, and those keep their places',
      async run(t) {
        const [a, b, c] = await instances(t, 3, TTL)
        const robbed = await hold(t, a, 'name')
        const first = request(b, 'name', { mode: 'shared' })
        await pending(t, a, 1)
        const second = request(c, 'name')
        await pending(t, a, 2)
        const thief = await hold(t, c, 'name', { steal: true })
        await t.settled('the robbed one is told', assert.rejects(robbed.outcome, domException('AbortError')))
        assert.deepEqual([first.called, second.called], [false, false])
        assert.deepEqual(
          (await a.query()).pending.map(({ mode }) => mode),
          ['shared', 'exclusive'],
        )
        thief.letGo()
        await t.settled('the first in line', first.lock)
        assert.equal(second.called, false)
        first.letGo()
        await t.settled('the second in line', second.lock)
        second.letGo()
        await Promise.all([first.outcome, second.outcome])
      },
    },
    {
      name: 'a thief is robbed by the next one',
      async run(t) {
        const [a, b, c] = await instances(t, 3, TTL)
        const held = [await hold(t, a, 'name')]
        for (const locks of [b, c, a]) held.push(await hold(t, locks, 'name', { steal: true }))
        const last = held.pop()
        for (const { outcome } of held) {
          await t.settled('it is told', assert.rejects(outcome, domException('AbortError')))
        }
        last?.letGo('the last one')
        assert.equal(await last?.outcome, 'the last one')
      },
    },
    {
      name: 'other names are not robbed',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const mine = await hold(t, a, 'mine')
        const thief = await hold(t, b, 'yours', { steal: true })
        thief.letGo()
        await thief.outcome
        mine.letGo('undisturbed')
        assert.equal(await mine.outcome, 'undisturbed')
      },
    },
    {
      name: 'a lock taken with acquire can be stolen too, and a request be cut off by force',
      async run(t) {
        const [a, b] = await instances(t, 2, TTL)
        const lock = await a.acquire('name')
        const thief = await hold(t, b, 'name', { steal: true })
        await t.until('the holder is told', () => lock.signal.aborted)
        assert.ok(!lock.isHeld)
        const [cut] = await a.forceRelease('name')
        assert.equal(cut?.mode, 'exclusive')
        await t.settled('so is the thief', assert.rejects(thief.outcome, domException('AbortError')))
      },
    },
  ],
)

/** In memory everything happens in one turn of the event loop, so that the order can be told exactly. */
export const stealAtOnce: Case[] = [
  {
    name: 'whoever is robbed in memory is rejected before the callback of the thief is called',
    async run(t) {
      const [a, b] = await instances(t, 2)
      const order: string[] = []
      const robbed = await hold(t, a, 'name')
      const rejected = robbed.outcome.catch(() => order.push('robbed'))
      await b.request('name', { steal: true }, () => order.push('thief'))
      await rejected
      assert.deepEqual(order, ['robbed', 'thief'])
    },
  },
  {
    name: 'whoever is robbed between the grant and its callback is rejected, and the callback is not called',
    async run(t) {
      const [a, b] = await instances(t, 2)
      const robbed = request(a, 'name')
      const thief = request(b, 'name', { steal: true })
      await t.settled('the thief has it', thief.lock)
      await assert.rejects(robbed.outcome, domException('AbortError'))
      assert.equal(robbed.called, false)
      thief.letGo()
      await thief.outcome
    },
  },
]
