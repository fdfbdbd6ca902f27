import { expect, test } from 'vitest'
import { handOff } from '../../verify/campaigns/run/handoffs.js'
import { randomFrom } from '../../testbed/random.js'
import { CliFixture } from './harness.js'

const fixture = new CliFixture()

test('hand-offs between commands that are hard to end, a third of them killed or frozen, never overlap', async () => {
  const report = await handOff({
    store: fixture.store,
    folder: fixture.folder,
    handoffs: 5,
    lanes: 3,
    ttlMs: 2_000,
    random: randomFrom(7),
  })
  expect(report).toMatchObject({ handoffs: 15, alive: [], late: 0, wrongStatus: [] })
  expect(report.lines).toBeGreaterThan(report.handoffs)
  expect(report.fates.SIGKILL + report.fates.SIGSTOP).toBeGreaterThan(2)
})
