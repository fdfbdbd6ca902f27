import { expect, test } from 'vitest'
import { handOff } from '../../scripts/prove/run/handoffs.js'
import { randomFrom } from '../../scripts/support/random.js'
import { Place } from './harness.js'

const place = new Place()

test('hand-offs between commands that are hard to end, a third of them killed or frozen, never overlap', async () => {
  const report = await handOff({
    store: place.store,
    folder: place.folder,
    handoffs: 5,
    lanes: 3,
    ttlMs: 2_000,
    random: randomFrom(7),
  })
  expect(report).toMatchObject({ handoffs: 15, alive: [], late: 0, wrongStatus: [] })
  expect(report.lines).toBeGreaterThan(report.handoffs)
  expect(report.fates.SIGKILL + report.fates.SIGSTOP).toBeGreaterThan(2)
})
