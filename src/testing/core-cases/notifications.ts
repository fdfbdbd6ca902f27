import { strict as assert } from 'node:assert'
import type { TestContext } from '../test-context.js'
import { type Case, needing } from '../case.js'
import type { FaultEffect } from '../faulty.js'

/** Events only speed up a hand-off: whatever happens to them, every waiter is served, one at a time. */
async function turns(t: TestContext, effect: FaultEffect, chance = 1): Promise<void> {
  const [a, b] = [await t.faulty({ effect, chance }), await t.faulty({ effect, chance })]
  const clients = [await t.locks({ wait: 'forever' }, a), await t.locks({ wait: 'forever' }, b)]
  const name = t.name()
  let holders = 0
  const work = clients.flatMap((locks) =>
    [1, 2].map(() =>
      locks.withLock(name, async () => {
        assert.equal(++holders, 1, 'one at a time')
        await t.sleep(5)
        holders--
      }),
    ),
  )
  await t.settled('all are served', Promise.all(work))
}

const faultyEvents: Case[] = (
  [
    ['lost', 'lose-event'],
    ['doubled', 'double-event'],
    ['swapped', 'swap-event'],
  ] as const
).map(([what, effect]) => ({
  name: `all waiters are served, one at a time, when events are ${what}`,
  run: (t: TestContext) => turns(t, effect),
}))

const deadWatch: Case[] = [
  {
    name: 'all waiters are served, one at a time, when a watch cannot deliver events and says so',
    run: (t) => turns(t, 'dead-watch'),
  },
  {
    name: 'all waiters are served, one at a time, when a third of all calls fail',
    async run(t) {
      const faults = (['break-call', 'break-reply', 'unknown', 'swap-call'] as const).map((effect) => ({
        effect,
        chance: 0.1,
        // A request that is never answered looks like one that the server keeps open, and is abandoned as late as that.
        ms: 100,
      }))
      const clients = []
      for (let i = 0; i < 3; i++) clients.push(await t.locks({ wait: 'forever' }, await t.faulty(...faults)))
      const name = t.name()
      let inside = 0
      let last = 0n
      const work = clients.flatMap((locks) =>
        Array.from({ length: 5 }, () =>
          locks.withLock(
            name,
            async (lock) => {
              assert.equal(++inside, 1, 'one at a time')
              assert.ok(lock.fencingToken > last, `token ${lock.fencingToken} came after ${last}`)
              last = lock.fencingToken
              await t.sleep(2)
              inside--
            },
            { ttl: t.longMs / 2 },
          ),
        ),
      )
      await t.settled('all are served', Promise.all(work))
    },
  },
]

export const notificationCases: Case[] = [...needing(['watch'], faultyEvents), ...deadWatch]
