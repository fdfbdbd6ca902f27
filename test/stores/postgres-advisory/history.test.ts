import { expect, test } from 'vitest'
import { startPostgres } from '../../../testbed/servers/index.js'
import { runHistory, faultsOf } from '../../../testbed/postgres-advisory/history.js'

test('a history of contending processes, some of them killed, has one holder at a time and growing tokens', async () => {
  await using server = await startPostgres()
  const options = { url: server.url, processes: 3, acquisitions: 50, names: 4, kills: 3, seed: 5 }
  const { faults, grants, lost } = await runHistory(options)
  expect(faults).toEqual([])
  expect(lost).toBe(0)
  expect(grants).toBeGreaterThanOrEqual(3 * 50)
})

test('faultsOf() finds two holders at a time, tokens that go back and tokens given twice', () => {
  const turn = (name: string, token: bigint, from: bigint, to: bigint | undefined) => ({ name, token, from, to })
  expect(faultsOf([turn('a', 1n, 0n, 5n), turn('a', 2n, 5n, 9n), turn('b', 3n, 1n, 2n)])).toEqual([])
  expect(faultsOf([turn('a', 1n, 0n, 5n), turn('a', 2n, 4n, 9n)])).toHaveLength(1)
  expect(faultsOf([turn('a', 1n, 0n, undefined), turn('a', 2n, 4n, 9n)])).toHaveLength(1)
  expect(faultsOf([turn('a', 2n, 0n, 5n), turn('a', 1n, 6n, 9n)])).toHaveLength(1)
  expect(faultsOf([turn('a', 1n, 0n, 5n), turn('b', 1n, 6n, 9n)])).toHaveLength(1)
})
