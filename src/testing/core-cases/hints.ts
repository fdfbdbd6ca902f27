import { strict as assert } from 'node:assert'
import type { Bench } from '../bench.js'
import { type Case, needing } from '../case.js'
import type { FaultEffect } from '../faulty.js'

/** Events are hints: whatever happens to them, everybody is served, and one at a time. */
async function turns(t: Bench, effect: FaultEffect, chance = 1): Promise<void> {
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

const hints: Case[] = (
  [
    ['lost', 'lose-event'],
    ['doubled', 'double-event'],
    ['swapped', 'swap-event'],
  ] as const
).map(([what, effect]) => ({
  name: `all are served, one at a time, when events are ${what}`,
  run: (t: Bench) => turns(t, effect),
}))

const deaf: Case[] = [
  {
    name: 'all are served, one at a time, when a watch hears nothing and says so',
    run: (t) => turns(t, 'deaf'),
  },
  {
    name: 'all are served, one at a time, when a third of all calls fail in one way or another',
    async run(t) {
      const faults = (['break-call', 'break-reply', 'unknown', 'swap-call'] as const).map((effect) => ({
        effect,
        chance: 0.1,
        // A question that is on its way for ever looks like one that a server keeps open, and is given up as late as that.
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

export const hintCases: Case[] = [...needing(['watch'], hints), ...deaf]
